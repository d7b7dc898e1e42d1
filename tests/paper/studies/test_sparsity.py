"""Thinned training ratings, and RMSE by the number of a user's training ratings."""

from __future__ import annotations

import numpy as np
from tables_world import small_dataset

from idcf.evaluation.protocol import standard_split
from idcf.paper.studies import sparsity
from idcf.paper.studies.study import select
from idcf.training.job import LOCAL_RUNTIME

DATA = small_dataset("ml-100k")
SPLIT, _ = standard_split(DATA)


def rows_of(table):
    return set(zip(table.user.tolist(), table.item.tolist(), strict=True))


def test_smaller_shares_are_nested_and_users_stay_in_their_roles():
    previous = rows_of(SPLIT.train)
    for share in sparsity.SHARES[:4]:
        thin = sparsity.thin_split(SPLIT, share)
        assert len(thin.train) == round(share * len(SPLIT.train))
        assert rows_of(thin.train) <= previous
        assert thin.test is SPLIT.test
        np.testing.assert_array_equal(thin.key_users, SPLIT.key_users)
        previous = rows_of(thin.train)


def test_bins_of_history_lengths_share_the_test_rows_among_them():
    sets = sparsity._sets_by_length(SPLIT)
    assert sum(len(x.test_rows) for x in sets.values()) == len(SPLIT.test)
    counts = SPLIT.train.user_counts()
    for low, high in sparsity.LENGTH_BINS:
        if (label := sparsity.length_label(low, high)) in sets:
            lengths = counts[sets[label].users]
            assert ((lengths >= low) & (lengths <= high)).all()
    assert sparsity.length_label(100, 10**9) == "100+"


def test_rows_are_the_errors_of_each_group():
    points = sparsity.sparsity_points("ml-100k", 1)
    assert len(points) == len(sparsity.SHARES) * len(sparsity.SYSTEMS)
    half = select(points, model="bias", share=0.5)[0]
    rows = sparsity.measure_sparsity(half, DATA, LOCAL_RUNTIME)
    by_group = {row["group"]: row for row in rows}
    assert {"few-shot", "all"} < by_group.keys()
    bins = [row for group, row in by_group.items() if group not in ("few-shot", "all")]
    squares = sum(row["rmse"] ** 2 * row["n_ratings"] for row in bins)
    assert np.isclose(squares, by_group["all"]["rmse"] ** 2 * len(SPLIT.test))
    rows = sparsity.measure_sparsity({**half, "share": 0.2}, DATA, LOCAL_RUNTIME)
    assert {row["group"] for row in rows} == {"few-shot", "all"}


def test_the_mean_is_over_seeds():
    rows = [{"seed": s, "model": "bias", "rmse": s, "low": 0.0, "high": 9.0} for s in (1.0, 3.0)]
    assert sparsity.mean_over_seeds(rows, model="bias")["rmse"] == 2
    assert sparsity.mean_over_seeds(rows, model="gcmc") is None
