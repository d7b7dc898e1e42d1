"""Checks of input columns and sums per user, compared with loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import few, rows, seeds

from idcf.errors import ConfigError, DataError
from idcf.metrics import arrays


def test_columns_come_back_in_order_as_arrays() -> None:
    user, score = arrays.check_columns(user=[1, 2], score=[0.5, 1.5])
    assert (user.tolist(), score.tolist()) == ([1, 2], [0.5, 1.5])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1, 2], "label": [1]}, "label has 1 rows and user has 2: give one per row"),
        ({"user": [[1], [2]]}, r"user has shape \(2, 1\): give a flat array"),
        ({"user": 3}, r"user has shape \(\): give a flat array"),
        ({"user": [1], "score": [[1.0]]}, r"score has shape \(1, 1\)"),
    ],
)
def test_a_column_that_does_not_fit_is_named(columns, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrays.check_columns(**columns)


def test_nan_is_counted_and_located() -> None:
    arrays.check_no_nan("score", np.array([np.inf, -np.inf, 0.0]))
    with pytest.raises(DataError, match="score is NaN in 2 rows, first in row 1"):
        arrays.check_no_nan("score", np.array([0.0, np.nan, np.nan]))


@pytest.mark.parametrize("positive", [[True, False], [1, 0], [1.0, 0.0]])
def test_binary_labels_may_be_bools_or_numbers(positive) -> None:
    user, score, label = arrays.check_binary_columns([3, 4], np.array([1, 2]), np.array(positive))
    assert (user.tolist(), score.dtype, label.tolist()) == ([3, 4], np.float64, [True, False])


@pytest.mark.parametrize("level", [0, 1, -0.5, 95, np.nan])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(ConfigError, match=r"confidence_level is .*: give a share between 0 and 1"):
        arrays.check_confidence_level(level)


@few
@given(seeds, st.integers(0, 40))
def test_groups_ties_and_sums_against_loops(seed: int, n: int) -> None:
    user, score, label = rows(seed, n, 6)
    order = np.lexsort((score, user))
    user, score, value = user[order], score[order], label[order].astype(float)
    users, start, rank = arrays.group_sorted_users(user)
    assert users.tolist() == sorted(set(user.tolist()))
    assert start[-1] == n
    for u, low, high in zip(users, start[:-1], start[1:], strict=True):
        assert user[low:high].tolist() == [u] * (user == u).sum()
        assert rank[low:high].tolist() == list(range(high - low))
    sums = arrays.segment_sums(value, start)
    assert sums.tolist() == [value[user == u].sum() for u in users]
    means = [value[(user == u) & (score == s)].mean() for u, s in zip(user, score, strict=True)]
    np.testing.assert_allclose(arrays.mean_over_ties(value, rank, score), means)


def test_sums_of_nothing_are_floats() -> None:
    none = np.zeros(0, int)
    sums = arrays.sum_by_owner(none, none.astype(float), 3)
    assert (sums.dtype, sums.tolist()) == (np.float64, [0.0, 0.0, 0.0])
    assert arrays.sum_by_owner(np.array([2, 0, 2]), np.array([1.0, 2, 3]), 4).tolist() == [
        *(2, 0, 4, 0)
    ]
