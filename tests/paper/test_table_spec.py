"""The tables of the paper as files: what they name exists, and every system in them can be run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tables_world import small

from idcf.data.datasets.catalog import SOURCES
from idcf.errors import ConfigError
from idcf.evaluation.tables import Cell
from idcf.models.registry import all_models, model_entry, resolve_model
from idcf.paper import table_spec
from idcf.paper.published_numbers import paper_numbers
from idcf.paper.reproduce import reproduce
from idcf.paper.run_plan import Run, runs_of
from idcf.paper.table_spec import Column, find, load, load_all
from idcf.training.presets import has_row, preset_names

ALL_BUILT = True  # True once every system that a table names has its row: then none is excused

ROOT = Path(__file__).parents[2]
NAMED = sorted({model for each in load_all().values() for model in each.systems} - {"random"})
_QUICK = {  # what would take long even here
    "idcf-bayes": {"burn_in": 1, "sweeps": 2},
    "item-knn": {"neighbours": 20, "reg": 10.0},
    "ease": {"neighbours": 50, "reg": 50.0},
    "als": {"embedding_size": 4, "reg": 10.0},
}


def test_every_table_is_there() -> None:
    assert list(load_all()) == ["table2", "table3", "table4", "table6", "table7"]
    for each in load_all().values():
        assert each.title.startswith(f"Table {each.name[5:]}. ")
        assert each.shows
        assert each.seeds == 3
        assert len(each.paper) == len(each.datasets) * len(each.splits)


def test_simple_systems_stand_in_every_table() -> None:
    for each in load_all().values():
        explicit = not SOURCES[each.datasets[0]].implicit
        assert {"als", "idcf-bayes", *(["item-mean", "bias"] if explicit else [])} <= {
            *each.systems
        }
        if each.name != "table6":
            assert {"random", "popularity", "item-knn", "ease"} <= {*each.systems}


@pytest.mark.parametrize("name", NAMED)
def test_every_system_is_built(name: str) -> None:
    if name not in all_models() and not ALL_BUILT:
        pytest.skip(f"{name} has no row in all_models() yet")
    model_entry(name)
    listed = {p for each in load_all().values() for p in each.systems.get(name, ())}
    if "published" in listed or ALL_BUILT:
        assert ("published" in listed) is has_row("published", name)


def _once() -> list[Run]:
    """Every system and preset, on each kind of data, in the first training that it takes."""
    found: dict[tuple[object, ...], Run] = {}
    for run in runs_of(load_all().values(), datasets=["ml-1m", "amazon-books"], seeds=1):
        implicit = SOURCES[run.dataset].implicit
        if run.cut.gamma is None and run.split in (
            "random-10%-seed0, delta=30",
            "official, delta=20",
        ):
            key = (run.model, run.preset, implicit)
            found[key] = run if run.users == "new" else found.get(key, run)
    return list(found.values())


def _tiny(run: Run) -> Run:
    """One epoch, or as little as a solver can do."""
    if run.model == "random":
        return run
    name = resolve_model(run.model, SOURCES[run.dataset].implicit)
    options = _QUICK.get(name, {}) if model_entry(name).solver else {"train.epochs": 1}
    return run._replace(options=tuple(options.items()))


def test_every_system_takes_one_step(tmp_path: Path) -> None:
    runs = [_tiny(run) for run in _once()]
    found = reproduce(runs, tmp_path, opened=small)
    assert not found.failed, found.failed
    assert len(found.made) == len(runs) >= 25
    built = {name for name in NAMED if name in all_models()}
    assert {run.model for run in found.made} == {*built, "random"}


def test_numbers_that_stand_in_two_tables_agree() -> None:
    """But for their rounding: table 6 has a digit more."""
    for each in load_all().values():
        for column in each.columns():
            for model, value in each.published(column).items():
                if column.split in ("", "delta=30"):
                    usual = paper_numbers().numbers[
                        Cell(column.dataset, column.users, column.metric, model)
                    ]
                    assert abs(usual - value) < 0.00051, (each.name, column, model)


def test_two_tables_ask_for_the_same_settings() -> None:
    """Rows know no table: a system has one setting for a data set."""
    seen: dict[tuple[object, ...], Run] = {}
    for each in load_all().values():
        for run in runs_of([each]):
            assert seen.setdefault(run.key(), run).options == run.options


def test_slips_of_the_paper_are_mended_and_said() -> None:
    six, seven = find("table6"), find("table7")
    assert six.published(Column("ml-1m", "gamma=0.68", "new", "rmse")) == {"idcf-nn": 1.001}
    books = {u: seven.published(Column("amazon-books", "", u, "auc")) for u in ("few-shot", "new")}
    assert (books["few-shot"]["idcf-gc"], books["new"]["idcf-gc"]) == (0.938, 0.946)
    assert "printed as 0.1001" in (table_spec._FOLDER / "table6.toml").read_text()
    assert (
        "printed as 0.938, 0.946, 0.921, 0.930"
        in (ROOT / "src/idcf/paper/tables/table7.toml").read_text()
    )


def test_an_empty_cell_of_the_paper_is_none() -> None:
    two = find("table2")
    assert "f-eae" not in two.published(Column("douban", "", "few-shot", "rmse"))
    assert two.published(Column("douban", "", "all", "rmse"))["f-eae"] == 0.738


_GOOD = """
title = "Table 9. x"
shows = "y"
datasets = ["ml-100k"]
groups = ["new"]
metrics = ["rmse"]
[systems]
bias = ["clean"]
[[paper]]
dataset = "ml-100k"
columns = ["new rmse"]
systems = { bias = [1.0] }
"""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("shows", "show", "no option named 'show'; did you mean 'shows'"),
        ('["new"]', '["news"]', "no group of users named 'news'; did you mean 'new'"),
        ('["rmse"]', '["rsme"]', "no metric of these datasets named 'rsme'; did you mean 'rmse'"),
        ('["rmse"]', '["auc"]', "no metric of these datasets named 'auc'"),
        ('datasets = ["ml-100k"]', 'datasets = ["ml-100"]', "did you mean 'ml-100k'"),
        ('["clean"]', '["clear"]', "no preset named 'clear'; did you mean 'clean'"),
        ("columns", "column", "'paper': no option named 'column'; did you mean 'columns'"),
        ('["new rmse"]', '["newrmse"]', "no column named 'newrmse'; did you mean 'new rmse'"),
        ("[1.0]", "[1.0, 2.0]", "2 numbers of ml-100k for 1 columns"),
        ("[1.0]", '["x"]', "'x' of 'bias' is no number"),
        ("{ bias", "{ biass", "no system named 'biass'; did you mean 'bias'"),
        ("[systems]", "pairs_only = ['igmc']\n[systems]", "no system named 'igmc'"),
        ("[systems]", "[splits]\na = { gama = 0.5 }\n[systems]", "did you mean 'gamma'"),
        ('shows = "y"', 'shows = "y"\nseeds = 0', "seeds is 0"),
        ('shows = "y"', 'shows = "y"\nseeds = "three"', "'seeds' is 'three'"),
        ("title", "title title", "not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(
    tmp_path: Path, before: str, after: str, says: str
) -> None:
    path = tmp_path / "table9.toml"
    path.write_text(_GOOD)
    assert load(path).name == "table9"
    path.write_text(_GOOD.replace(before, after, 1))
    with pytest.raises(ConfigError, match=says):
        load(path)


def test_a_table_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no table named 'table5'"):
        find("table5")


def test_settings_are_for_all_or_for_one(tmp_path: Path) -> None:
    path = tmp_path / "table9.toml"
    more = '[settings."*"]\n"train.epochs" = 3\n[settings.ml-100k]\n"bias.strength" = 2.0\n'
    path.write_text(_GOOD.replace("[[paper]]", more + "[[paper]]"))
    each = load(path)
    assert each.options("ml-100k", "bias") == {"train.epochs": 3, "strength": 2.0}
    assert each.options("douban", "bias") == {"train.epochs": 3}


def test_an_installed_package_has_the_tables(tmp_path: Path) -> None:
    """The tables are files of the package."""
    home = tmp_path / "checkout"
    for pattern in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/idcf/paper/tables/*.toml",
    ):
        for path in ROOT.glob(pattern):
            place = home / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    for package in ("src/idcf", "src/idcf/paper"):
        (home / package / "__init__.py").write_text("")
    build = "from setuptools import build_meta; print(build_meta.build_wheel('out'))"
    (home / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=home, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    [wheel] = (home / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        held = {
            Path(name).name: file.read(name)
            for name in file.namelist()
            if name.startswith("idcf/paper/tables/")
        }
    assert held == {path.name: path.read_bytes() for path in table_spec._FOLDER.glob("table*.toml")}


def test_runs_of_one_preset() -> None:
    found = {preset: runs_of([find("table4")], presets=[preset]) for preset in preset_names()}
    assert all(run.preset == preset for preset, runs in found.items() for run in runs)
    assert sum(map(len, found.values())) == len(runs_of([find("table4")]))
    with pytest.raises(ConfigError, match="clean"):
        runs_of([find("table4")], presets=["claen"])
