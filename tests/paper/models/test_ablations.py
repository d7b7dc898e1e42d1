"""The ablations of the paper (meta-path, trans-user, rd-item) against slow references."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from idcf.models.idcf import IDCF
from idcf.models.layers.meta_path import MetaPathNeighbors
from idcf.models.layers.relation import Relation
from idcf.models.registry import configure, model_entry
from idcf.paper.models.trans_user import TransUser
from idcf.testing import synthetic_world, trained_in_world
from idcf.testing.worlds import epoch_batches, untrained_model, users_with_rows
from idcf.training.objectives import adaption_objective
from idcf.training.presets import has_preset_row, stage_config
from idcf.training.train import TrainingJob, train
from idcf.types import Embeddings, History, Users

SPLIT, IMPLICIT_SPLIT = synthetic_world().split, synthetic_world(implicit=True).split
TABLE = SPLIT.train.for_users(SPLIT.key_users)
KEY_USERS = users_with_rows(TABLE)


def new_users(split=SPLIT, n=6):
    ids = split.query_users[:n]
    return Users(torch.from_numpy(ids), split.train.history(ids)).anonymous()


def profiles_of(history):
    """Yield the items and the values of every user."""
    items, values, offsets = history
    for a, b in pairwise(offsets.tolist()):
        yield items[a:b].tolist(), values[a:b].tolist()


# --- meta-path


def slow_neighbor_mask(history, n_neighbors, exclude_users):
    """The key users that share most items with each history, apart from one excluded user each.

    Ties go to the shorter history, then to the higher number.
    """
    key_items = [set(items) for items, _ in profiles_of(KEY_USERS.history)]
    mask = np.zeros((len(exclude_users), len(key_items)), bool)
    for u, (items, _) in enumerate(profiles_of(history)):
        n_common = [len(x & set(items)) for x in key_items]
        candidates = [
            k for k in range(len(key_items)) if n_common[k] and KEY_USERS.ids[k] != exclude_users[u]
        ]
        order = sorted(candidates, key=lambda k: (-n_common[k], len(key_items[k]), -k))
        mask[u, order[:n_neighbors]] = True
    return torch.from_numpy(mask)


@pytest.mark.parametrize("n_neighbors", [1, 7, 50, 10_000])
def test_neighbors_are_those_of_a_loop(n_neighbors):
    neighbors = MetaPathNeighbors(TABLE.domain().n_items, KEY_USERS)
    history, no_users = new_users(n=12).history, torch.full((12,), -1)
    expected = slow_neighbor_mask(history, n_neighbors, no_users)
    assert torch.equal(neighbors.neighbor_mask(history, n_neighbors), expected)
    ids = KEY_USERS.ids[:12]
    history = TABLE.history(ids.numpy())
    expected = slow_neighbor_mask(history, n_neighbors, ids)
    assert torch.equal(neighbors.neighbor_mask(history, n_neighbors, ids), expected)


def meta_path_model(**options):
    torch.manual_seed(0)
    config = configure("meta-path", {"n_attended_users": 9, **options})
    return IDCF(config, trained_in_world("nnmf").model, KEY_USERS)


def induced_latents(model, history, ids=None):
    return model.induce_latents(history, model.encode_history(history), ids)


def test_only_neighbors_are_attended_to():
    model, users = meta_path_model().eval(), new_users()
    with torch.no_grad():
        model.relation.query.mul_(20)  # so that attention is far from uniform
        latents, weights = induced_latents(model, users.history), model.attention_weights(users)
        mask = slow_neighbor_mask(users.history, 9, torch.full((len(users),), -1))
        assert torch.equal((weights > 0).all(0), mask)
        query = model.encode_history(users.history).query
        for u in range(len(users)):
            neighbor_latents = model.key_latents[mask[u]]
            expected = model.relation(query[u : u + 1], neighbor_latents, model.key_scale)[0]
            torch.testing.assert_close(latents[u], expected)


@pytest.mark.parametrize("attention", ["dot", "additive", "literal"])
def test_every_attention_can_be_masked(attention):
    torch.manual_seed(0)
    relation = Relation(5, 4, 2, attention)
    mask = torch.rand(3, 8) < 0.5
    mask[:, 0] = True
    weights = relation.attention_weights(torch.randn(3, 5), torch.randn(8, 4), 1.0, mask)
    assert not weights[:, ~mask].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))


def test_in_training_a_key_user_does_not_attend_to_itself():
    """It was trained on the ratings that are now the targets."""
    model = meta_path_model(n_attended_users=10_000).train()
    batch = next(iter(epoch_batches(model, TABLE, 10_000)))
    ids, history = batch.users.ids[:1], batch.users.history
    history = History(*(x[: history.offsets[1]] for x in history[:2]), history.offsets[:2])
    with torch.no_grad():
        before = induced_latents(model, history, ids)
        model.key_latents[KEY_USERS.ids == ids] += 5.0
        torch.testing.assert_close(induced_latents(model, history, ids), before)
        model.eval()  # now ids are ignored, and every key user who shares an item is attended to
        assert not torch.allclose(induced_latents(model, history, ids), before)
    model.train()
    terms = adaption_objective(0.1)(model, batch)
    sum(terms.values()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_a_user_without_neighbors_has_the_mean_latent():
    table = TABLE.where(TABLE.item != 3)
    backbone = trained_in_world("nnmf").model
    model = IDCF(configure("meta-path"), backbone, users_with_rows(table)).eval()
    history = History(torch.tensor([3]), torch.tensor([4.0]), torch.tensor([0, 1]))
    with torch.no_grad():
        torch.testing.assert_close(induced_latents(model, history)[0], model.mean_key_latent)


# --- trans-user


def trans_user_model(backbone_name="pmf", implicit=False, **options):
    split = IMPLICIT_SPLIT if implicit else SPLIT
    key_users = users_with_rows(split.train.for_users(split.key_users))
    torch.manual_seed(0)
    backbone = trained_in_world(backbone_name, implicit=implicit).model
    return TransUser(configure("trans-user", options), backbone, key_users).eval()


def design_matrix(model, items):
    """For a dot product: the vectors of the items, and 1 for the user's bias."""
    vectors = model.backbone.item_table.vector[items].double()
    return torch.cat([vectors, torch.ones(len(items), 1)], 1).numpy()


def residuals_of(model, items, values):
    """Ratings minus the mean and the item biases."""
    bias = model.backbone.item_table.bias[items].double()
    return (torch.tensor(values).double() - model.mean - bias).detach().numpy()


def test_the_ridge_solution_is_that_of_the_normal_equations():
    model, users = trans_user_model(reg=0.7, bias_reg=2.0), new_users()
    with torch.no_grad():
        embeddings = model.embed_users(users)
    start, penalty = model.mean_key_latent.double().numpy(), np.diag([0.7] * 8 + [2.0])
    for u, (items, values) in enumerate(profiles_of(users.history)):
        x, y = design_matrix(model, items), residuals_of(model, items, values)
        expected = np.linalg.solve(x.T @ x + penalty, x.T @ y + penalty @ start)
        np.testing.assert_allclose(embeddings.vector[u], expected[:-1], atol=1e-4)
        np.testing.assert_allclose(embeddings.bias[u], expected[-1], atol=1e-4)


def test_without_a_penalty_the_solution_is_the_nearest_minimum():
    """With fewer ratings than unknowns all are fitted exactly, by the smallest change."""
    model = trans_user_model(steps=200)
    items, values = [3, 8, 20], [1.0, 5.0, 2.0]
    history = History(torch.tensor(items), torch.tensor(values), torch.tensor([0, 3]))
    latent = model.fit_users(model.fit_problem(history))[0].detach().numpy()
    x, y = design_matrix(model, items), residuals_of(model, items, values)
    start = model.mean_key_latent.double().numpy()
    np.testing.assert_allclose(x @ latent, y, atol=0.01)
    np.testing.assert_allclose(latent, start + np.linalg.pinv(x) @ (y - x @ start), atol=0.05)


def slow_loss(model, latent, items, values):
    """Eq. 3 and the ridge penalty, row by row; without ratings, with the negatives."""
    total, head = 0.0, model.head.double()

    def score(item):
        q = model.backbone.item_table(torch.tensor([item]))
        product = head(latent[None, :-1], q.vector.double())
        return product + latent[-1] + q.bias.double() + model.mean

    for item, value in zip(items, values, strict=True):
        if model.predicts_ratings:
            total = total + (score(item) - value).square() / 2
        else:
            total = total - torch.nn.functional.logsigmoid(score(item))
    if not model.predicts_ratings:
        negatives = [i for i in model.negative_items.tolist() if i not in items]
        weight = model.config.negative_weight * len(items) / len(negatives)
        for item in negatives:
            total = total - weight * torch.nn.functional.logsigmoid(-score(item))
    distance = (latent - model.mean_key_latent).square()
    reg, bias_reg = model.config.reg, model.config.bias_reg
    return (total + reg * distance[:-1].sum() / 2 + bias_reg * distance[-1] / 2).squeeze()


@pytest.mark.parametrize("implicit", [False, True])
def test_the_fit_ends_at_a_minimum(implicit):
    """The loss through a perceptron has no gradient there and is lower than at the start."""
    model = trans_user_model("nnmf", implicit, reg=1.0, bias_reg=1.0, n_negatives=15)
    users = new_users(IMPLICIT_SPLIT if implicit else SPLIT, 4)
    problem = model.fit_problem(users.history)
    latents = model.fit_users(problem).detach()
    losses = model._loss(latents, problem)
    for u, (items, values) in enumerate(profiles_of(users.history)):
        latent = latents[u].clone().requires_grad_()
        loss = slow_loss(model, latent, items, values)
        assert float(loss.detach()) == pytest.approx(float(losses[u]), rel=1e-6)
        (gradient,) = torch.autograd.grad(loss, latent)
        assert gradient.abs().max() < 1e-3
        assert loss < slow_loss(model, model.mean_key_latent.double(), items, values)


def test_scores_in_inference_mode_are_those_without_gradients():
    model = trans_user_model("nnmf")
    with torch.no_grad():
        expected = model.score_catalog(new_users())
    with torch.inference_mode():
        assert torch.equal(model.score_catalog(new_users()), expected)


def test_held_out_users_choose_the_ridge():
    trained = train("trans-user-ridge", TrainingJob(SPLIT, dataset="ml-100k"))
    grid = model_entry("trans-user-ridge").expand_grid({}, implicit=False)
    assert trained.options in grid
    assert len(grid) == 10
    fixed_reg = model_entry("trans-user-ridge").expand_grid({"reg": 0.5}, implicit=False)
    assert [x["reg"] for x in fixed_reg] == [0.5, 0.5]
    assert model_entry("trans-user").expand_grid({}, implicit=False) == [{}]


# --- rd-item


def test_random_item_vectors_are_not_trained():
    backbone = trained_in_world("nnmf-rd", shared_taste=True).model
    model = trained_in_world("rd-item", shared_taste=True).model
    vectors = backbone.item_table.vector
    assert torch.equal(vectors, model.backbone.item_table.vector)
    assert float(vectors.std()) == pytest.approx(0.1, rel=0.2)
    torch.manual_seed(0)
    untrained = untrained_model("nnmf-rd", TABLE, KEY_USERS)
    assert not untrained.item_table.vector.requires_grad
    assert untrained.item_table.bias.requires_grad  # item quality can still be learned


@pytest.mark.parametrize("name", ["rd-item", "meta-path"])
@pytest.mark.parametrize("preset", ["clean", "published"])
def test_an_ablation_has_the_presets_of_idcf_nn(name, preset):
    for dataset in ("", "ml-100k", "ml-1m", "amazon-books"):
        assert stage_config(name, preset=preset, dataset=dataset) == stage_config(
            "idcf-nn", preset=preset, dataset=dataset
        )


# --- the ablations of IDCF-GC


def test_free_latents_keep_the_messages_of_the_graph():
    """trans-user-gc scores [p ‖ m_u]: a latent that is fitted, and the messages of the history."""
    torch.manual_seed(0)
    backbone = trained_in_world("gcmc").model
    model = TransUser(configure("trans-user-gc", {"reg": 1.0}), backbone, KEY_USERS).eval()
    users = new_users()
    size = backbone.user_table.vector.shape[1]
    problem = model.fit_problem(users.history)
    latents = model.fit_users(problem)
    fitted = model.embed_users(users)
    message = backbone.user_tower(Embeddings(latents[:, :-1].float(), latents[:, -1]), users)
    assert torch.allclose(fitted.vector[:, size:], message.vector[:, size:], atol=1e-6)
    assert torch.allclose(problem.message.float(), fitted.vector[problem.owner, size:], atol=1e-6)
    mean = model.mean_key_latent.double().expand_as(latents)
    assert (model._loss(latents, problem) <= model._loss(mean, problem)).all()


@pytest.mark.parametrize("name", ["rd-item", "rd-item-gc"])
def test_random_items_stay_as_they_were_drawn(name):
    backbone = model_entry(name).backbone
    model = untrained_model(backbone, TABLE, KEY_USERS)
    assert not model.item_table.vector.requires_grad
    assert model.user_table.vector.requires_grad
    assert has_preset_row("published", name)
