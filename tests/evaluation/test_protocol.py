"""Which rows are held out, the name of the split, and reference values on real datasets."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from idcf.data.datasets.catalog import DATASET_SOURCES, Dataset
from idcf.data.interactions import Interactions, Vocab
from idcf.data.readers import read_interactions
from idcf.errors import ConfigError, DataError
from idcf.evaluation import protocol
from idcf.evaluation.protocol import (
    SplitRule,
    make_split,
    open_dataset,
    split_name,
    standard_split,
)
from idcf.evaluation.run import EvaluationPlan, evaluate

REAL = os.environ.get("IDCF_DATA", "")
real = pytest.mark.skipif(
    not (REAL and Path(REAL).is_dir()), reason="IDCF_DATA names no folder of real datasets"
)


def table(users: int = 20, items: int = 15, implicit: bool = False) -> Interactions:
    """Every user with every item, rated 1."""
    user = np.repeat(np.arange(users), items)
    item = np.tile(np.arange(items), users)
    rating = np.ones(len(user), np.float32)
    return Interactions(
        Vocab(range(users)), Vocab(range(items)), user, item, rating, None, implicit
    )


def pairs(data: Interactions) -> set[tuple[int, int]]:
    """The (user, item) pairs of a table."""
    return set(zip(data.user.tolist(), data.item.tolist(), strict=True))


@pytest.mark.parametrize(("dataset", "share"), [("ratings.csv", 0.1), ("ml-100k", 0.2)])
def test_ratings_are_held_out_at_random(dataset: str, share: float) -> None:
    data = Dataset(dataset, table(), None, None, {}, 12)
    split, name = standard_split(data)
    assert name == f"random-{share:.0%}-seed0, delta=12"
    assert len(split.test) == round(share * 300)
    assert not pairs(split.train) & pairs(split.test)
    second, _ = standard_split(data)
    other, other_name = standard_split(data, seed=1)
    assert pairs(second.test) == pairs(split.test) != pairs(other.test)
    assert other_name.startswith(f"random-{share:.0%}-seed1")


def test_ten_positives_of_each_user_are_held_out() -> None:
    split, name = standard_split(Dataset("x", table(implicit=True), None, None, {}, 5))
    assert name == "random-10-per-user-seed0, delta=5"
    assert split.test.user_counts().tolist() == [10] * 20


def test_the_official_split_stays_and_the_threshold_may_change() -> None:
    whole = table()
    train, test = whole.where(whole.item > 0), whole.where(whole.item == 0)
    data = Dataset("douban", whole, train, test, {}, 14)
    split, name = standard_split(data, seed=5)
    assert name == "official, delta=14"
    assert (split.train, split.test) == (train, test)
    assert len(split.key_users) == 20
    with pytest.raises(DataError, match="no key user"):
        standard_split(data, threshold=15)


def test_a_draw_replaces_the_official_test_rows() -> None:
    whole = table()
    train, test = whole.where(whole.item > 0), whole.where(whole.item == 0)
    data = Dataset("ml-100k", whole, train, test, {}, 12)
    split, name = standard_split(data, draw=3)
    assert name == "random-20%-seed3, delta=12"
    without_official = Dataset("ml-100k", whole, None, None, {}, 12)
    expected, expected_name = standard_split(without_official, seed=3)
    assert (pairs(split.test), name) == (pairs(expected.test), expected_name)
    assert split_name(DATASET_SOURCES["ml-100k"], SplitRule(draw=3)) == (
        "random-20%-seed3, delta=30"
    )
    assert split_name(DATASET_SOURCES["amazon-beauty"], SplitRule(draw=2)) == (
        "random-10-per-user-seed2, delta=20"
    )


def test_a_file_has_the_threshold_of_fit(ratings_file: Callable[..., Path]) -> None:
    """30 rows, or the median of the users' training rows if that is less; for clicks, too."""
    path, clicks = str(ratings_file()), str(ratings_file("b.csv", implicit=True))
    for source in (path, Path(path), read_interactions(path), clicks):
        data = open_dataset(source)
        assert (data.key_threshold, data.train) == (30, None)
        split, name = standard_split(data)
        median = int(np.median(split.train.user_counts()))
        assert median < 30
        assert name.endswith(f", delta={median}")
        assert len(split.key_users) >= 30
    split, name = standard_split(Dataset("long.csv", table(9, 90), None, None, {}, 30))
    assert name == "random-10%-seed0, delta=30"


def test_fewer_positives_are_held_out_of_short_histories() -> None:
    split, name = standard_split(Dataset("x", table(9, 7, implicit=True), None, None, {}, 30))
    assert name == "random-3-per-user-seed0, delta=4"
    assert split.test.user_counts().tolist() == [3] * 9


@pytest.mark.parametrize("implicit", [False, True])
def test_the_last_row_of_each_user_is_held_out(implicit: bool) -> None:
    whole = table(implicit=implicit)
    rng = np.random.default_rng(0)
    whole = replace(whole, time=rng.permutation(len(whole)))
    data = Dataset("x", whole.where(whole.user > 0), None, None, {}, 30)
    split, name = make_split(data, "last")
    assert name == "last-1, delta=14"
    for user in range(1, 20):
        times = whole.time[whole.user == user]
        rows = split.test.user == user
        assert split.test.time[rows].tolist() == [times.max()]
    assert len(split.train) + len(split.test) == 19 * 15
    assert make_split(data, "last", threshold=3, key_users="random")[1] == (
        "last-1, delta=3, key_users=random"
    )
    with pytest.raises(DataError, match="the split 'last' needs a time"):
        make_split(replace(data, interactions=table()), "last")


def test_a_file_of_test_rows_is_the_test_part(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,rating\nu,a,1\nu,b,2\nv,a,3\nv,b,4\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,rating\nu,c,5\nv,c,4\n")
    data = open_dataset(str(tmp_path / "a.csv"), test=str(tmp_path / "b.csv"))
    split, name = standard_split(data, threshold=2)
    assert name == "given, delta=2"
    assert (len(split.train), len(split.test), len(split.train.items)) == (4, 2, 3)


def test_unknown_datasets_are_errors() -> None:
    with pytest.raises(DataError, match=r"did you mean 'ml-100k'.*path of a file"):
        open_dataset("ml100k")
    with pytest.raises(DataError, match="own split"):
        open_dataset("ml-100k", test="x.csv")


def test_a_rated_dataset_can_be_read_as_implicit_feedback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = table()
    train, test = whole.where(whole.item > 0), whole.where(whole.item == 0)
    rated = Dataset("ml-100k", whole, train, test, {0: "a"}, 14)
    monkeypatch.setattr(protocol, "load_dataset", lambda name, progress: rated)
    assert open_dataset("ml-100k") is open_dataset("ml-100k", implicit=False) is rated
    dataset = open_dataset("ml-100k", implicit=True)
    split, name = standard_split(dataset)
    assert (name, dataset.name, dataset.titles) == ("u1, delta=14", "ml-100k-had", {0: "a"})
    assert split.train.implicit
    assert split.test.implicit
    assert (pairs(split.train), pairs(split.test)) == (pairs(train), pairs(test))
    with pytest.raises(DataError, match="amazon-books has no ratings"):
        open_dataset("amazon-books", implicit=False)


@real
@pytest.mark.accuracy
def test_the_references_on_ml_100k() -> None:
    data = open_dataset("ml-100k", progress=False)
    split, name = standard_split(data)
    assert name == "u1, delta=30"
    assert (len(split.key_users), len(split.query_users)) == (671, 272)
    results = evaluate(EvaluationPlan(data, ["bias"]), split=(split, name))
    cells = {(r.model, r.metric): r for r in results}
    assert 1.050 <= cells["item-mean", "rmse"].value <= 1.063
    assert cells["bias", "rmse"].value == pytest.approx(1.001, abs=0.004)
    assert cells["random", "ndcg"].value == pytest.approx(0.82, abs=0.006)
    assert (cells["bias", "rmse"].n_users, cells["bias", "rmse"].n_ratings) == (172, 2336)


@real
@pytest.mark.accuracy
def test_idcf_bayes_on_ml_100k() -> None:
    """The default model on new users: the figure that the README opens its table with."""
    data = open_dataset("ml-100k", progress=False)
    results = evaluate(EvaluationPlan(data, ["idcf-bayes"], metrics=["rmse", "cover90"]))
    values = {(r.model, r.metric): r.value for r in results}
    assert values["idcf-bayes", "rmse"] == pytest.approx(0.965, abs=0.004)
    assert values["idcf-bayes", "cover90"] == pytest.approx(0.9, abs=0.03)


@real
@pytest.mark.accuracy
def test_the_references_on_implicit_ml_100k() -> None:
    """The README's figures: a model of implicit feedback ranks held-out items higher."""
    data = open_dataset("ml-100k", implicit=True, progress=False)
    results = evaluate(EvaluationPlan(data, ["idcf-bayes", "idcf-odds", "ease"]))
    values = {(r.model, r.metric): r.value for r in results}
    assert values["popularity", "recall@20"] == pytest.approx(0.167, abs=0.002)
    assert values["idcf-bayes", "recall@20"] == pytest.approx(0.410, abs=0.012)
    assert values["idcf-odds", "recall@20"] == pytest.approx(0.392, abs=0.012)
    assert values["ease", "recall@20"] == pytest.approx(0.400, abs=0.012)
    assert values["idcf-odds", "auc"] > values["ease", "auc"] + 0.01


@real
@pytest.mark.accuracy
def test_the_references_on_ml_1m() -> None:
    data = open_dataset("ml-1m", progress=False)
    values = {(r.model, r.metric): r.value for r in evaluate(EvaluationPlan(data, ["bias"]))}
    assert values["item-mean", "rmse"] == pytest.approx(0.994, abs=0.004)
    assert values["bias", "rmse"] == pytest.approx(0.962, abs=0.003)


def test_fewer_key_users_are_in_the_name() -> None:
    data = Dataset("ratings.csv", table(), None, None, {}, 12)
    whole, _ = standard_split(data)
    split, name = standard_split(data, key_users=4)
    assert name == "random-10%-seed0, delta=12, key_users=4"
    assert set(split.key_users) < set(whole.key_users)
    assert len(split.key_users) == 4
    assert pairs(split.test) == pairs(whole.test)


def test_further_splits_hold_out_users_of_the_whole_dataset() -> None:
    whole = table()
    whole = replace(whole, time=np.arange(len(whole)))
    train, test = whole.where(whole.item > 0), whole.where(whole.item == 0)
    data = Dataset("douban", whole, train, test, {}, 14)
    assert make_split(data)[1] == "official, delta=14"
    split, name = make_split(data, "strong", seed=3)
    assert name == "strong-20%-seed3"
    assert (len(split.query_users), len(split.test), len(split.train)) == (4, 4 * 3, 300 - 12)
    assert pairs(make_split(data, "strong", seed=4)[0].test) != pairs(split.test)
    split, name = make_split(data, "temporal")
    assert name == "temporal-20%"
    assert split.query_users.tolist() == [16, 17, 18, 19]
    assert set(split.test.user.tolist()) == {16, 17, 18, 19}
    assert split.train.user_counts()[16:].tolist() == [7] * 4
    with pytest.raises(ConfigError, match="leave out --test"):
        make_split(replace(data, name="mine.csv"), "strong")
    with pytest.raises(ConfigError, match="leave out --key-threshold"):
        make_split(data, "strong", threshold=5)
    with pytest.raises(ConfigError, match="no split named 'strongly'"):
        make_split(data, "strongly")


def test_implicit_feedback_has_the_strong_split_of_the_ratings() -> None:
    rated = Dataset("ml-100k", table(), None, None, {}, 14)
    implicit = replace(
        rated, name="ml-100k-had", interactions=rated.interactions.as_implicit(), train=None
    )
    splits = [make_split(x, "strong")[0] for x in (rated, implicit)]
    assert pairs(splits[0].test) == pairs(splits[1].test)
