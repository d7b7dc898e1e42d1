"""The tables of the paper as files: the names in them exist, and each system can be run."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tables_world import small_dataset

from idcf.data.datasets.catalog import DATASET_SOURCES
from idcf.errors import ConfigError
from idcf.evaluation import run as evaluation_run
from idcf.evaluation.measure import metric_names
from idcf.evaluation.tables import CellKey
from idcf.models.registry import model_entry, resolve_model
from idcf.paper import table_spec
from idcf.paper.reproduce import reproduce
from idcf.paper.run_plan import Run, plan_runs
from idcf.paper.table_spec import (
    TableColumn,
    find_table,
    load_table,
    load_tables,
    paper_numbers,
)
from idcf.training.presets import has_preset_row, preset_names
from idcf.training.train import TrainingJob, TrainingResult, train

ROOT = Path(__file__).parents[2]
PAPER_TABLES = [table for table in load_tables().values() if table.paper]
SYSTEMS = sorted(
    {model for table in load_tables().values() for model in table.systems} - {"random"}
)
_DATASETS = ["ml-1m", "ml-1m-cold", "amazon-books"]
_SPLITS = ("random-10%-seed0, delta=30", "official, delta=1", "official, delta=20")
_QUICK_OPTIONS = {  # of solvers that are slow even on small data
    "idcf-bayes": {"burn_in": 1, "sweeps": 2},
    "idcf-bayes-features": {"burn_in": 1, "sweeps": 2},
    "item-knn": {"neighbors": 20, "reg": 10.0},
    "ease": {"neighbors": 50, "reg": 50.0},
    "als": {"embedding_size": 4, "reg": 10.0},
}


def test_every_table_is_there() -> None:
    assert [table.name for table in PAPER_TABLES] == [
        "table2", "table3", "table4", "table6", "table7"
    ]  # fmt: skip
    names = {x.name for x in PAPER_TABLES}
    assert {*load_tables()} == {"cold-start", "splits", "splits-implicit", *names}
    for table in PAPER_TABLES:
        assert table.title.startswith(f"Table {table.name[5:]}. ")
        assert table.shows
        assert table.seeds == 3
        assert len(table.paper) == len(table.datasets) * len(table.splits)


def test_simple_baselines_are_in_every_table() -> None:
    for table in PAPER_TABLES:
        explicit = not DATASET_SOURCES[table.datasets[0]].implicit
        ours = ["idcf-bayes", "item-mean", "bias"] if explicit else ["idcf-odds"]
        baselines = {"als", *ours}
        assert baselines <= {*table.systems}
        if table.name not in ("table6", "cold-start"):
            assert {"random", "popularity", "item-knn", "ease"} <= {*table.systems}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_registered(name: str) -> None:
    model_entry(name)
    presets = {p for table in load_tables().values() for p in table.systems.get(name, ())}
    assert ("published" in presets) is has_preset_row("published", name)


def _one_run_per_system() -> list[Run]:
    """Return one run of each system and preset, for ratings and for implicit feedback."""
    runs: dict[tuple[object, ...], Run] = {}
    for run in plan_runs(load_tables().values(), datasets=_DATASETS, n_seeds=1):
        implicit = DATASET_SOURCES[run.dataset].implicit
        if run.split in _SPLITS:
            key = (run.model, run.preset, implicit)
            runs[key] = run if run.users == "new" else runs.get(key, run)
    return list(runs.values())


def _train_quickly(model: str, job: TrainingJob, **arguments: Any) -> TrainingResult:
    """Train for one epoch, or with the quick options of a solver."""
    name = resolve_model(model, job.split.train.implicit)
    is_solved = model_entry(name).solver is not None
    options = _QUICK_OPTIONS.get(name, {}) if is_solved else {"train.epochs": 1}
    return train(model, job, **{**arguments, "options": options})


def test_every_system_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_run, "train", _train_quickly)
    runs = _one_run_per_system()
    outcome = reproduce(runs, tmp_path, load_dataset=small_dataset)
    assert not outcome.failed, outcome.failed
    assert len(outcome.completed) == len(runs) >= 25
    assert {run.model for run in outcome.completed} == {*SYSTEMS, "random"}


def test_numbers_that_are_in_two_tables_agree() -> None:
    """Table 6 prints one digit more than the others."""
    for table in load_tables().values():
        for column in table.columns():
            for model, value in table.published_values(column).items():
                if column.split in ("", "delta=30"):
                    cell = CellKey(column.dataset, column.users, column.metric, model)
                    assert abs(paper_numbers().numbers[cell] - value) < 0.00051, (table.name, cell)


def test_errors_of_the_paper_are_corrected_and_noted() -> None:
    table6, table7 = find_table("table6"), find_table("table7")
    column = TableColumn("ml-1m", "gamma=0.68", "new", "rmse")
    assert table6.published_values(column) == {"idcf-nn": 1.001}
    auc = {
        group: table7.published_values(TableColumn("amazon-books", "", group, "auc"))
        for group in ("few-shot", "new")
    }
    assert (auc["few-shot"]["idcf-gc"], auc["new"]["idcf-gc"]) == (0.938, 0.946)
    folder = table_spec._FOLDER
    assert "printed as 0.1001" in (folder / "table6.toml").read_text()
    assert "printed as 0.938, 0.946, 0.921, 0.930" in (folder / "table7.toml").read_text()


def test_an_empty_cell_of_the_paper_has_no_number() -> None:
    table2 = find_table("table2")
    assert "f-eae" not in table2.published_values(TableColumn("douban", "", "few-shot", "rmse"))
    assert table2.published_values(TableColumn("douban", "", "all", "rmse"))["f-eae"] == 0.738


_VALID_TABLE = """
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
    ("before", "after", "message"),
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
        ("[1.0]", '["x"]', "'x' of 'bias' is not a number"),
        ("{ bias", "{ biass", "no system named 'biass'; did you mean 'bias'"),
        ("[systems]", "pairs_only = ['igmc']\n[systems]", "no system named 'igmc'"),
        ("[systems]", "[splits]\na = { gama = 0.5 }\n[systems]", "did you mean 'gamma'"),
        ('shows = "y"', 'shows = "y"\nseeds = 0', "seeds is 0"),
        ("[systems]", "[only]\nbias = ['ml-1m']\n[systems]", "no dataset named 'ml-1m'"),
        ("[systems]", "[only]\nals = ['ml-100k']\n[systems]", "no system named 'als'"),
        ('shows = "y"', 'shows = "y"\nreference = "als"', "no system named 'als'"),
        (
            "[systems]",
            "[repeats]\nml-100k = {draws = 2}\n[systems]",
            "need the ratio test_to_train",
        ),
        ("[systems]", "[repeats]\nml-100k = {seeds = 0}\n[systems]", "of at least 1"),
        (
            "[systems]",
            "[repeats]\nml-100k = {draws = 2, seeds = 2, test_to_train = 0.1}\n[systems]",
            "draws or several seeds, not both",
        ),
        ('shows = "y"', 'shows = "y"\nseeds = "three"', "'seeds' is 'three'"),
        ("title", "title title", "not valid TOML"),
    ],
)
def test_an_invalid_file_is_an_error(tmp_path: Path, before: str, after: str, message: str) -> None:
    path = tmp_path / "table9.toml"
    path.write_text(_VALID_TABLE)
    assert load_table(path).name == "table9"
    path.write_text(_VALID_TABLE.replace(before, after, 1))
    with pytest.raises(ConfigError, match=message):
        load_table(path)


def test_a_table_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="no table named 'table5'"):
        find_table("table5")


def test_an_installed_package_has_the_tables(tmp_path: Path) -> None:
    """The wheel holds the TOML files of the tables."""
    checkout = tmp_path / "checkout"
    for pattern in (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src/idcf/paper/tables/*.toml",
    ):
        for path in ROOT.glob(pattern):
            target = checkout / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    for package in ("src/idcf", "src/idcf/paper"):
        (checkout / package / "__init__.py").write_text('__version__ = "0"\n')
    build = "from setuptools import build_meta; print(build_meta.build_wheel('out'))"
    (checkout / "out").mkdir()
    process = subprocess.run(
        [sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    [wheel] = (checkout / "out").glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        tables = {
            Path(name).name: file.read(name)
            for name in file.namelist()
            if name.startswith("idcf/paper/tables/")
        }
    assert tables == {path.name: path.read_bytes() for path in table_spec._FOLDER.glob("*.toml")}


def test_runs_of_one_preset() -> None:
    table = find_table("table4")
    runs_by_preset = {preset: plan_runs([table], presets=[preset]) for preset in preset_names()}
    assert all(run.preset == preset for preset, runs in runs_by_preset.items() for run in runs)
    assert sum(map(len, runs_by_preset.values())) == len(plan_runs([table]))
    with pytest.raises(ConfigError, match="clean"):
        plan_runs([find_table("table4")], presets=["claen"])


def test_a_column_has_a_metric_that_its_dataset_has() -> None:
    for table in load_tables().values():
        columns = list(table.columns())
        assert len(columns) == len(set(columns))
        for column in columns:
            assert column.metric in metric_names(DATASET_SOURCES[column.dataset].implicit)
        names = {(c.dataset, c.users, c.metric) for c in columns}
        printed = {
            (block.dataset, *label.split(" ", 1))
            for block in table.paper
            for label in block.columns
        }
        assert printed <= names, "every number of the paper has a column"


def test_the_columns_of_a_table_are_in_the_order_of_its_keys() -> None:
    table = find_table("table4")
    first = next(iter(table.columns()))
    assert first == TableColumn(table.datasets[0], "", table.groups[0], table.metrics[0])
    datasets = [column.dataset for column in table.columns()]
    assert datasets == sorted(datasets, key=table.datasets.index)


def test_every_published_number_is_in_exactly_one_column() -> None:
    for table in load_tables().values():
        by_column = [len(table.published_values(column)) for column in table.columns()]
        n_numbers = sum(len(list(block.cells())) for block in table.paper)
        assert sum(by_column) == n_numbers


def test_the_reference_holds_the_numbers_of_the_standard_splits() -> None:
    numbers = paper_numbers().numbers
    for table in load_tables().values():
        for column in table.columns():
            if not column.split:
                for model, value in table.published_values(column).items():
                    cell = CellKey(column.dataset, column.users, column.metric, model)
                    assert numbers[cell] == value
