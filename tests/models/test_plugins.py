"""Packages with models of their own that cannot be imported: warned of once and passed over."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from importlib import metadata

import pytest
from typer.testing import CliRunner

from idcf.cli import app
from idcf.errors import ConfigError
from idcf.models import plugins, registry
from idcf.training import presets

CACHES = (plugins.load_plugins, registry.plugin_models, presets._all_presets)


@pytest.fixture
def broken_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Add entry points of both groups whose module does not exist."""

    def with_broken(*, group: str) -> list[metadata.EntryPoint]:
        broken = metadata.EntryPoint("broken", "no_such_module:ROWS", group)
        return [*metadata.entry_points(group=group), broken]

    monkeypatch.setattr(plugins, "entry_points", with_broken)
    for cached in CACHES:
        cached.cache_clear()
    yield
    for cached in CACHES:
        cached.cache_clear()


def test_other_models_work_and_one_warning_names_the_package(broken_package: None) -> None:
    message = r"entry point 'broken' of the package .*no_such_module.* in the group 'idcf.models'"
    with pytest.warns(RuntimeWarning, match=message):
        assert "als" in registry.all_models()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.model_entry("melu").summary  # of another package
    with pytest.warns(RuntimeWarning, match="group 'idcf.presets' cannot be read"):
        assert "clean" in presets.preset_names()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_unknown_model_says_which_package_could_not_be_read(broken_package: None) -> None:
    with pytest.raises(ConfigError, match=r"no model named 'mine'.*'broken'.*No module named"):
        registry.model_entry("mine")


def test_the_doctor_names_it(broken_package: None) -> None:
    result = CliRunner().invoke(app, ["doctor", "--json"])
    checks = json.loads(result.stdout)["checks"]
    problems = [x["message"] for x in checks if x["name"] == "plugin"]
    assert len(problems) == 2
    assert all("'broken'" in x and "No module named" in x for x in problems)
    assert result.exit_code == 1
