"""The battery over every row of the table, and the rules that hold for the table as a whole."""

import inspect

import pytest
import torch
from torch import nn

from idcf import testing
from idcf.errors import ConfigError
from idcf.models import base
from idcf.models.registry import all_models, configure, model_entry
from idcf.testing import checks

torch.set_num_threads(1)


CASES = [check for name in all_models() for check in testing.model_checks(name)]


def _case(check):
    name, what = check.args[0], check.func.__name__.removeprefix("check_")
    where = "implicit" if True in check.args else "ratings"
    return pytest.param(check, id=f"{name}-{where}-{what}")


@pytest.mark.parametrize("check", [_case(c) for c in CASES])
def test_every_model(check):
    check()


def test_every_row_is_covered():
    """Rows with a solver, with a backbone and with neither all get the battery of their kind."""
    for name, found in all_models().items():
        run = {c.func.__name__ for c in CASES if c.args[0] == name}
        assert {c.__name__ for c in checks._ALWAYS} <= run, name
        assert ("check_gradients_reach_every_parameter" in run) is checks.descended(found), name
        inductive = {c.__name__ for c in checks._INDUCTIVE} <= run
        assert inductive is ("check_says_whom_it_cannot_know" not in run), name
        picky = found.ratings_only or found.implicit_only
        assert ("check_refuses_what_it_cannot_read" in run) is picky, name
        both = {c.args[1] for c in CASES if c.args[0] == name and len(c.args) > 1}
        takes = {False: not found.implicit_only, True: not found.ratings_only}
        assert both == {kind for kind, fits in takes.items() if fits}, name


def test_every_check_is_used():
    written = {n for n, _ in inspect.getmembers(checks, inspect.isfunction) if n[:6] == "check_"}
    assert written == {c.func.__name__ for c in CASES}


def test_every_model_of_the_package_has_a_row():
    """A concrete class that no row builds would escape the battery."""
    built = {found.model_class for found in all_models().values()}
    concrete = {c for c in _family(base.Model) if not inspect.isabstract(c)}
    assert {c for c in concrete if c.__module__.startswith("idcf.")} == built


def test_abstract_or_final():
    """A class that can be built has no children and overrides nothing already implemented."""
    abstract = {c for c in vars(base).values() if inspect.isclass(c) and issubclass(c, base.Model)}
    assert all(inspect.isabstract(c) for c in abstract)
    for kind in _family(base.Model) - abstract:
        if not kind.__module__.startswith("idcf."):
            continue
        assert not inspect.isabstract(kind), f"{kind} is abstract and does not live in models/base"
        assert not kind.__subclasses__(), f"{kind} is final"
        for parent in abstract & set(kind.__mro__):
            done = {n for n, f in vars(parent).items() if inspect.isfunction(f) and _written(n, f)}
            assert not done & vars(kind).keys(), (kind, done & vars(kind).keys())


def test_no_class_is_long():
    for kind in {c for c in _family(nn.Module) if c.__module__.startswith("idcf.")}:
        assert len(inspect.getsource(kind).splitlines()) <= 150, kind


def test_models_declare_what_they_can_do():
    for name, found in all_models().items():
        assert isinstance(found.model_class.inductive, bool), name
        assert isinstance(found.model_class.reads_history, bool), name
        assert found.model_class.__doc__, name
        assert not (found.solver and found.backbone), name


def test_a_wrapper_names_a_backbone():
    for name, found in all_models().items():
        if found.backbone:
            assert issubclass(model_entry(found.backbone).model_class, base.Backbone), name


def test_the_grid_lists_options_that_exist():
    for name, found in all_models().items():
        for key, values in found.grid.items():
            for value in values:
                assert getattr(configure(name, {key: value}), key) == value


def test_unknown_names_are_told():
    with pytest.raises(ConfigError, match="did you mean 'nnmf'"):
        model_entry("nnfm")
    with pytest.raises(ConfigError, match=r"model 'pmf'.*'embeding_size'.*'embedding_size'"):
        configure("pmf", {"embeding_size": 3})
    with pytest.raises(ConfigError, match=r"'heads' is 'two'"):
        configure("idcf-nn", {"heads": "two"})


def _family(kind):
    return {c for child in kind.__subclasses__() for c in {child} | _family(child)}


def _written(name, function):
    dunder = name.startswith("__")
    return not dunder and not getattr(function, "__isabstractmethod__", False)
