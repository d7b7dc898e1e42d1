"""The demographic ridge, Wide & Deep and GC-MC with features against slow references."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from idcf import Recommender
from idcf.models.registry import configure, model_entry
from idcf.paper.models.agnn import AGNN
from idcf.paper.models.gcmc_features import GCMCFeatures
from idcf.paper.models.wide_deep import WideDeep
from idcf.paper.solvers.demographic_ridge import fit_demographic_ridge
from idcf.testing import synthetic_world, trained_in_world
from idcf.testing.worlds import users_with_rows
from idcf.training.solvers import SolverContext
from idcf.types import Users

SPLIT = synthetic_world(features=True).split
TABLE = SPLIT.train.for_users(SPLIT.key_users)


@pytest.mark.parametrize("crosses", [False, True])
def test_the_ridge_solves_the_weighted_normal_equations(crosses):
    config = configure("demographic-ridge", {"reg": 2.0, "crosses": crosses})
    model = fit_demographic_ridge(config, TABLE, SolverContext())
    x = TABLE.user_features.clip(-3, 3)[TABLE.user].astype(float)
    z = TABLE.item_features.clip(-3, 3)[TABLE.item].astype(float)
    z = np.column_stack([z[:, : 2 * crosses], np.ones(len(z))])
    design = (x[:, :, None] * z[:, None]).reshape(len(x), -1)
    weight = 1 / TABLE.user_counts()[TABLE.user]
    counts = TABLE.item_counts()
    sums = np.bincount(TABLE.item, TABLE.rating - TABLE.mean_rating, len(counts))
    residual = TABLE.rating - TABLE.mean_rating - (sums / (counts + 3))[TABLE.item]
    gram = design.T @ (design * weight[:, None]) + 2 * np.eye(design.shape[1])
    expected = np.linalg.solve(gram, design.T @ (residual * weight))
    np.testing.assert_allclose(model.weights.flatten(), expected, atol=1e-5)


def test_the_ridge_without_features_is_the_item_mean():
    table = replace(TABLE, user_features=None, item_features=None)
    config = configure("demographic-ridge")
    model = fit_demographic_ridge(config, table, SolverContext())
    users = users_with_rows(table)
    scores = model.score_catalog(users)
    torch.testing.assert_close(scores, (model.mean + model.item_mean).expand_as(scores))


def test_wide_and_deep_is_the_sum_of_its_parts():
    torch.manual_seed(0)
    model = WideDeep(configure("wide-deep", {"hidden": (5,)}), TABLE.domain()).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    users, item = users_with_rows(TABLE), 3
    x, z = users.features[2].clamp(-3, 3), model.item_features[item].clamp(-3, 3)
    wide = x @ model.wide + z @ model.crosses @ x
    deep = model.head.net(
        torch.cat([model.user_fields(x), model.item_fields(z), model.item_table.vector[item]])
    )
    expected = model.mean + model.item_table.bias[item] + wide + deep[0]
    torch.testing.assert_close(model.score_catalog(users)[2, item], expected)


def test_gcmc_hides_the_target_from_the_item():
    """As if the graph had never held the rating."""
    options = {"hidden": 6, "embedding_size": 4, "feature_size": 3}
    no_dropout = {"dropout": 0.0, "node_dropout": 0.0, "history_dropout": 0.0}
    config = configure("gcmc-features", {**options, **no_dropout})
    torch.manual_seed(0)
    model = GCMCFeatures(config, TABLE.domain()).train()
    row = 5
    user, item = TABLE.user[row], TABLE.item[row]
    keep = np.arange(len(TABLE)) != row
    other = GCMCFeatures(config, replace(TABLE.where(keep)).domain()).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    weights = dict(model.named_parameters())
    other.load_state_dict({**other.state_dict(), **weights})
    other.user_count.copy_(model.user_count)
    users = TABLE.where(keep).build_users(np.array([user]))
    items, owner = torch.tensor([[item]]), torch.tensor([0])
    torch.testing.assert_close(
        model.level_logits(users, items, owner), other.level_logits(users, items, owner)
    )
    seen = model.eval().level_logits(users, items, owner)
    assert not torch.allclose(seen, other.level_logits(users, items, owner), atol=1e-4)


def test_an_isolated_user_of_gcmc_is_known_by_features():
    model = trained_in_world("gcmc-features").model
    users = SPLIT.train.build_users(SPLIT.query_users)
    empty = SPLIT.train.where(SPLIT.train.user < 0).build_users(SPLIT.query_users)
    with torch.no_grad():
        z = model._embed_users(Users(users.ids, empty.history, users.features))
        torch.testing.assert_close(z, model.user_layer(users.features))


def test_agnn_reads_no_id_of_a_user_that_it_scores():
    torch.manual_seed(0)
    model = AGNN(configure("agnn", {"n_candidates": 8}), TABLE.domain()).eval()
    users = users_with_rows(TABLE)
    expected = model.embed_users(users).vector
    torch.testing.assert_close(model.embed_users(users.anonymous()).vector, expected)
    assert not model.embed_users(users).bias.any()
    own = torch.arange(len(model.key_rows))[:, None]
    assert not (model.user_candidates == own).any(), "a user is no neighbor of itself"


@pytest.mark.parametrize(
    "name", ["demographic-ridge", "wide-deep", "gcmc-features", "agnn", "melu", "idcf-hy"]
)
def test_a_saved_model_reads_features_after_loading(name, tmp_path):
    """Through `fit(users=…, items=…)`; without features the model says something too."""
    import pandas as pd

    table = synthetic_world().split.train
    rows = pd.DataFrame({"user_id": table.user, "item_id": table.item, "rating": table.rating})
    users = pd.DataFrame({"user_id": range(160), "kind": [f"k{n % 2}" for n in range(160)]})
    items = pd.DataFrame({"item_id": range(40), "side": [f"s{n % 2}" for n in range(40)]})
    options = {} if name == "demographic-ridge" else {"learning_rate": 0.02, "epochs": 6}
    if name not in ("demographic-ridge", "gcmc-features"):
        options |= {"weight_decay": 0.0}
    model = Recommender(name, key_threshold=8, device="cpu", **options)
    model.fit(rows, users=users, items=items)
    loaded = Recommender.load(model.save(tmp_path / "model", allow_training_rows=True))
    for kind in (0, 1):
        features = {"kind": f"k{kind}"}
        expected = model.recommend({}, n=6, features=features)
        recommended = loaded.recommend({}, n=6, features=features)
        assert recommended == expected  # to the last bit
        assert sum(x.item_id % 2 == kind for x in expected) >= 5
        for history in ({}, {3: 5.0, 4: 1.0}):
            scores = loaded.predict(history, range(40), features=features)
            assert scores.tolist() == model.predict(history, range(40), features=features).tolist()
    for key, tensor in model.artifact.tensors().items():
        assert torch.equal(loaded.artifact.tensors()[key], tensor), key
    assert len(loaded.recommend({3: 5.0}, n=4)) == 4


@pytest.mark.parametrize("name", ["wide-deep", "gcmc-features", "agnn", "melu", "hybrid"])
def test_features_can_be_left_out(name):
    config = configure(name, {"user_features": False, "item_features": False})
    model = model_entry(name).build(config, TABLE.domain()).eval()
    users = users_with_rows(TABLE)
    with torch.no_grad():
        scores = model.score_catalog(users)
        without = model.score_catalog(Users(users.ids, users.history))
    torch.testing.assert_close(scores, without)
