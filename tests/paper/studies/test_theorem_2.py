"""The bound of theorem 2, and the gap of models trained on fewer key users and ratings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tables_world import small_dataset

from idcf.evaluation.protocol import standard_split
from idcf.paper.studies import theorem_2
from idcf.paper.studies.theorem_1 import GAMMA
from idcf.testing import trained_in_world
from idcf.training.job import LOCAL_RUNTIME

DATA = small_dataset("ml-100k")
WHOLE, _ = standard_split(DATA, gamma=GAMMA)


def test_the_bound_is_that_of_the_paper():
    bound = theorem_2.theorem_bound(8.0, 2.0, n_queries=50, n_keys=100, n_ratings=4000, norm=3.0)
    first = 2 * 8 * 3 * 2 * math.sqrt(2 * 50 * math.log(100) / 4000)
    assert bound == pytest.approx(first + math.sqrt(math.log(20) / 4000))


def test_b_is_the_largest_prediction_of_a_key_user():
    model = trained_in_world("idcf-dot").model
    p, b = model.key_latents[:, :-1].numpy(), model.key_latents[:, -1].numpy()
    q = model.backbone.item_table.vector.detach().numpy()
    slow = max(abs(float(p[u] @ q[i] + b[u])) for u in range(len(p)) for i in range(len(q)))
    assert theorem_2.largest_prediction(model) == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize(("key_share", "row_share"), [(0.5, 1.0), (1.0, 0.1), (1.0, 1.0)])
def test_a_reduced_split_has_fewer_key_users_or_rows(key_share, row_share):
    split = theorem_2.reduce_split(WHOLE, key_share, row_share, 0)
    assert len(split.key_users) == max(3, round(key_share * len(WHOLE.key_users)))
    assert set(split.key_users) <= set(WHOLE.key_users)
    n_rows = len(WHOLE.train.for_users(WHOLE.query_users))
    assert len(split.train.for_users(split.query_users)) == round(row_share * n_rows)
    of_keys = split.train.for_users(split.key_users)
    assert len(of_keys) == len(WHOLE.train.for_users(split.key_users))
    assert set(split.test.user) <= set(split.query_users)


def test_rows_have_the_gap_of_both_models():
    point = theorem_2.theorem_2_points("ml-100k", 1)[-1]
    rows = theorem_2.measure_theorem_2(point, DATA, LOCAL_RUNTIME)
    assert [row["class"] for row in rows] == list(theorem_2.CLASSES)
    for row in rows:
        assert row["gap"] == pytest.approx(row["test_error"] - row["train_error"])
        assert row["bound"] > abs(row["gap"])
    assert rows[0]["bound"] == rows[1]["bound"]


def test_predictions_outside_the_scale_are_clipped():
    rows = WHOLE.test
    assert theorem_2._squared_error(np.full(len(rows), 99.0), rows, (1.0, 5.0)) == pytest.approx(
        ((5.0 - rows.rating) ** 2).mean()
    )


def test_slopes_are_those_of_powers():
    x = np.array([1.0, 10, 100])
    assert theorem_2.log_slope(x, 3 * x**-0.5) == pytest.approx(-0.5)
    assert math.isnan(theorem_2.log_slope(x, -x))
