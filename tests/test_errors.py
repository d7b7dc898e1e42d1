"""Error texts, and values of configuration at their limits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import idcf
from idcf import errors
from idcf.config import (
    dataclass_from_dict,
    dataclass_to_dict,
    load_toml,
    parse_overrides,
    split_option_key,
)
from idcf.errors import (
    ConfigError,
    IdcfError,
    require_extra,
    require_positive_count,
    unknown_name_message,
)

NAMES = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=8)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    rate: float = 0.5
    limits: tuple[int, int] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Tree:
    name: str
    leaf: Leaf = field(default_factory=Leaf)
    leaves: tuple[Leaf, ...] = ()
    scale: float | None = None
    flags: dict[str, bool] = field(default_factory=dict)


TREES = st.builds(
    Tree,
    name=st.text(max_size=5),
    leaf=st.builds(Leaf, rate=st.floats(-9, 9), limits=st.tuples(st.integers(), st.integers())),
    leaves=st.lists(st.builds(Leaf, rate=st.floats(0, 1)), max_size=3).map(tuple),
    scale=st.none() | st.floats(-1e9, 1e9),
    flags=st.dictionaries(st.text(max_size=3), st.booleans(), max_size=3),
)


@pytest.mark.parametrize("n", [1, 10**12, np.int64(3), True])
def test_counts_that_are_accepted(n):
    require_positive_count(n)


@pytest.mark.parametrize("n", [0, -1, 1.0, 2.5, "3", None, float("nan"), np.float32(2), [1]])
def test_counts_that_are_refused_with_their_value(n):
    with pytest.raises(ConfigError) as caught:
        require_positive_count(n)
    assert str(caught.value) == f"n must be a whole number from 1, got {n!r}"


def test_the_message_of_a_missing_package_names_the_extra():
    require_extra("serve", "json", "numpy")
    message = r"^no_such_package is not installed; pip install 'idcf\[mcp\]'$"
    with pytest.raises(ConfigError, match=message):
        require_extra("mcp", "json", "no_such_package", "neither")


@given(st.lists(NAMES, unique=True, max_size=6), NAMES)
def test_the_message_names_the_kind_the_name_and_all_known_names_in_order(known, name):
    text = unknown_name_message("metric", name, iter(known))
    assert text.startswith(f"no metric named {name!r}; ")
    assert text.endswith(f"known: {', '.join(sorted(known))}")
    if name in known:
        assert f"did you mean {name!r}? " in text
    assert text.count("did you mean") <= 1


def test_every_error_of_the_package_has_one_public_base():
    kinds = [
        x for x in vars(errors).values() if isinstance(x, type) and x.__module__ == "idcf.errors"
    ]
    assert len(kinds) == 8
    for kind in kinds:
        assert issubclass(kind, IdcfError)
        assert kind.__name__ in errors.__doc__ or kind is IdcfError
        assert kind.__doc__
    assert issubclass(errors.OverloadedError, RuntimeError)
    assert idcf.DataError is errors.DataError


@given(TREES)
def test_nested_options_survive_json(tree):
    text = json.dumps(dataclass_to_dict(tree))
    assert dataclass_from_dict(Tree, json.loads(text)) == tree


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "Tree: option 'name' is {}: field required"),
        ({"name": 3}, "Tree: option 'name' is 3: "),
        (
            {"name": "a", "leaf": {"rte": 1}},
            "Tree, 'leaf': no option named 'rte'; did you mean 'rate'",
        ),
        ({"name": "a", "leaf": {"limits": [1]}}, r"option 'leaf\.limits' is \[1\]: a value is"),
        ({"name": "a", "leaf": 3}, "option 'leaf' is 3"),
        ({"name": "a", "leaves": [{"rate": "x"}]}, r"option 'leaves\.0\.rate' is 'x'"),
        ({"name": "a", "flags": {"x": "maybe"}}, r"option 'flags\.x' is 'maybe'"),
        ({"name": "a", "scale": "wide"}, "option 'scale' is 'wide'"),
    ],
)
def test_the_message_names_the_place_and_the_value(values, message):
    with pytest.raises(ConfigError, match=message):
        dataclass_from_dict(Tree, values)


def test_the_label_begins_the_message():
    with pytest.raises(ConfigError, match=r"^file\.toml, row 3: option 'name' is 3"):
        dataclass_from_dict(Tree, {"name": 3}, "file.toml, row 3")


def test_the_given_mapping_is_not_changed():
    values = {"name": "a", "leaf": {"rate": 1}}
    dataclass_from_dict(Tree, values)
    assert values == {"name": "a", "leaf": {"rate": 1}}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("idcf-nn.heads", ("idcf-nn", "heads")),
        ("idcf-nn.train.epochs", ("idcf-nn", "train.epochs")),
        ("train.epochs", ("", "train.epochs")),
        ("bias", ("", "bias")),  # an option of idcf-nn that is the name of a model as well
        ("bias.shrinkage", ("bias", "shrinkage")),
        ("pmf.heads", ("", "pmf.heads")),  # not among the names
        ("", ("", "")),
    ],
)
def test_the_model_of_an_option_key(key, expected):
    assert split_option_key(key, {"idcf-nn", "bias"}) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("3.0", 3.0), ("1e-3", 1e-3), ("true", True), ("True", "True"),
        ("[1, 2]", [1, 2]), ("'a'", "a"), ("relu", "relu"), ("", ""), ("a=b", "a=b"),
        ("inf", float("inf")), ("{a = 1}", {"a": 1}),
        ("[1,", "[1,"), ("00", "00"), ('"unclosed', '"unclosed'),
    ],
)  # fmt: skip
def test_the_value_of_an_override(text, value):
    parsed = parse_overrides([f"x={text}"])
    assert parsed == {"x": value}
    assert type(parsed["x"]) is type(value)


def test_the_last_override_of_a_name_counts_and_spaces_do_not():
    assert parse_overrides(["x=1", " x = 2 "]) == {"x": 2}
    assert parse_overrides([]) == {}


@pytest.mark.parametrize("pair", ["=", "x", " "])
def test_an_override_that_cannot_be_read_is_shown(pair):
    with pytest.raises(ConfigError, match=f"an override is written name=value, got {pair!r}"):
        parse_overrides([pair])


def test_an_empty_configuration_file_has_no_values(tmp_path):
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert load_toml(empty) == {}
