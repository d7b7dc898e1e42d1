"""Metrics of an evaluation set, compared with loops over users and items."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idcf.errors import DataError
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import (
    ModelAssignment,
    compute_metrics,
    expected_random_metrics,
    inductive_rmse,
    metric_names,
)
from idcf.inference.scoring import score_interactions
from idcf.testing import synthetic_world, trained_in_world


def system(name: str, implicit: bool = False) -> tuple[EvaluationSet, list[ModelAssignment]]:
    """The query users of a synthetic world, and a model trained in it."""
    users = (split := synthetic_world(implicit=implicit).split).query_users
    model = trained_in_world(name, implicit=implicit).model
    return EvaluationSet.from_split(split, users), [ModelAssignment(model, users)]


@pytest.mark.parametrize("implicit", [False, True])
def test_catalogue_metrics_against_a_loop(implicit: bool) -> None:
    evaluation_set, assignments = system("ease", implicit)
    histories, test = evaluation_set.history_table, evaluation_set.test_rows
    users = histories.build_users(evaluation_set.users).anonymous()
    with torch.no_grad():
        scores = assignments[0].model.score_catalog(users).numpy()
    recalls, ndcgs = [], []
    for row, user in zip(scores, evaluation_set.users, strict=True):
        seen = set(histories.item[histories.user == user].tolist())
        ranked = [i for i in np.argsort(-row, kind="stable").tolist() if i not in seen]
        rows = test.where(test.user == user)
        gain = {
            int(i): 1.0 if implicit else 2.0**r - 1
            for i, r in zip(rows.item, rows.rating, strict=True)
        }
        recalls.append(len(gain.keys() & set(ranked[:20])) / len(gain))
        dcg = sum(gain.get(i, 0) / np.log2(n + 2) for n, i in enumerate(ranked[:10]))
        best = sorted(gain.values(), reverse=True)[:10]
        ndcgs.append(dcg / sum(g / np.log2(n + 2) for n, g in enumerate(best)))
    got = compute_metrics(evaluation_set, assignments)
    assert got["recall@20"].interval.value == pytest.approx(np.mean(recalls))
    assert got["ndcg@10"].interval.value == pytest.approx(np.mean(ndcgs))
    assert set(got) <= set(metric_names(implicit))
    without = compute_metrics(evaluation_set, assignments, rank_catalog=False)
    assert {*got} - {*without} == {x for x in got if "@" in x}


def test_both_gains_of_ndcg_against_a_loop() -> None:
    """2^rating - 1, as in the paper's public code, and the rating, as in its formula."""
    evaluation_set, assignments = system("bias")
    names = ["ndcg", "ndcg-linear"]
    got = compute_metrics(evaluation_set, assignments, names=names)
    expected_random = expected_random_metrics(evaluation_set, names)
    assert list(got) == list(expected_random) == names
    rows, table = evaluation_set.test_rows, evaluation_set.history_table
    scores = score_interactions(assignments[0].model, rows, table, anonymous=True)
    for name, gain in (("ndcg", lambda r: 2.0**r - 1), ("ndcg-linear", float)):
        values = []
        for user in evaluation_set.users:
            of_user = rows.user == user
            pairs = sorted(zip(-scores[of_user], rows.rating[of_user], strict=True))
            best = sorted(rows.rating[of_user].tolist(), reverse=True)
            dcg = sum(gain(r) / np.log2(n + 2) for n, (_, r) in enumerate(pairs))
            if len(pairs) > 1:
                values.append(dcg / sum(gain(r) / np.log2(n + 2) for n, r in enumerate(best)))
        assert got[name].interval.value == pytest.approx(np.mean(values))
    assert "ndcg-linear" not in compute_metrics(evaluation_set, assignments)  # on request


def test_rmse_of_the_histories_of_the_split() -> None:
    evaluation_set, assignments = system("bias")
    interval = compute_metrics(evaluation_set, assignments)["rmse"].interval
    model, histories = assignments[0].model, evaluation_set.history_table
    assert inductive_rmse(evaluation_set, model, histories) == pytest.approx(interval)


def test_a_user_without_a_model_is_an_error() -> None:
    evaluation_set, [part] = system("bias")
    with pytest.raises(DataError, match="rows have no finite error"):
        compute_metrics(evaluation_set, [part._replace(users=part.users[:-3])])


def test_expected_recall_of_a_random_order() -> None:
    evaluation_set, _ = system("bias")
    n_seen = evaluation_set.history_table.user_counts()[evaluation_set.users]
    expected = expected_random_metrics(evaluation_set)
    assert list(expected) == ["ndcg", "ndcg@10", "recall@20"]
    assert expected["recall@20"].interval.value == pytest.approx(np.mean(20 / (40 - n_seen)))
