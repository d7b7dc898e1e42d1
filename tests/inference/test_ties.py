"""Items of equal score stand in the order of their rows, on every path to a list and device."""

from functools import cache

import numpy as np
import pytest
import torch

from idcf import Recommender
from idcf.data.interactions import Interactions
from idcf.inference.benefit import BenefitOrder
from idcf.inference.manifest import DomainInfo
from idcf.inference.scoring import top_unseen_items
from idcf.models.registry import configure, model_entry
from idcf.testing.synthetic import checkerboard
from idcf.training.solvers import SolverContext

N_USERS, N_ITEMS, K = 24, 400, 12
USERS = np.arange(N_USERS)
has_gpu = torch.cuda.is_available()
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not has_gpu, reason="needs a GPU"))


@cache
def table() -> Interactions:
    """A table whose items have 0 to 5 ratings, all of them 1 or 5: nearly every score is tied."""
    return checkerboard(
        N_USERS, N_ITEMS, np.random.default_rng(0), rows_per_light_user=20, rows_per_heavy_user=20
    )


def fitted(name, device):
    """Return a model of the table, on a device."""
    model = model_entry(name).load_solver()(configure(name), table(), SolverContext(0))
    return model.to(device).eval()


def stable_lists(scores):
    """Return the lists of plain stable sorts, without the items of the histories."""
    lists = []
    for user, row in zip(USERS, scores, strict=True):
        seen = set(table().item[table().user == user].tolist())
        ranked = [i for i in np.argsort(-row, kind="stable").tolist() if i not in seen]
        assert (np.diff(row[ranked[:K]]) == 0).sum() > K / 3  # there are ties to order
        lists.append(ranked[:K])
    return lists


@pytest.mark.parametrize("users_per_block", [1, 7, N_USERS])
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", ["popularity", "item-mean"])
def test_lists_of_an_evaluation(name, device, users_per_block, monkeypatch):
    monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", users_per_block * N_ITEMS)
    monkeypatch.setattr("idcf.inference.topk._MIN_PRODUCT_USERS", 1)
    model = fitted(name, device)
    with torch.no_grad():
        users = table().build_users(USERS).anonymous().to(model.device)
        scores = model.score_catalog(users).float().cpu().numpy()
    lists = top_unseen_items(model, USERS, table(), K, anonymous=True)
    assert lists.tolist() == stable_lists(scores)


@pytest.mark.parametrize("users_per_block", [7, N_USERS])
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("quality", [0.0, 0.4])
def test_lists_by_expected_benefit(quality, device, users_per_block, monkeypatch):
    monkeypatch.setattr("idcf.inference.topk._MAX_SCORES_PER_BLOCK", users_per_block * N_ITEMS)
    monkeypatch.setattr("idcf.inference.topk._MIN_PRODUCT_USERS", 1)
    model = fitted("popularity", device)
    order = BenefitOrder(model, DomainInfo.from_table(table(), 3.0), quality)
    lists = top_unseen_items(model, USERS, table(), K, anonymous=True, order=order)
    scores = np.tile(model.counts.cpu().numpy(), (N_USERS, 1))  # the benefit grows with the count
    assert lists.tolist() == stable_lists(scores)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_served_lists_of_one_user_and_of_many(device):
    recommender = Recommender("popularity", key_threshold=10, device=device).fit(table())
    histories = [
        {table().items.ids[i]: 5.0 for i in table().item[table().user == user]} for user in USERS
    ]
    counts = np.bincount(table().item, minlength=N_ITEMS).astype(float)
    expected = stable_lists(np.tile(counts, (N_USERS, 1)))
    rows = {item: row for row, item in enumerate(table().items.ids)}
    for user, served in enumerate(recommender.recommend(histories, n=K)):
        assert [rows[x.item_id] for x in served] == expected[user]
    one = recommender.recommend(histories[3], n=K)
    assert [rows[x.item_id] for x in one] == expected[3]
