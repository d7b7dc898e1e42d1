"""The real datasets, if they are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from idcf.data.datasets.catalog import load_dataset
from idcf.data.split import hold_out_last_rows, split_by_threshold

REAL = os.environ.get("IDCF_DATA", "")
real = pytest.mark.skipif(
    not (REAL and Path(REAL).is_dir()), reason="IDCF_DATA names no folder of real datasets"
)


@real
@pytest.mark.accuracy
@pytest.mark.parametrize(("name", "key", "query"), [("ml-100k", 671, 272), ("douban", 2131, 869)])
def test_real_official_splits(name: str, key: int, query: int) -> None:
    data = load_dataset(name)
    assert data.train is not None
    assert data.test is not None
    split = split_by_threshold(data.train, data.test, data.key_threshold)
    assert (len(split.key_users), len(split.query_users)) == (key, query)
    assert len(data.train) + len(data.test) == len(data.interactions)
    pairs = [set(zip(t.user, t.item, strict=True)) for t in (data.train, data.test)]
    assert not pairs[0] & pairs[1]


@real
@pytest.mark.accuracy
def test_real_movielens_100k() -> None:
    data = load_dataset("ml-100k")
    assert data.interactions.users.ids == tuple(range(1, 944))
    assert data.interactions.items.ids == tuple(range(1, 1683))
    assert data.titles[1] == "Toy Story (1995)"
    assert len(data.titles) == 1682
    assert data.attributes["genre"][1] == ["Animation", "Children's", "Comedy"]
    assert data.attributes["year"][1] == "1995"
    assert sum("Comedy" in x for x in data.attributes["genre"].values()) == 505


@real
@pytest.mark.accuracy
def test_real_movielens_1m() -> None:
    data = load_dataset("ml-1m")
    histogram = np.bincount(data.interactions.rating.astype(int))[1:].tolist()
    assert histogram == [56174, 107557, 261197, 348971, 226310]
    assert set(data.interactions.items.ids) <= set(data.titles)
    assert data.attributes["genre"][1] == ["Animation", "Children's", "Comedy"]


@real
@pytest.mark.accuracy
def test_real_beauty_is_the_cut_of_the_paper() -> None:
    data = load_dataset("amazon-beauty")
    train, test = hold_out_last_rows(data.interactions, 10, np.random.default_rng(0))
    split = split_by_threshold(train, test, data.key_threshold)
    assert (len(split.key_users), len(split.query_users)) == (780, 2164)
    assert (len(train), len(test)) == (53464, 29440)
    assert (data.interactions.item_counts() > 0).sum() == 26285


@real
@pytest.mark.accuracy
def test_real_books() -> None:
    data = load_dataset("amazon-books")
    assert data.train is not None
    assert data.test is not None
    assert (len(data.train), len(data.test)) == (595_901, 151_011)
    assert len(data.interactions.users) == 13_159
