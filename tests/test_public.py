"""The public names, how long their import takes, and what it imports."""

import fnmatch
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import idcf

PACKAGE = Path(idcf.__file__).parent
NAMES = [
    "Recommender",
    "Interactions",
    "read_interactions",
    "all_models",
    "evaluate",
    "IdcfError",
    "DataError",
    "ConfigError",
    "ColdUserError",
    "ArtifactError",
    "Recommendation",
    "Recommendations",
    "RecommendationBatch",
    "Explanation",
    "Reason",
    "Cohort",
    "Question",
    "Questions",
    "SimilarUser",
    "SimilarUsers",
    "PredictionInterval",
    "Comparison",
    "ModelDifference",
    "__version__",
]
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages([str(PACKAGE)], "idcf.")
    if not m.name.endswith("__main__")
)


def test_the_public_names():
    assert idcf.__all__ == NAMES
    assert dir(idcf) == sorted(NAMES)


def public_functions():
    """Yield the public functions and methods by name, with the text of their help."""
    for module in map(importlib.import_module, ("idcf", "idcf.hub", "idcf.mlflow")):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) and not issubclass(value, Exception):
                for key in dir(value):
                    function = getattr(value, key)
                    is_ours = (getattr(function, "__module__", None) or "").startswith("idcf")
                    if inspect.isroutine(function) and is_ours and not key.startswith("_"):
                        yield f"{name}.{key}", function, inspect.getdoc(function)
            elif inspect.isfunction(value):
                yield name, value, inspect.getdoc(value)
    yield "Recommender", idcf.Recommender.__init__, inspect.getdoc(idcf.Recommender)


@pytest.mark.parametrize(
    ("function", "text"), [pytest.param(f, text, id=name) for name, f, text in public_functions()]
)
def test_help_names_every_parameter_and_its_type(function, text):
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self" or parameter.kind is parameter.VAR_KEYWORD:
            continue
        assert parameter.annotation not in ("Any", "Any | None", parameter.empty), name
        assert re.search(rf"\b{name}\b", text), name


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_imported(name):
    assert getattr(idcf, name) is not None
    scope = {}
    exec(f"from idcf import {name}", scope)  # the form that users write
    assert scope[name] is getattr(idcf, name)


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Recomender'"):
        _ = idcf.Recomender


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported_and_has_a_docstring(name):
    assert importlib.import_module(name).__doc__


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light():
    heavy = "torch", "numpy", "matplotlib", "fastapi", "typer", "pandas", "polars", "pyarrow"
    loaded = python("import idcf, sys; print(*{m.partition('.')[0] for m in sys.modules})").split()
    assert not set(heavy) & set(loaded)


def test_import_is_quick():
    """Take the best of three: the machine may be busy."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        python("import idcf")
        seconds.append(time.perf_counter() - start)
        if seconds[-1] < 1.5:
            return
    pytest.fail(f"import idcf took {min(seconds):.2f} s")


def test_the_recommender_needs_no_plots_no_server_and_no_training():
    loaded = python(
        "import idcf, sys; idcf.Recommender, idcf.all_models; print(*sys.modules)"
    ).split()
    assert not {"matplotlib", "fastapi", "typer", "pandas"} & set(loaded)
    assert not [
        m for m in loaded if m.startswith(("idcf.training", "idcf.evaluation", "idcf.paper"))
    ]


def test_files_that_are_not_code_are_shipped():
    """A wheel holds the files that package-data names, and no others."""
    project = PACKAGE.parents[1] / "pyproject.toml"
    if not project.exists():
        pytest.skip("installed, not a checkout")
    patterns = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]["idcf"]
    for file in PACKAGE.rglob("*"):
        name = file.relative_to(PACKAGE).as_posix()
        if file.is_file() and file.suffix not in (".py", ".pyc"):
            assert any(fnmatch.fnmatch(name, p) for p in patterns), name
