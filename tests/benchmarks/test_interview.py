"""The interview of new users on small data."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from builders import board

from idcf import Recommender

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_rows_of_every_way_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    interview = importlib.import_module("interview")
    table = board(60, 80, 20, 24)
    held_out = np.arange(0, 60, 3)
    keys = np.setdiff1d(np.arange(60), held_out)
    options = {"embedding_size": 4, "burn_in": 2, "sweeps": 4}
    recommender = Recommender("idcf-bayes", key_threshold=1, device="cpu", **options)
    recommender.fit(table.for_users(keys))
    users = interview.split_ratings(table, held_out, recommender)
    assert not ((users.answers > 0) & (users.hidden > 0)).any()
    rows = interview.compare(users, recommender)
    assert [(r["pool"], r["asked"], r["weight"]) for r in rows] == [
        (pool, asked, weight)
        for pool in ("anything", "known")
        for asked in ("next_question", "popular", "random", "nothing")
        for weight in ("users", "ratings")
    ]
    values = {(r["pool"], r["asked"], r["weight"]): r for r in rows}
    for (_, asked, _), row in values.items():
        assert row["low"] <= row["rmse"] <= row["high"]
        assert row["n_users"] == len(held_out)
        if asked == "next_question":
            assert row["difference"] == 0
        if asked == "nothing":
            assert row["answers"] == 0
    known = values["known", "next_question", "users"]
    assert known["answers"] == interview.N_QUESTIONS
    reference, other = (values["known", x, "users"] for x in ("next_question", "random"))
    assert other["difference"] == pytest.approx(reference["rmse"] - other["rmse"], abs=2e-4)
