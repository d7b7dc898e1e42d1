"""The recommenders that are timed answer as fitted ones do."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from idcf.testing.synthetic import long_tailed

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `benchmarks/serving.py`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("serving")


def test_the_default_list_is_by_both_models(serving: ModuleType, monkeypatch) -> None:
    table = long_tailed(6_000, np.random.default_rng(0), n_users=300, n_items=150)
    monkeypatch.setattr(serving, "MAX_SECONDS", 0.01)
    keys, histories = serving.key_users_and_histories(table, is_real=False)
    assert {len(x) for x in histories} == {serving.HISTORY_LENGTH}
    recommender = serving.untrained_recommender("idcf-bayes", table, keys)
    ratings_alone = recommender.recommend(histories[0], n=5)
    both = serving.with_take_up_model(recommender).recommend(histories[0], n=5)
    assert all(x.probability is None for x in ratings_alone)
    assert all(0 < x.probability < 1 and x.rating is not None for x in both)
    names = [x["name"] for x in serving.time_default_list("list", recommender, histories[:60])]
    assert names == [
        f"list{kind} {what}"
        for kind in ("", " with deviations")
        for what in ("one new user p50", "one new user p99", "batch, dicts in and lists out")
    ]
