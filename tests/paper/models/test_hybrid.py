"""IDCF-HY: what the head reads, where a new user's vector comes from, and what is frozen."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import torch

from idcf.models.registry import configure
from idcf.paper.models.hybrid import HybridBackbone
from idcf.testing import synthetic_world, trained_in_world
from idcf.testing.worlds import epoch_batches, users_with_rows
from idcf.training.objectives import adaption_objective
from idcf.types import History, Users

SPLIT = synthetic_world(features=True).split
TABLE = SPLIT.train.for_users(SPLIT.key_users)


def backbone(table=TABLE, **options):
    torch.manual_seed(0)
    return HybridBackbone(configure("hybrid", options), table.domain())


def test_the_width_of_the_head_follows_from_the_number_of_features():
    """With four features on each side it is that of the paper."""
    rng = np.random.default_rng(0)
    users, items = len(TABLE.users), len(TABLE.items)
    table = replace(
        TABLE,
        user_features=rng.normal(size=(users, 9)).astype(np.float32),
        item_features=rng.normal(size=(items, 8)).astype(np.float32),
        user_feature_widths=(2, 3, 3, 1),
        item_feature_widths=(5, 1, 1, 1),
    )
    shapes = [tuple(p.shape) for p in backbone(table).head.net.parameters() if p.ndim > 1]
    assert shapes == [(64, 320), (64, 64), (1, 64)]


def test_in_stage_1_a_share_of_the_users_has_induced_vectors():
    model = backbone(induced_share=0.5).train()
    users = users_with_rows(TABLE)
    own = model.user_table.vector[users.ids]
    p = model.embed_users(users).vector[:, : own.shape[1]]
    is_own = (p == own).all(1)
    assert 0.3 < is_own.float().mean() < 0.7
    p = model.eval().embed_users(users).vector[:, : own.shape[1]]
    assert torch.equal(p, own)


def test_a_new_user_is_a_mixture_of_key_users_by_features():
    model = trained_in_world("idcf-hy").model
    features = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    users = Users(torch.tensor([-1, -1]), History.empty(2), features)
    with torch.no_grad():
        y = features @ (
            model.backbone.user_fields.membership[:, :, None]
            * model.backbone.user_fields.weight[:, None]
        ).flatten(1)
        keys = model.key_latents[:, :-1]
        weights = model.relation.attention_weights(y, keys, model.key_scale)
        folded = model.relation.fold().value_out
        expected = sum(weights[h] @ keys @ folded[h] for h in range(len(weights)))
        embeddings = model.embed_users(users)
    torch.testing.assert_close(embeddings.vector, torch.cat([expected, y], 1))
    assert not embeddings.bias.any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:2]))


def test_a_user_without_features_has_the_mean_key_latent():
    model = trained_in_world("idcf-hy").model
    users = Users(torch.tensor([-1, -1]), History.empty(2), torch.zeros(2, 2))
    with torch.no_grad():
        vector = model.embed_users(users).vector
    mean = model.mean_key_latent[:-1]
    torch.testing.assert_close(vector[:, : len(mean)], mean.expand(2, -1))
    without = model.embed_users(Users(users.ids, users.history)).vector
    torch.testing.assert_close(vector, without.detach())


def test_stage_2_trains_the_relation_and_the_head_alone():
    trained = trained_in_world("idcf-hy")
    model, stage_1 = trained.model, trained.key_user_model
    for name in ("user_table", "item_table", "user_fields", "item_fields"):
        parts = (getattr(x, name).state_dict() for x in (model.backbone, stage_1))
        before, after = (list(x.values()) for x in parts)
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), name
    names = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert names == {"relation", "head"}


def test_the_contrast_pulls_induced_vectors_to_those_of_the_users():
    model = trained_in_world("idcf-hy").model
    batch = next(iter(epoch_batches(model, TABLE, 10_000)))
    with torch.no_grad():
        terms = adaption_objective(2.0)(model, batch)
        _, induced = model.adapted_scores(batch)
        own = model.backbone.user_table.vector[batch.users.ids]
        expected = -torch.log_softmax(own @ induced.T, 1).diagonal().mean() * 2
    torch.testing.assert_close(terms["contrast"], expected)


def test_meta_learning_scores_rows_after_a_step_on_other_rows_of_the_group():
    """With a rate of 0 it is the plain score; each half of a group's rows adapts to the other."""
    model = deepcopy(trained_in_world("idcf-hy").model).train()
    batch = next(iter(epoch_batches(model, TABLE, 10_000)))
    model.config = configure("idcf-hy", {"n_attended_users": 10_000})
    plain, _ = model.adapted_scores(batch)
    model.config = configure("idcf-hy-meta", {"n_attended_users": 10_000, "meta_rate": 0.0})
    torch.testing.assert_close(model.adapted_scores(batch)[0], plain)
    options = {"n_attended_users": 10_000, "meta_groups": 1, "meta_rate": 0.3}
    model.config = configure("idcf-hy-meta", options)
    torch.manual_seed(3)
    scores, _ = model.adapted_scores(batch)
    torch.manual_seed(3)
    torch.randint(1, (len(batch.users),))
    half = torch.rand(len(batch.items)) < 0.5
    for support in (half, ~half):
        stepped = deepcopy(model)
        stepped.config = configure("idcf-hy", {"n_attended_users": 10_000})
        optimizer = torch.optim.SGD(stepped.relation.parameters(), lr=0.3)
        error = stepped.adapted_scores(batch)[0] - batch.labels
        error[support].square().mean().backward()
        optimizer.step()
        expected = stepped.adapted_scores(batch)[0][~support]
        torch.testing.assert_close(scores[~support], expected, rtol=1e-4, atol=1e-5)
