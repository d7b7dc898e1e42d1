"""Figures, the page they stand on, the newcomer, and the demo as a whole on a made-up world."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from idcf.data.datasets.catalog import Dataset
from idcf.errors import DataError
from idcf.evaluation.measure import Exam, Part, measure
from idcf.evaluation.protocol import standard_split
from idcf.metrics import Interval
from idcf.paper import demo, figures
from idcf.paper.demo import by_length, cut
from idcf.paper.html_report import Section, write_report
from idcf.testing.synthetic import low_rank
from idcf.training.checkpoint import Log
from idcf.training.train import Job, train

PNG = b"\x89PNG\r\n"


@pytest.fixture
def world() -> Dataset:
    table = low_rank(60, 50, 2, np.random.default_rng(0), density=0.5, whole=True).interactions
    few = cut(table, 12)
    table = table.where(table.user % 3 > 0).plus(few.where(few.user % 3 == 0))
    titles = {item: f"Film <{item}>" for item in table.items.ids}
    return Dataset("world", table, None, None, titles, 15)


def test_a_longer_cut_holds_the_shorter_one(world: Dataset) -> None:
    table = world.interactions
    pairs = [set(zip(c.user, c.item, strict=True)) for c in (cut(table, 2), cut(table, 5))]
    assert pairs[0] < pairs[1]
    assert cut(table, 2).counts().max() == 2
    assert len(cut(table, 0)) == 0
    assert cut(table, None) is table


def test_the_whole_history_gives_the_measured_error(world: Dataset) -> None:
    split, _ = standard_split(world)
    exam = Exam.of(split, split.query_users)
    model = train("bias", Job(split)).model
    curve = by_length(exam, {"bias": model}, (0, 3, None))["bias"]
    assert curve[-1] == measure(exam, [Part(model, split.query_users)])["rmse"].interval
    assert curve[0].value > curve[-1].value  # something is learnt from a history


def test_figures_are_pictures() -> None:
    interval = Interval(1.0, 0.9, 1.1)
    weights = np.random.default_rng(0).dirichlet(np.ones(30), (4, 12))
    log = Log([{"epoch": 0, "loss": 1.0, "valid": 0.9}, {"epoch": 1, "loss": 0.8}], 0)
    for figure in (
        figures.quality({"bias": [interval] * 3, "idcf-nn": [interval] * 3}, (0, 5, None)),
        figures.attention(weights),
        figures.attention(np.eye(4)[None]),  # one key user each: no entropy at all
        figures.training({"idcf-nn": {"nnmf": log, "idcf-nn": Log()}}),
    ):
        assert figures.png(figure, dpi=40).startswith(PNG)


def test_a_page_is_whole_and_escapes_what_it_is_told(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "report.html"
    sections = [Section("A & B", "<script>", PNG), Section("Films", items=["<b>"])]
    write_report(page, "T", "lead", sections, "footer", loud="careful")
    html = page.read_text()
    assert "A &amp; B" in html
    assert "<script>" not in html
    assert "<b>" not in html
    assert "http" not in html
    assert 'class="loud">careful' in html
    assert list(page.parent.iterdir()) == [page]


def test_the_demo_on_a_world_of_its_own(
    world: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(name: str) -> Dataset:
        raise DataError("out of reach")

    said: list[str] = []
    monkeypatch.setattr(demo, "load", closed)
    monkeypatch.setattr(demo, "synthetic", lambda: world)
    page = demo.show(
        tmp_path, say=said.append, models=("bias", "idcf-dot", "idcf-nn", "idcf-bayes")
    )
    spoken, html = "\n".join(said), page.read_text()
    assert spoken.count("NOT REAL DATA") == 2
    assert "NOT REAL DATA" in html
    for model in ("random", "item-mean", "popularity", "bias", "idcf-nn"):
        assert model in spoken
        assert model in html
    assert " 10. Film <i" in spoken
    assert "Film &lt;i" in html
    assert "Film <i" not in html
    assert html.count("data:image/png;base64,") == 5
    assert "http" not in html
    assert (tmp_path / "rows.json").exists()


def test_the_last_resort_has_newcomers_too() -> None:
    world = demo.synthetic()
    split, _ = standard_split(world)
    assert len(split.key_users) == 600
    assert len(split.query_users) == 300
