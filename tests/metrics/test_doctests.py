"""The examples in the docstrings of the metrics, run."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

from idcf import metrics

MODULES = ["idcf.metrics", *(f"idcf.metrics.{m.name}" for m in iter_modules(metrics.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


@pytest.mark.parametrize("name", metrics.__all__)
def test_every_public_function_has_an_example(name: str) -> None:
    member = getattr(metrics, name)
    assert inspect.isclass(member) or ">>>" in member.__doc__
