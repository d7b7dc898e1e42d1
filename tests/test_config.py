"""Configuration values: wrong keys and wrong types are named."""

import json
from dataclasses import dataclass, field
from typing import Literal

import pytest

from idcf.config import dataclass_from_dict, dataclass_to_dict, load_toml, parse_overrides
from idcf.errors import (
    ArtifactError,
    ColdUserError,
    ConfigError,
    DataError,
    IdcfError,
    unknown_name_message,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    heads: int = 4
    attention: Literal["dot", "additive"] = "dot"
    hidden: tuple[int, ...] = (8, 8)
    inner: Inner = field(default_factory=Inner)


def test_defaults_and_values():
    assert dataclass_from_dict(Options, {}) == Options()
    options = dataclass_from_dict(Options, {"heads": 2, "hidden": [3, 4], "inner": {"rate": 1}})
    assert options == Options(heads=2, hidden=(3, 4), inner=Inner(rate=1.0))


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(ConfigError) as caught:
        dataclass_from_dict(Options, {"haeds": 2}, "model 'x'")
    text = str(caught.value)
    assert text.startswith("model 'x': no option named 'haeds'; did you mean 'heads'?")
    assert "attention, heads, hidden, inner" in text


def test_a_key_like_no_other_lists_the_known_ones():
    with pytest.raises(ConfigError, match="known: attention, heads") as caught:
        dataclass_from_dict(Options, {"zzz": 2})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": "many"}, "option 'heads' is 'many'"),
        ({"heads": 2.5}, "option 'heads' is 2.5"),
        ({"attention": "cosine"}, "option 'attention' is 'cosine'"),
        ({"hidden": ["a"]}, r"option 'hidden\.0' is 'a'"),
        ({"inner": {"rate": "fast"}}, r"option 'inner\.rate' is 'fast'"),
    ],
)
def test_a_wrong_type_names_option_and_value(values, message):
    with pytest.raises(ConfigError, match=message):
        dataclass_from_dict(Options, values)


def test_an_unknown_nested_key_is_an_error():
    with pytest.raises(ConfigError, match="rate"):
        dataclass_from_dict(Options, {"inner": {"rat": 1.0}})


def test_options_survive_json():
    options = Options(heads=1, inner=Inner(rate=2.0))
    text = json.dumps(dataclass_to_dict(options))
    assert dataclass_from_dict(Options, json.loads(text)) == options


def test_overrides():
    pairs = ["heads=2", "attention=additive", 'name="a b"', "hidden=[3, 4]", "on=true", "x=1e-3"]
    assert parse_overrides(pairs) == {
        "heads": 2,
        "attention": "additive",
        "name": "a b",
        "hidden": [3, 4],
        "on": True,
        "x": 1e-3,
    }
    assert parse_overrides(["train.epochs=3", "a = b=c"]) == {"train.epochs": 3, "a": "b=c"}


@pytest.mark.parametrize("pair", ["heads", "=3", ""])
def test_an_override_without_a_name_or_a_value(pair):
    with pytest.raises(ConfigError, match="name=value"):
        parse_overrides([pair])


def test_toml(tmp_path):
    file = tmp_path / "x.toml"
    with pytest.raises(ConfigError, match=r"no configuration file at .*x\.toml"):
        load_toml(file)
    file.write_text("a = 1\n[b]\nc = 'é'\n", encoding="utf-8")
    assert load_toml(file) == {"a": 1, "b": {"c": "é"}}
    file.write_text("a = \n")
    with pytest.raises(ConfigError, match=r"x\.toml: not valid TOML: .*line 1"):
        load_toml(file)


def test_the_tree_of_errors():
    """Each error is an IdcfError and a builtin exception."""
    builtin = {
        DataError: ValueError,
        ConfigError: ValueError,
        ArtifactError: ValueError,
        ColdUserError: LookupError,
    }
    for kind, parent in builtin.items():
        assert issubclass(kind, IdcfError)
        assert issubclass(kind, parent)


def test_unknown_name_message():
    assert unknown_name_message("model", "x", []) == "no model named 'x'; known: "
    assert "did you mean 'pmf'" in unknown_name_message("model", "pfm", ["pmf", "ease"])
