"""`idcf models`: the list of models, and the options of each."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from calls import call

from idcf import ConfigError
from idcf.models.registry import MODELS, all_models, configure, model_entry
from idcf.training.presets import stage_configs


def test_every_model_has_a_line() -> None:
    text = call("models")
    rows = json.loads(call("models", "--json"))
    assert [x["model"] for x in rows] == list(all_models())
    for row in rows:
        assert f"{row['model']:20} {', '.join(row['abilities'])}" in text.splitlines()
    heading = text.splitlines().index("of the paper, and of installed packages:")
    assert heading == len(MODELS) + 1  # below an empty line


def test_the_abilities_are_those_of_the_registry() -> None:
    abilities = {x["model"]: x["abilities"] for x in json.loads(call("models", "--json"))}
    assert abilities["idcf-bayes"] == [
        *("new users", "ratings", "clicks (as idcf-takeup)", "uncertainty", "features", "shards")
    ]
    assert abilities["slim"] == ["new users", "clicks"]
    assert abilities["bias"] == ["new users", "ratings", "shards"]
    assert abilities["pmf"] == ["ratings", "clicks"]


@pytest.mark.parametrize("name", list(all_models()))
def test_every_model_has_its_options(name: str) -> None:
    values = json.loads(call("models", name, "--json"))
    options = {x["name"]: x for x in values["options"]}
    config = configure(name, stage_configs(name)[name].options)
    for field in fields(config):
        default = json.loads(json.dumps(getattr(config, field.name)))
        assert options[field.name]["default"] == ("inf" if default == float("inf") else default)
    assert len(options) == len(values["options"])
    assert ("train.epochs" in options) == (model_entry(name).solver is None)
    assert values["description"]
    for option in options.values():  # each can be given
        key, value = option["name"], option["default"]
        assert stage_configs(name, {key: tuple(value) if isinstance(value, list) else value})


def test_the_options_are_printed_with_type_default_and_description() -> None:
    lines = [" ".join(x.split()) for x in call("models", "idcf-nn").splitlines()]
    assert "heads int 4 attention heads H of the relation model; from 1 to 64" in lines
    assert any(x.startswith("pooling mean|sum|root root of item vectors") for x in lines)
    assert "scaled bool True" in lines
    assert any(x.startswith("n_attended_users int 200 key users that") for x in lines)  # above
    lines = [" ".join(x.split()) for x in call("models", "als").splitlines()]
    grids = (
        "above 0 to 1000000000; tries with ratings: 5.0, 10.0, 20.0; tries with clicks: 1.0, 10.0"
    )
    assert f"reg float 10.0 λ; {grids}" in lines
    assert "blocks int or None None T; None: 4, or 1 from" in " ".join(
        call("models", "idcf-bayes").split()
    )


def test_an_unknown_model() -> None:
    with pytest.raises(ConfigError, match="no model named 'asl'; did you mean 'als'"):
        call("models", "asl")


@pytest.mark.parametrize("name", list(all_models()))
def test_types_are_words(name: str) -> None:
    types = {x["name"]: x["type"] for x in json.loads(call("models", name, "--json"))["options"]}
    assert not [x for x in types.values() if "[" in x or "." in x]
    assert types.get("history_lengths", "pair of int") == "pair of int"
