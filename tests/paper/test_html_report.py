"""The figures, the HTML page that holds them, and the whole demo on synthetic data."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from idcf.data.datasets.catalog import Dataset
from idcf.errors import ConfigError, DataError
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import ModelAssignment, compute_metrics
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.tables import ResultTable
from idcf.metrics import Interval
from idcf.paper import demo, figures
from idcf.paper.demo import rmse_by_history_length, truncate_histories
from idcf.paper.html_report import Section, render_html
from idcf.testing.synthetic import low_rank
from idcf.training.checkpoint import TrainingLog
from idcf.training.train import TrainingJob, train

PNG = b"\x89PNG\r\n"


@pytest.fixture
def dataset() -> Dataset:
    """Synthetic ratings, in which a third of the users has few."""
    rng = np.random.default_rng(0)
    table = low_rank(60, 50, 2, rng, density=0.5, round_ratings=True).interactions
    short = truncate_histories(table, 12)
    table = table.where(table.user % 3 > 0).concat(short.where(short.user % 3 == 0))
    titles = {item: f"Film <{item}>" for item in table.items.ids}
    return Dataset("world", table, None, None, titles, 15)


def test_a_longer_history_contains_the_shorter_one(dataset: Dataset) -> None:
    table = dataset.interactions
    pairs = [
        set(zip(c.user, c.item, strict=True))
        for c in (truncate_histories(table, 2), truncate_histories(table, 5))
    ]
    assert pairs[0] < pairs[1]
    assert truncate_histories(table, 2).user_counts().max() == 2
    assert len(truncate_histories(table, 0)) == 0
    assert truncate_histories(table, None) is table


def test_the_whole_history_gives_the_error_of_the_evaluation(dataset: Dataset) -> None:
    split, _ = standard_split(dataset)
    evaluation_set = EvaluationSet.from_split(split, split.query_users)
    model = train("bias", TrainingJob(split)).model
    curve = rmse_by_history_length(evaluation_set, {"bias": model}, (0, 3, None))["bias"]
    metrics = compute_metrics(evaluation_set, [ModelAssignment(model, split.query_users)])
    assert curve[-1] == metrics["rmse"].interval
    assert curve[0].value > curve[-1].value  # a history helps


def test_figures_render_as_png() -> None:
    interval = Interval(1.0, 0.9, 1.1)
    weights = np.random.default_rng(0).dirichlet(np.ones(30), (4, 12))
    log = TrainingLog([{"epoch": 0, "loss": 1.0, "valid": 0.9}, {"epoch": 1, "loss": 0.8}], 0)
    for figure in (
        figures.plot_rmse_by_history_length(
            {"bias": [interval] * 3, "idcf-nn": [interval] * 3, "als": [interval] * 3},
            (0, 5, None),
            "idcf-nn",
            "bias",
        ),
        figures.plot_attention(weights),
        figures.plot_attention_spread(weights),
        figures.plot_attention_spread(np.eye(4)[None]),  # one key user each: no entropy at all
        figures.plot_training({"idcf-nn": {"nnmf": log, "idcf-nn": TrainingLog()}}),
    ):
        assert figures.to_png(figure, dpi=40).startswith(PNG)


def test_figures_need_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"matplotlib is not installed; pip.*idcf\[plots\]"):
        figures.plot_reliability({"idcf-bayes": np.array([0.5])}, [0.5])


def test_a_figure_leaves_the_settings_of_matplotlib_as_they_are() -> None:
    before = dict(matplotlib.rcParams)
    figure = figures.plot_reliability({"idcf-bayes": np.array([0.4, 0.9])}, [0.5, 0.9])
    assert dict(matplotlib.rcParams) == before
    [axis] = figure.axes
    [diagonal, curve] = axis.get_lines()
    assert [diagonal.get_label(), curve.get_label()] == ["calibrated", "idcf-bayes"]
    np.testing.assert_array_equal(curve.get_xydata(), [[0.5, 0.4], [0.9, 0.9]])
    assert curve.get_color() == figures.COLORS["idcf-bayes"]


def test_the_ring_marks_the_chosen_epoch() -> None:
    records = [{"epoch": n, "loss": 1.0 / (n + 1), "valid": v} for n, v in enumerate((3.0, 1.0))]
    figure = figures.plot_training({"idcf-nn": {"nnmf": TrainingLog(records, 1)}})
    curve, ring = figure.axes[0].get_lines()
    np.testing.assert_array_equal(curve.get_xydata(), [[1, 3.0], [2, 1.0]])
    np.testing.assert_array_equal(ring.get_xydata(), [[2, 1.0]])
    assert not figure.axes[1].get_lines()  # there is no second stage


def test_cells_with_a_star_are_the_best_and_baselines_are_set_apart() -> None:
    table = ResultTable("t", ("a < b",), ("x",), (("1",), ("2",)), (("3*",), ("4",)))
    html = render_html("T", "", [Section("S", table=table)], "")
    rows = re.findall(r'<tr class="(.*?)"><td(.*?)>(.*?)</td></tr>', html)
    assert rows == [
        ("floor", "", "1"),
        ("floor last", "", "2"),
        ("", ' class="best"', "3*"),
        ("", "", "4"),
    ]
    assert '<p class="lead">a &lt; b</p>' in html
    assert 'class="loud"' not in html  # there is no notice


def test_a_page_escapes_its_text() -> None:
    sections = [Section("A & B", "<script>", PNG), Section("Films", items=["<b>"])]
    html = render_html("T", "lead", sections, "footer", notice="careful")
    assert "A &amp; B" in html
    assert "<script>" not in html
    assert "<b>" not in html
    assert "http" not in html
    assert 'class="loud">careful' in html


@pytest.mark.parametrize(
    ("errors", "words"),
    [
        ([1.0, 0.9, 0.8], "is ahead of `bias` from 0 ratings on"),
        ([1.3, 0.9, 0.8], "is ahead of `bias` from 1 rating on"),
        ([0.9, 1.3, 0.8], "is ahead of `bias` from the whole history on"),
        ([0.9, 0.9, 1.3], "With a whole history, `als` is not ahead of `bias`."),
    ],
)
def test_from_which_length_on_a_model_is_ahead(errors: list[float], words: str) -> None:
    curves = {"als": [Interval(x, x, x) for x in errors], "bias": [Interval(1.2, 1.2, 1.2)] * 3}
    assert words in figures.first_length_ahead(curves, (0, 1, None), "als", "bias")


def test_parts_of_a_section_are_folded_and_text_in_backticks_is_code() -> None:
    table = ResultTable("t `x`", (), ("y",), (), (("1.0 [0.9, 1.1]*",),))
    sections = [Section("A", "`code` & text"), Section("B"), Section("B", table=table, level=3)]
    html = render_html("T", "", sections, "", headline="`m` wins")
    assert '<p class="headline"><code>m</code> wins</p>' in html
    assert "<p><code>code</code> &amp; text</p>" in html
    assert re.findall(r'href="#(.*?)"', html) == ["a", "b"], "folded parts are not in the contents"
    assert '<details id="b-2"><summary>B</summary>' in html
    assert '<td class="best">1.0 <small>[0.9, 1.1]</small>*</td>' in html


def test_the_demo_asks_for_matplotlib_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(demo, "load_dataset", lambda name: pytest.fail("it began to work"))
    with pytest.raises(ConfigError, match="matplotlib is not installed"):
        demo.run_demo(tmp_path)


def test_the_demo_on_synthetic_data(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Dataset:
        raise DataError("out of reach")

    printed: list[str] = []
    monkeypatch.setattr(demo, "load_dataset", fail)
    monkeypatch.setattr(demo, "synthetic_dataset", lambda: dataset)
    page = demo.run_demo(
        tmp_path, echo=printed.append, models=("bias", "idcf-dot", "idcf-nn", "idcf-bayes")
    )
    console, html = "\n".join(printed), page.read_text()
    assert console.count("NOT REAL DATA") == 2
    assert "NOT REAL DATA" in html
    for model in ("random", "item-mean", "popularity", "bias", "idcf-nn"):
        assert model in console
        assert model in html
    assert " 10. Film <i" in console
    assert "Film &lt;i" in html
    assert "Film <i" not in html
    assert html.count("data:image/png;base64,") == 6
    assert "http" not in html
    assert (tmp_path / "rows.json").exists()
    assert re.search(
        r'class="headline"><code>[\w-]+</code> predicts the ratings of new users', html
    )
    assert re.search(r"<code>idcf-bayes</code> is (not )?ahead of <code>bias</code>", html)
    assert "`" not in html
    links = re.findall(r'href="#([^"]+)"', html)
    assert len(links) == len(re.findall("<h2>", html)) == 8
    assert all(f'<section id="{x}">' in html for x in links)


def test_the_synthetic_dataset_has_new_users() -> None:
    split, _ = standard_split(demo.synthetic_dataset())
    assert len(split.key_users) == 600
    assert len(split.query_users) == 300


def test_the_demo_without_matplotlib_ends_before_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    messages: list[str] = []
    with pytest.raises(ConfigError, match="matplotlib is not installed"):
        demo.run_demo(tmp_path, echo=messages.append)
    assert messages == []
    assert not list(tmp_path.iterdir())
