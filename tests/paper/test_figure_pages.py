"""The page of figures and its pictures, and the verbs `reproduce` and `report` for figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tables_world import small_dataset
from typer.testing import CliRunner

from idcf.cli import app
from idcf.errors import ConfigError
from idcf.paper import figure_pages, figure_runs
from idcf.paper.figure_catalog import FIGURES
from idcf.paper.figure_pages import outdated_pictures, render_figures, write_pictures
from idcf.paper.studies.study import FigureRow

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
RESULTS, PAGES = ROOT / "experiments/results", ROOT / "docs/results"


def copy_rows(target: Path, name: str) -> list[FigureRow]:
    """Copy the committed rows of a figure; return them."""
    study = FIGURES[name].study
    path = figure_runs.rows_path(target, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(figure_runs.rows_path(RESULTS, study).read_bytes())
    return figure_runs.read_rows(target, study)


def test_the_committed_page_and_pictures_are_what_the_rows_render_to() -> None:
    page, pictures = render_figures(RESULTS)
    assert (PAGES / figure_pages.PAGE).read_text(encoding="utf-8") == page, "run `idcf report`"
    assert outdated_pictures(PAGES, pictures) == [], "run `idcf report`"
    committed = {path.name for path in PAGES.glob("figure-*.png")}
    assert committed == {picture.name for picture in pictures}, "delete what no figure draws"


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_section(name: str, tmp_path: Path) -> None:
    (page, pictures) = render_figures(tmp_path, {name: FIGURES[name]})
    assert pictures == []
    assert f"Not measured yet: `idcf reproduce {name}`" in page
    assert FIGURES[name].claim in page
    assert FIGURES[name].certainty in page


def test_a_picture_is_drawn_again_when_its_rows_change(tmp_path: Path) -> None:
    name = "figure-sparsity"
    rows = copy_rows(tmp_path, name)
    _, [picture, *_] = render_figures(tmp_path, {name: FIGURES[name]})
    assert outdated_pictures(tmp_path, [picture]) == [picture.name]
    write_pictures(tmp_path, [picture])
    data = (tmp_path / picture.name).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert outdated_pictures(tmp_path, [picture]) == []
    figure_runs.rows_path(tmp_path, FIGURES[name].study).write_text(
        "".join(json.dumps({**row, "rmse": row["rmse"] + 1}) + "\n" for row in rows)
    )
    _, [changed, *_] = render_figures(tmp_path, {name: FIGURES[name]})
    assert not changed.is_current(tmp_path)


@pytest.mark.parametrize("name", FIGURES)
def test_committed_rows_can_be_drawn_and_described(name: str, tmp_path: Path) -> None:
    figure = FIGURES[name]
    by_dataset = figure_pages.rows_by_dataset(figure, RESULTS)
    for rows in by_dataset.values():
        drawn = figure.plot(rows)
        assert all(axis.get_title(loc="left") for axis in drawn.axes if axis.get_xlabel())
        labeled = [axis for axis in drawn.axes if axis.lines or axis.images or axis.patches]
        assert all(axis.get_xlabel() or axis.get_label() == "<colorbar>" for axis in labeled)
        text = figure.findings(rows)
        assert text.endswith(".")
        assert "nan" not in text


def invoke(*arguments: str) -> Any:
    """Run the command line and return its result."""
    return CliRunner().invoke(app, list(arguments))


def test_figures_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_runs, "open_quietly", small_dataset)
    options = ["--datasets", "ml-100k", "--models", "bias", "--results", str(tmp_path)]
    dry = json.loads(invoke("reproduce", "figure-sparsity", *options, "--dry-run", "--json").stdout)
    assert (dry["n_points"], len(dry["missing"])) == (6, 6)
    run = invoke("reproduce", "figure-history-length", *options, "--device", "cpu")
    assert run.exit_code == 0, run.output
    assert "1 runs completed, 0 failed" in run.stdout
    dry = json.loads(invoke("reproduce", "figure-sparsity", *options, "--dry-run", "--json").stdout)
    assert len(dry["missing"]) == 5
    assert "sparsity, ml-100k, share=0.2, model=bias" in dry["missing"][0]
    everything = json.loads(invoke("reproduce", *options, "--dry-run", "--json").stdout)
    assert everything["n_runs"] > 0
    assert set(dry["missing"]) <= {*everything["missing"]}
    wrong = invoke("reproduce", "figure-sparse", *options)
    assert isinstance(wrong.exception, ConfigError)
    merged = tmp_path / "merged"
    copied = invoke("reproduce", "--merge", str(tmp_path), "--results", str(merged), "--json")
    assert json.loads(copied.stdout)["n_merged_rows"] > 0
    assert figure_runs.read_rows(merged, FIGURES["figure-sparsity"].study)
