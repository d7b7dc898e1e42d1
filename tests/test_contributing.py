"""The examples of CONTRIBUTING.md: a model in the library, and a model in another package."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import idcf.testing
from idcf.models.registry import MODELS, ModelEntry
from idcf.testing import worlds

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of one language in a section."""
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.S | re.M)
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


MODULE, ROW, TEST = blocks("A model in the library", "python")
PLUGIN, PLUGIN_TEST = blocks("A model in a package of its own", "python")
[PLUGIN_PROJECT] = blocks("A model in a package of its own", "toml")


@pytest.fixture
def model_in_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Import the example module and add its row to the registry for the time of a test."""
    path = tmp_path / "nsvd.py"
    path.write_text(MODULE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("nsvd_example", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "nsvd_example", module)
    spec.loader.exec_module(module)
    [(name, entry)] = eval(f"{{{ROW}}}", {**vars(module), "ModelEntry": ModelEntry}).items()
    monkeypatch.setitem(MODELS, name, entry)
    yield name
    worlds.trained_in_world.cache_clear()


def test_the_model_passes_the_shared_checks(model_in_registry: str) -> None:
    scope: dict[str, Any] = {"pytest": pytest, "idcf": idcf}
    exec(TEST, scope)
    test = scope[f"test_{model_in_registry}"]
    [mark] = test.pytestmark
    checks = list(mark.args[1])
    assert len(checks) > 20
    for check in checks:
        test(check)


def test_the_page_on_new_models_shows_the_same_package() -> None:
    page = (ROOT / "docs" / "howto" / "new-model.md").read_text(encoding="utf-8")
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.S)
    assert shown == [PLUGIN_PROJECT, PLUGIN, PLUGIN_TEST]


def test_the_row_and_the_test_are_short() -> None:
    assert len(ROW.splitlines()) == 1
    assert len([line for line in TEST.splitlines() if line]) == 3


def test_a_package_adds_a_model(tmp_path: Path) -> None:
    """The package is installed into a folder of its own, without the network."""
    project, target = tmp_path / "project", tmp_path / "target"
    project.mkdir()
    (project / "pyproject.toml").write_text(PLUGIN_PROJECT, encoding="utf-8")
    (project / "idcf_cosine.py").write_text(PLUGIN, encoding="utf-8")
    (project / "test_cosine.py").write_text(PLUGIN_TEST, encoding="utf-8")
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    run("pip", "install", "--quiet", *offline, "--target", str(target), ".", folder=project)
    (project / "idcf_cosine.py").unlink()  # the tests import the installed module
    options = ("-q", "-W", "error", "-p", "no:cacheprovider")
    report = run("pytest", *options, folder=project, import_from=target)
    n_checks = len(idcf.testing.model_checks("bias"))  # of the same kind: a solver, ratings only
    assert f"{n_checks} passed" in report


def run(module: str, *arguments: str, folder: Path, import_from: Path | None = None) -> str:
    """Run a module of Python in a folder and return its output."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if import_from is not None:
        environment["PYTHONPATH"] = str(import_from)
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_linked_files_exist() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / path).exists(), path
