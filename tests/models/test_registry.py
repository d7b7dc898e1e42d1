"""Rows of the registry: grids, solvers, kinds of feedback, options."""

from dataclasses import fields

import pytest

from idcf.errors import ConfigError
from idcf.models.baselines import BiasModel
from idcf.models.options import BiasConfig
from idcf.models.registry import (
    MODELS,
    ModelEntry,
    all_models,
    configure,
    model_entry,
    require_option,
    resolve_model,
)


def test_a_grid_is_every_combination_of_the_options_not_given():
    entry = ModelEntry(BiasModel, BiasConfig, grid={"a": (1, 2), "b": (3, 4)})
    expected = [{"a": a, "b": b} for a in (1, 2) for b in (3, 4)]
    assert entry.expand_grid({}, implicit=False) == entry.expand_grid({}, implicit=True) == expected
    assert entry.expand_grid({"a": 9}, implicit=False) == [{"a": 9, "b": 3}, {"a": 9, "b": 4}]
    assert entry.expand_grid({"a": 9, "b": 8}, implicit=False) == [{"a": 9, "b": 8}]


def test_implicit_feedback_may_have_its_own_grid():
    entry = ModelEntry(BiasModel, BiasConfig, grid={"a": (1, 2)}, implicit_grid={"b": (3,)})
    assert entry.expand_grid({}, implicit=True) == [{"b": 3}]
    assert entry.expand_grid({"c": 0}, implicit=False) == [{"c": 0, "a": 1}, {"c": 0, "a": 2}]


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("name", all_models())
def test_every_point_of_a_grid_is_a_valid_config(name, implicit):
    for options in model_entry(name).expand_grid({}, implicit):
        config = configure(name, options)
        assert all(getattr(config, key) == value for key, value in options.items())


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if row.solver])
def test_solvers_are_found(name):
    assert callable(model_entry(name).load_solver())


def test_a_solver_may_be_given_as_a_function():
    entry = ModelEntry(BiasModel, BiasConfig, solver=test_solvers_are_found)
    assert entry.load_solver() is test_solvers_are_found


def test_a_model_trained_by_gradient_has_no_solver():
    with pytest.raises(ConfigError, match=r"MatrixFactorization has no solver.*by gradient"):
        model_entry("pmf").load_solver()


def test_a_name_resolves_to_the_model_of_the_feedback():
    assert resolve_model("idcf-bayes", implicit=False) == "idcf-bayes"
    assert resolve_model("idcf-bayes", implicit=True) == "idcf-takeup"
    assert resolve_model("als", implicit=True) == "als"
    with pytest.raises(ConfigError, match="'bias' needs ratings; use 'popularity'"):
        resolve_model("bias", implicit=True)
    with pytest.raises(ConfigError, match="'idcf-odds' is for data without ratings; use 'idcf-bay"):
        resolve_model("idcf-odds", implicit=False)


def test_an_unknown_model_is_named_with_a_near_one():
    with pytest.raises(ConfigError, match=r"'idcf-baye'.*idcf-bayes"):
        model_entry("idcf-baye")


def test_features_need_a_model_that_reads_them():
    require_option("idcf-bayes", "user_features")
    with pytest.raises(ConfigError, match="'als' reads no item features; idcf-bayes"):
        require_option("als", "item_features")


def test_a_row_that_contradicts_its_class_is_refused():
    entry = ModelEntry(BiasModel, BiasConfig, has_uncertainty=True)
    with pytest.raises(ConfigError, match="has_uncertainty of BiasModel is False, and True in its"):
        assert entry.model_class


@pytest.mark.parametrize("name", all_models())
def test_every_row_says_what_the_model_is_and_agrees_with_its_class(name):
    entry = model_entry(name)
    assert entry.summary.endswith(".")
    assert entry.model_class.inductive == entry.inductive
    reads_features = {"user_features", "item_features"} & {
        x.name for n in (name, entry.backbone) if n for x in fields(model_entry(n).config_class)
    }
    assert bool(reads_features) >= entry.model_class.reads_user_features  # what `idcf models` says


def test_a_class_that_cannot_be_built_is_refused():
    class OtherConstructor(BiasModel):
        def __init__(self, config, domain, extra):
            super().__init__(config, domain)

    with pytest.raises(ConfigError, match=r"built as OtherConstructor\(config, domain\).*extra"):
        _ = ModelEntry(OtherConstructor, BiasConfig).model_class
