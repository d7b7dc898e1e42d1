"""Scores of held-out rows, against one call of the model per row, and the errors made of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from idcf.data.split import hold_out_users
from idcf.errors import ConfigError
from idcf.inference.scoring import (
    auc_loss_on,
    interaction_std,
    ndcg_loss_on,
    ndcg_per_user,
    rmse_on,
    score_interactions,
    top_unseen_items,
)
from idcf.models.registry import configure, model_entry
from idcf.testing import synthetic_world
from idcf.training.solvers import SolverContext

OPTIONS = {"idcf-bayes": {"sweeps": 8, "burn_in": 4, "embedding_size": 4, "rank": 5}}


@cache
def fitted(name, implicit=False):
    """Return a model fitted without some users, and the task of predicting these users' rows."""
    table = synthetic_world(implicit=implicit).split.train
    users = np.flatnonzero(table.user_counts())[:9]
    train_rows, task = hold_out_users(table, users, (0, 6), np.random.default_rng(0))
    config = configure(name, OPTIONS.get(name, {}))
    return model_entry(name).load_solver()(config, train_rows, SolverContext(0)).eval(), task


def tables(task):
    """Return the rows to predict and the histories."""
    return task.target_table, task.history_table


def one_by_one(function, task):
    """Return the values of rows that are scored alone, in the order of the table."""
    targets, values = task.target_table, []
    for user, item in zip(targets.user, targets.item, strict=True):
        users = task.history_table.build_users(np.array([user])).anonymous()
        with torch.no_grad():
            values.append(float(function(users, torch.tensor([[item]]), torch.tensor([0]))[0, 0]))
    return values


@pytest.mark.parametrize("batch_size", [1, 7, 8192])
@pytest.mark.parametrize("name", ["bias", "idcf-bayes"])
def test_scores_do_not_depend_on_the_batch(name, batch_size):
    model, task = fitted(name)
    scores = score_interactions(model, *tables(task), anonymous=True, batch_size=batch_size)
    np.testing.assert_allclose(scores, one_by_one(model, task), atol=1e-5)


def test_standard_deviations_are_those_of_single_rows():
    model, task = fitted("idcf-bayes")
    std = interaction_std(model, *tables(task), anonymous=True, batch_size=5)
    np.testing.assert_allclose(std, one_by_one(model.predictive_std, task), rtol=1e-4)
    assert (std > 0).all()


def test_scores_are_in_the_order_of_the_table():
    model, task = fitted("bias")
    order = np.random.default_rng(1).permutation(len(task.target_table))
    scores = score_interactions(model, task.target_table, task.history_table, anonymous=True)
    shuffled = score_interactions(
        model, task.target_table.where(order), task.history_table, anonymous=True
    )
    np.testing.assert_allclose(shuffled, scores[order], rtol=1e-6)


def test_an_empty_table_has_no_scores():
    model, task = fitted("bias")
    nothing = task.target_table.where(np.zeros(len(task.target_table), bool))
    assert score_interactions(model, nothing, task.history_table, anonymous=True).shape == (0,)


def test_a_model_without_posterior_has_no_deviations():
    model, task = fitted("bias")
    with pytest.raises(ConfigError, match=r"BiasModel has no standard deviations.*idcf-bayes"):
        interaction_std(model, *tables(task), anonymous=True)


def test_rmse_of_known_errors():
    """Ratings moved by 2 away from the scores have RMSE 2, equal ones 0."""
    model, task = fitted("bias")
    scores = score_interactions(model, *tables(task), anonymous=True)
    for shift in (0.0, 2.0):
        signs = np.where(np.arange(len(scores)) % 2, 1, -1)
        targets = replace(task.target_table, rating=(scores + shift * signs).astype(np.float32))
        assert rmse_on(model, targets, task.history_table) == pytest.approx(shift, abs=1e-5)


def test_auc_of_ties_and_of_the_best_and_the_worst_item():
    model, task = fitted("popularity", implicit=True)
    targets, history = task.target_table, task.history_table

    def loss(counts, item):
        model.counts = counts
        rows = replace(targets, item=np.full(len(targets), item))
        return auc_loss_on(model, rows, history, n_negatives=4, rng=np.random.default_rng(0))

    before, n_items = model.counts, model.n_items
    ascending = torch.arange(n_items).float()
    try:
        assert loss(torch.ones(n_items), 0) == 0.5
        assert loss(ascending, n_items - 1) < 0.05 < 0.95 < loss(ascending, 0)
    finally:
        model.counts = before


def test_top_items_are_the_best_unseen_ones_and_their_ndcg_the_mean():
    model, task = fitted("popularity", implicit=True)
    users = np.unique(task.target_table.user)
    top = top_unseen_items(model, users, task.history_table, 3, anonymous=True)
    for user, items in zip(users, top, strict=True):
        seen = set(task.history_table.item[task.history_table.user == user])
        ranked = sorted(range(model.n_items), key=lambda i: (-float(model.counts[i]), i))
        assert items.tolist() == [i for i in ranked if i not in seen][:3]
    ndcg = ndcg_per_user(model, *tables(task))
    assert len(ndcg) == len(users)
    assert ((ndcg >= 0) & (ndcg <= 1)).all()
    assert ndcg_loss_on(model, *tables(task)) == pytest.approx(1 - np.nanmean(ndcg))
