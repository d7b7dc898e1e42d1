"""Rating errors, compared with a loop and scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import mean_absolute_error, mean_squared_error

from idcf.errors import DataError
from idcf.metrics import absolute_error, mae, rmse, squared_error

Rows = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


def rows(seed: int, n: int = 200, users: int = 17) -> Rows:
    rng = np.random.default_rng(seed)
    return rng.integers(0, users, n) * 3 - 4, rng.normal(3, 1, n), rng.integers(1, 6, n)


def test_by_hand() -> None:
    got = squared_error(np.array([7, 2, 7]), np.array([1.0, 2.0, 5.0]), np.array([3, 2, 4]))
    assert got.users.tolist() == [2, 7]
    assert got.total.tolist() == [0, 5]
    assert got.weight.tolist() == [1, 2]
    assert got.values.tolist() == [0, 2.5]
    assert got.mean() == pytest.approx(5 / 3)
    assert rmse(np.array([1.0, 3.0]), np.array([1.0, 1.0])) == pytest.approx(2**0.5)
    assert mae(np.array([1.0, 3.0]), np.array([1.0, 1.0])) == 1


@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop_and_sklearn(seed: int) -> None:
    user, score, label = rows(seed)
    squared, absolute = squared_error(user, score, label), absolute_error(user, score, label)
    assert squared.users.tolist() == sorted(set(user.tolist()))
    for i, u in enumerate(squared.users):
        errors = [(s - y) for w, s, y in zip(user, score, label, strict=True) if w == u]
        assert squared.weight[i] == absolute.weight[i] == len(errors)
        assert squared.total[i] == pytest.approx(sum(x * x for x in errors))
        assert absolute.total[i] == pytest.approx(sum(abs(x) for x in errors))
    assert squared.mean() == pytest.approx(mean_squared_error(label, score))
    assert rmse(score, label) == pytest.approx(squared.mean() ** 0.5)
    assert mae(score, label) == pytest.approx(mean_absolute_error(label, score))
    assert absolute.mean() == pytest.approx(mae(score, label))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_order_of_rows_changes_nothing(seed: int, n: int) -> None:
    user, score, label = rows(seed, n, 5)
    moved = np.random.default_rng(seed).permutation(n)
    a, b = squared_error(user, score, label), squared_error(user[moved], score[moved], label[moved])
    assert np.array_equal(a.users, b.users)
    assert np.array_equal(a.weight, b.weight)
    np.testing.assert_allclose(a.total, b.total)


def test_single_precision_is_summed_in_double() -> None:
    score = np.full(10, 1e4 + 0.5, np.float32)
    assert squared_error(np.zeros(10, int), score, np.zeros(10)).mean() == 10000.5**2


@pytest.mark.parametrize(
    ("score", "label", "message"),
    [
        ([1.0, np.nan], [1, 1], "row 1 with score nan and label 1"),
        ([1.0, 2.0], [1], "label has 1 rows and score has 2"),
        ([[1.0]], [1], r"score has shape \(1, 1\)"),
        ([], [], "no rows"),
    ],
)
def test_bad_rows_are_named(score: Any, label: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        rmse(np.array(score), np.array(label))
