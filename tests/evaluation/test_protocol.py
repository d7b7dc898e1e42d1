"""Which rows are held out, how the split is called, and the reference numbers on real data."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Interactions, Vocab
from idcf.errors import DataError
from idcf.evaluation import protocol
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.run import Plan, evaluate

REAL = os.environ.get("IDCF_DATA", "")
real = pytest.mark.skipif(
    not (REAL and Path(REAL).is_dir()), reason="IDCF_DATA names no folder of real datasets"
)


def table(users: int = 20, each: int = 15, implicit: bool = False) -> Interactions:
    user = np.repeat(np.arange(users), each)
    item = np.tile(np.arange(each), users)
    rating = np.ones(len(user), np.float32)
    return Interactions(Vocab(range(users)), Vocab(range(each)), user, item, rating, None, implicit)


def rows(data: Interactions) -> set[tuple[int, int]]:
    return set(zip(data.user.tolist(), data.item.tolist(), strict=True))


@pytest.mark.parametrize(("name", "share"), [("mine.csv", 0.1), ("ml-100k", 0.2)])
def test_ratings_are_held_out_at_random(name: str, share: float) -> None:
    data = Dataset(name, table(), None, None, {}, 12)
    split, how = standard_split(data)
    assert how == f"random-{share:.0%}-seed0, delta=12"
    assert len(split.test) == round(share * 300)
    assert not rows(split.train) & rows(split.test)
    again, _ = standard_split(data)
    other, other_how = standard_split(data, seed=1)
    assert rows(again.test) == rows(split.test) != rows(other.test)
    assert other_how.startswith(f"random-{share:.0%}-seed1")


def test_ten_positives_of_each_user_are_held_out() -> None:
    split, how = standard_split(Dataset("x", table(implicit=True), None, None, {}, 5))
    assert how == "random-10-per-user-seed0, delta=5"
    assert split.test.counts().tolist() == [10] * 20


def test_the_official_split_stays_and_the_threshold_may_change() -> None:
    whole = table()
    train, test = whole.where(whole.item > 0), whole.where(whole.item == 0)
    data = Dataset("douban", whole, train, test, {}, 14)
    split, how = standard_split(data, seed=5)
    assert how == "official, delta=14"
    assert (split.train, split.test) == (train, test)
    assert len(split.key_users) == 20
    with pytest.raises(DataError, match="no key user"):
        standard_split(data, threshold=15)


def test_a_file_of_ones_own(ratings_file: Callable[..., Path]) -> None:
    data = open_dataset(str(ratings_file()))
    assert (data.threshold, data.train) == (30, None)
    assert open_dataset(str(ratings_file("b.csv", implicit=True))).threshold == 20


def test_a_test_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user_id,item_id,rating\nu,a,1\nu,b,2\nv,a,3\nv,b,4\n")
    (tmp_path / "b.csv").write_text("user_id,item_id,rating\nu,c,5\nv,c,4\n")
    data = open_dataset(str(tmp_path / "a.csv"), test=str(tmp_path / "b.csv"))
    split, how = standard_split(data, threshold=2)
    assert how == "given, delta=2"
    assert (len(split.train), len(split.test), len(split.train.items)) == (4, 2, 3)


def test_names_that_do_not_exist() -> None:
    with pytest.raises(DataError, match=r"did you mean 'ml-100k'.*path of a file"):
        open_dataset("ml100k")
    with pytest.raises(DataError, match="own split"):
        open_dataset("ml-100k", test="x.csv")


def test_of_a_data_set_with_ratings_only_who_had_what_may_be_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = table()
    train, test = whole.where(whole.item > 0), whole.where(whole.item == 0)
    rated = Dataset("ml-100k", whole, train, test, {0: "a"}, 14)
    monkeypatch.setattr(protocol, "load", lambda name, progress: rated)
    assert open_dataset("ml-100k") is open_dataset("ml-100k", implicit=False) is rated
    found = open_dataset("ml-100k", implicit=True)
    split, how = standard_split(found)
    assert (how, found.name, found.titles) == ("u1, delta=14", "ml-100k-had", {0: "a"})
    assert split.train.implicit
    assert split.test.implicit
    assert (rows(split.train), rows(split.test)) == (rows(train), rows(test))
    with pytest.raises(DataError, match="amazon-books has no ratings"):
        open_dataset("amazon-books", implicit=False)


@real
@pytest.mark.accuracy
def test_the_references_on_ml_100k() -> None:
    data = open_dataset("ml-100k", progress=False)
    split, how = standard_split(data)
    assert how == "u1, delta=30"
    assert (len(split.key_users), len(split.query_users)) == (671, 272)
    found = {(r.model, r.metric): r for r in evaluate(Plan(data, ["bias"]), split=(split, how))}
    assert 1.050 <= found["item-mean", "rmse"].value <= 1.063
    assert found["bias", "rmse"].value == pytest.approx(1.001, abs=0.004)
    assert found["random", "ndcg"].value == pytest.approx(0.82, abs=0.006)
    assert (found["bias", "rmse"].n_users, found["bias", "rmse"].n_ratings) == (172, 2336)


@real
@pytest.mark.accuracy
def test_lists_of_who_had_what_on_ml_100k() -> None:
    """The README's figures: leaving the stars aside finds what people take up."""
    data = open_dataset("ml-100k", implicit=True, progress=False)
    found = {(r.model, r.metric): r.value for r in evaluate(Plan(data, ["idcf-bayes", "ease"]))}
    assert found["popularity", "recall@20"] == pytest.approx(0.167, abs=0.002)
    assert found["idcf-bayes", "recall@20"] == pytest.approx(0.392, abs=0.012)
    assert found["ease", "recall@20"] == pytest.approx(0.400, abs=0.012)
    assert found["idcf-bayes", "auc"] > found["ease", "auc"] + 0.01


@real
@pytest.mark.accuracy
def test_the_references_on_ml_1m() -> None:
    data = open_dataset("ml-1m", progress=False)
    found = {(r.model, r.metric): r.value for r in evaluate(Plan(data, ["bias"]))}
    assert found["item-mean", "rmse"] == pytest.approx(0.994, abs=0.004)
    assert found["bias", "rmse"] == pytest.approx(0.962, abs=0.003)


def test_fewer_key_users_are_said_in_the_name() -> None:
    data = Dataset("mine.csv", table(), None, None, {}, 12)
    every, _ = standard_split(data)
    split, how = standard_split(data, key_users=4)
    assert how == "random-10%-seed0, delta=12, key_users=4"
    assert set(split.key_users) < set(every.key_users)
    assert len(split.key_users) == 4
    assert rows(split.test) == rows(every.test)
