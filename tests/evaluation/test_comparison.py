"""`idcf.evaluate`: which tables it takes, what it returns, and how that is printed and drawn."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from builders import board

import idcf
import idcf.evaluation.comparison
from idcf import Comparison, ConfigError, DataError, ModelDifference, Recommender
from idcf.data.interactions import Interactions
from idcf.evaluation import DEFAULT_MODELS
from idcf.evaluation.comparison import _default_models
from idcf.metrics import Interval
from idcf.testing.synthetic import checkerboard

OPTIONS: dict[str, Any] = {"options": {"als.embedding_size": 4, "als.reg": 5.0}, "device": "cpu"}


@cache
def table() -> Interactions:
    """A checkerboard of 60 users."""
    return board(60, 80, 9, 24)


@cache
def comparison() -> Comparison:
    """Two models, two seeds and two groups."""
    metrics = ["rmse", "ndcg@10", "coverage@20"]
    return idcf.evaluate(
        table(), ["als", "bias"], groups=["new", "all"], metrics=metrics, seeds=2, **OPTIONS
    )


def frame(rows: Interactions) -> pd.DataFrame:
    """Return a table as a dataframe with ids of text."""
    columns = {"user_id": rows.user, "item_id": rows.item}
    columns = {k: [f"{k[0]}{n}" for n in v] for k, v in columns.items()}
    return pd.DataFrame(columns if rows.implicit else {**columns, "rating": rows.rating})


def test_whatever_fit_reads_is_compared(tmp_path: Path) -> None:
    """A dataframe, a file and other names of columns give the same numbers."""
    data = frame(table())
    data.to_csv(tmp_path / "ratings.csv", index=False)
    renamed = data.rename(columns={"user_id": "who", "rating": "stars"})
    columns = {"user_id": "who", "rating": "stars"}
    results = [
        idcf.evaluate(source, "bias", metrics="rmse", device="cpu", **more)
        for source, more in (
            (data, {}),
            (tmp_path / "ratings.csv", {}),
            (str(tmp_path / "ratings.csv"), {}),
            (renamed, {"columns": columns}),
        )
    ]
    values = [[(x.model, x.metric, x.value) for x in result.rows] for result in results]
    assert values[0] == values[1] == values[2] == values[3]
    assert results[0].rows[0].dataset == "table"
    assert results[1].rows[0].dataset == str(tmp_path / "ratings.csv")


def test_rows_become_dataframes() -> None:
    result = comparison()
    assert result.models == ["random", "item-mean", "popularity", "als", "bias"]
    assert result.metrics == ["rmse", "ndcg@10", "coverage@20"]
    assert result.groups == ["new", "all"]
    assert result.to_arrow().to_pylist() == [asdict(x) for x in result.rows]
    data = result.to_pandas()
    assert len(data) == len(result.rows) == result.to_polars().height
    assert set(data["seed"]) == {0, 1}


def slow_difference(a: str, b: str, group: str) -> float:
    """The difference of the root mean squared errors, averaged over seeds."""
    values = []
    for seed in (0, 1):
        x, y = (comparison().per_user[group, "rmse", model, seed] for model in (a, b))
        assert x.users.tolist() == y.users.tolist()
        errors = [np.sqrt(z.total.sum() / z.weight.sum()) for z in (x, y)]
        values.append(errors[0] - errors[1])
    return float(np.mean(values))


@pytest.mark.parametrize("group", ["new", "all"])
def test_models_are_compared_in_pairs(group: str) -> None:
    result = comparison()
    difference = result.compare("als", "bias", "rmse", group=group)
    assert difference[:4] == ("als", "bias", "rmse", group)
    assert difference.value == pytest.approx(slow_difference("als", "bias", group))
    assert difference.low < difference.value < difference.high < 0
    cells = [
        next(x for x in result.rows if (x.model, x.metric, x.users) == (model, "rmse", group))
        for model in ("als", "bias")
    ]
    assert difference.n_users == cells[0].n_users
    width = sum(x.high - x.low for x in cells)
    assert difference.high - difference.low < width
    opposite = result.compare("bias", "als", "rmse", group=group)
    assert opposite.interval == pytest.approx(
        Interval(*(-x for x in np.array(difference[4:7])[[0, 2, 1]]))
    )


def test_the_baseline_is_the_best_simple_one() -> None:
    data = checkerboard(60, 20, np.random.default_rng(0))
    options = {"idcf-dot.train.epochs": 1}
    result = idcf.evaluate(
        data, ["bias", "als", "idcf-dot"], metrics=["rmse", "ndcg@10"], options=options
    )
    rmse = {x.model: x.value for x in result.rows if x.metric == "rmse"}
    differences = {(x.model, x.metric): x for x in result.differences()}
    assert min(rmse, key=lambda x: rmse[x]) == "als"
    assert {model for model, _ in differences} == {"bias", "idcf-dot"}
    assert {x.baseline for (_, metric), x in differences.items() if metric == "rmse"} == {"als"}
    value = differences["bias", "rmse"].value
    assert value == pytest.approx(rmse["bias"] - rmse["als"])


def test_what_cannot_be_paired_is_left_out_or_an_error() -> None:
    result = comparison()
    assert {x.metric for x in result.differences(group="all")} == {"rmse", "ndcg@10"}
    with pytest.raises(ConfigError, match=r"coverage@20 of als and bias has no values per user"):
        result.compare("als", "bias", "coverage@20")
    with pytest.raises(ConfigError, match="has no values per user"):
        result.compare("random", "bias", "rmse")
    for arguments, message in (
        (("asl", "bias", "rmse"), "did you mean 'als'"),
        (("als", "bias", "rmsee"), "no metric named 'rmsee'; did you mean 'rmse'"),
    ):
        with pytest.raises(ConfigError, match=message):
            result.compare(*arguments)
    with pytest.raises(ConfigError, match="no group of users named 'few'"):
        result.compare("als", "bias", "rmse", group="few")


def test_the_printed_form_has_tables_and_differences() -> None:
    result = comparison()
    text = str(result)
    assert text == repr(result) == result.to_text()
    assert text.count("\nrandom ") == 2  # one table for each group
    titles = [x for x in text.splitlines() if x.startswith("differences to the best simple")]
    assert len(titles) == 2
    assert "rmse ↓ vs als" in text
    assert "mean of 2 seeds" in text
    assert "| bias |" in result.to_text(markdown=True)
    html = result._repr_html_()
    assert html.count("<table>") == 4
    assert "coverage@20" in html
    difference = ModelDifference("a", "b", "rmse", "new", -0.25, -0.5, -0.125, 9)
    assert repr(difference) == "rmse, a - b: -0.250 [-0.500, -0.125], 9 new users"


def test_a_plot_has_a_point_and_an_interval_for_each_model() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = comparison()
    for metric, best, label in (("rmse", "als", "lower"), ("ndcg@10", "als", "higher")):
        axes = result.plot(metric, group="all")
        names = [x.get_text() for x in axes.get_yticklabels()]
        assert names[-1] == best
        values = [float(line.get_xdata()[0]) for line in axes.lines]
        assert values == sorted(values, reverse=metric == "rmse")
        assert len(axes.collections) == len(names) == len(values)
        assert label in axes.get_xlabel()
    pyplot.close("all")
    axes = pyplot.figure().subplots()
    assert result.plot(ax=axes) is axes
    assert "rmse" in axes.get_xlabel()
    pyplot.close("all")
    with pytest.raises(ConfigError, match="no metric named 'rsme'; did you mean 'rmse'"):
        result.plot("rsme")


def test_a_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"install 'idcf\[plots\]'"):
        comparison().plot()


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize(
    ("n_users", "n_items", "n_rows"), [(5, 8, 7), (8, 8, 6), (12, 6, 5), (60, 20, 9)]
)
def test_small_tables_that_fit_takes_are_compared(
    n_users: int, n_items: int, n_rows: int, implicit: bool
) -> None:
    """All users have as many rows, none of them 30: the threshold and the new users are chosen."""
    rows = checkerboard(
        *(n_users, n_items, np.random.default_rng(0)),
        rows_per_light_user=n_rows,
        rows_per_heavy_user=n_rows,
    )
    rows = rows.as_implicit() if implicit else rows
    Recommender("popularity", device="cpu").fit(rows)
    result = idcf.evaluate(rows, ["item-knn"], options={"neighbors": 3, "reg": 1.0}, device="cpu")
    assert "item-knn" in result.models
    assert result.rows[0].users == "new"
    assert all(np.isfinite(x.value) for x in result.rows)


def test_a_random_half_is_new_if_the_threshold_leaves_no_new_user() -> None:
    user, item = (x.ravel() for x in np.indices((20, 14)))
    data = pd.DataFrame({"user_id": user, "item_id": item})  # everybody has every item
    [split] = {x.split for x in idcf.evaluate(data, "popularity", device="cpu").rows}
    assert split == "random-10-per-user-seed0, delta=4, key_users=random"
    with pytest.raises(DataError, match="none of the 0 users"):
        idcf.evaluate(data, "popularity", key_threshold=4, device="cpu")
    assert idcf.evaluate(data, "popularity", groups="all", device="cpu").rows[0].split == (
        "random-10-per-user-seed0, delta=4"
    )


def test_too_few_key_users_are_an_error_that_says_so() -> None:
    data = frame(board(4, 12, 6, 9))
    with pytest.raises(DataError, match=r"leaves \d key users to train on; at least 3 are needed"):
        idcf.evaluate(data, "bias", key_threshold=8, device="cpu")


def test_the_last_interaction_of_each_user() -> None:
    data = frame(table()).assign(timestamp=np.arange(len(table())))
    result = idcf.evaluate(data, "popularity", split="last", groups="all", device="cpu")
    assert {x.split for x in result.rows} == {"last-1, delta=22"}
    assert {x.n_ratings for x in result.rows if x.metric == "recall@20"} == {60}


def test_the_default_models_read_the_feedback() -> None:
    assert _default_models(implicit=False) == list(DEFAULT_MODELS)
    names = _default_models(implicit=True)
    assert "bias" not in names
    assert {"popularity", "als", "idcf-bayes"} < set(names)


def test_wrong_arguments_are_errors_before_training(ratings_file: Callable[..., Path]) -> None:
    for arguments, message in (
        ({"models": "asl"}, "did you mean 'als'"),
        ({"metrics": ["rsme"]}, "did you mean 'rmse'"),
        ({"groups": "news"}, "did you mean 'new'"),
        ({"split": "latest"}, "did you mean 'last'"),
        ({"options": {"regg": 1}}, "did you mean 'reg'"),
    ):
        with pytest.raises(ConfigError, match=message):
            idcf.evaluate(ratings_file(), **{"models": ["als"], **arguments})


def test_the_examples_of_the_docstrings_run() -> None:
    results = doctest.testmod(idcf.evaluation.comparison)
    assert results.attempted > 4
    assert results.failed == 0


@pytest.mark.parametrize("models", [[Recommender("als")], Recommender("als"), ["bias", 3]])
def test_models_are_names(models: Any) -> None:
    with pytest.raises(ConfigError, match=r"models are names, such as 'als', got .*options="):
        idcf.evaluate("not-read.csv", models)
