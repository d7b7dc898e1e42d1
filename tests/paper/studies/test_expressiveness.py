"""The two worlds of the appendix: who fails there must fail, and who works must work."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from idcf.inference.scoring import score_interactions
from idcf.paper.figure_runs import read_rows
from idcf.paper.studies import expressiveness as study
from idcf.testing.expressiveness import likes
from idcf.testing.worlds import train_on_small_split
from idcf.training.job import LOCAL_RUNTIME


def accuracy(world, system, epochs=None):
    contender = study.CONTENDERS[system]
    fast = replace(contender, epochs=epochs or contender.epochs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(study.CONTENDERS, system, fast)
        point = {"dataset": "synthetic", "world": world, "system": system, "seed": 0}
        [row] = study.measure_expressiveness(point, None, LOCAL_RUNTIME)
    return row["accuracy"]


@pytest.mark.parametrize("world", study.WORLDS)
def test_means_and_features_tell_nothing(world):
    split = study.WORLDS[world]()
    for table in (split.train, split.test):
        is_high = likes(table.user, table.item)
        np.testing.assert_array_equal(table.rating, np.where(is_high, 5, 1))
        assert len(np.unique(table.user_features, axis=0)) == 1
        for users in (split.key_users, split.query_users):
            rows = table.for_users(users)
            means = np.bincount(rows.user, rows.rating) / np.maximum(np.bincount(rows.user), 1)
            assert set(means[np.unique(rows.user)]) <= {3.0} or table is split.test
    assert split.test.rating.mean() == 3
    assert set(split.test.user) == set(split.query_users)


def test_subgraphs_of_test_pairs_do_not_depend_on_the_kind_of_user():
    split = study.WORLDS["same subgraphs"]()
    rated = np.zeros((len(split.train.users), len(split.train.items)))
    rated[split.train.user, split.train.item] = split.train.rating
    shapes = set()
    for user, item in zip(split.test.user.tolist(), split.test.item.tolist(), strict=True):
        neighbors, raters = np.flatnonzero(rated[user]), np.flatnonzero(rated[:, item])
        assert not rated[np.ix_(raters, neighbors)].any()  # no edge between the two sides
        shapes.add((tuple(sorted(rated[user, neighbors])), tuple(sorted(rated[raters, item]))))
    assert len(shapes) == 1


def test_a_local_graph_model_predicts_equal_values_for_both_kinds():
    split = study.WORLDS["same subgraphs"]()
    contender = study.CONTENDERS["igmc (local graph)"]
    model = train_on_small_split("igmc", split, epochs=1, options=contender.options).model
    scores = score_interactions(model, split.test, split.train, anonymous=True)
    kinds = [np.sort(scores[split.test.user % 2 == kind]) for kind in (0, 1)]
    np.testing.assert_allclose(*kinds, rtol=1e-4)


def test_features_fail_where_all_are_equal_and_ratings_do_not():
    assert accuracy("same features", "nimc (features)", 20) == pytest.approx(0.5, abs=0.1)
    assert accuracy("same features", "idcf-nn, d reads ratings") > 0.95
    assert accuracy("same features", "idcf-bayes") > 0.95


def test_eq_4_does_not_read_ratings_and_fails():
    assert accuracy("same features", "idcf-nn, d = Σ q (Eq. 4)", 15) == pytest.approx(0.5, abs=0.15)


def test_idcf_works_where_local_graphs_are_equal():
    """The posterior is quick to fit; the committed rows have the others."""
    assert accuracy("same subgraphs", "idcf-bayes") > 0.95
    rows = read_rows(Path(__file__).parents[3] / "experiments/results", study.STUDY)
    works = ["idcf-nn, d reads ratings", "idcf-gc, d = Σ q (Eq. 4)", "idcf-bayes"]
    for world, system in product(study.WORLDS, works):
        assert min(study.accuracies(rows, world, system)) > 0.95, (world, system)
    for system in ("nimc (features)", "igmc (local graph)", "idcf-nn, d = Σ q (Eq. 4)"):
        assert max(study.accuracies(rows, "same subgraphs", system)) < 0.7, system
