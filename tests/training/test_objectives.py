"""Loss terms and penalties, against loops over rows."""

import math

import pytest
import torch
from small import TABLE, new_model

from idcf.testing import synthetic_world
from idcf.testing.worlds import epoch_batches, untrained_model, users_with_rows
from idcf.training.job import Runtime
from idcf.training.objectives import (
    RidgePenalty,
    adaption_objective,
    norm_penalty,
    pointwise_loss,
    prediction_objective,
)
from idcf.types import Batch, History, Users

CPU = torch.device("cpu")


def plain_batch(labels, **sizes):
    """Return a batch of one user, whose rows have these labels."""
    labels = torch.tensor(labels, dtype=torch.float32)
    users = Users(torch.tensor([0]), History.empty(1))
    owner = torch.zeros(len(labels), dtype=torch.int64)
    return Batch(users, owner, torch.zeros_like(labels, dtype=torch.int64), labels, **sizes)


def implicit_model(name):
    """Return an untrained model of implicit feedback and one of its batches, with negatives."""
    table = synthetic_world(implicit=True).split.train
    torch.manual_seed(0)
    model = untrained_model(name, table, users_with_rows(table))
    return model, next(iter(epoch_batches(model, table, 60)))


def test_the_squared_error_of_ratings():
    scores = torch.tensor([[1.0, 2.0], [5.0, 0.0]])
    terms = pointwise_loss(scores, plain_batch([[2.0, 2.0], [3.0, 1.0]]), predicts_ratings=True)
    assert {k: float(v) for k, v in terms.items()} == {"mse": (1 + 0 + 4 + 1) / 4}


def test_the_cross_entropy_of_implicit_feedback():
    scores, labels = [[2.0, -1.0], [0.0, 30.0]], [[1.0, 0.0], [1.0, 0.0]]
    expected = 0.0
    for row, targets in zip(scores, labels, strict=True):
        for score, label in zip(row, targets, strict=True):
            expected += math.log1p(math.exp(-score if label else score))
    terms = pointwise_loss(torch.tensor(scores), plain_batch(labels), predicts_ratings=False)
    assert list(terms) == ["bce"]
    assert float(terms["bce"]) == pytest.approx(expected / 4, rel=1e-6)


def test_scores_of_any_size_have_a_finite_loss():
    batch = plain_batch([[1.0, 0.0]])
    terms = pointwise_loss(torch.tensor([[-1e4, 1e4]]), batch, predicts_ratings=False)
    assert float(terms["bce"]) == pytest.approx(1e4)


def test_shares_of_a_batch_add_up_to_its_loss():
    """The denominator is the size of the whole batch, not of the share."""
    labels = [[1.0, 0.0], [3.0, 2.0], [5.0, 4.0]]
    scores = torch.tensor([[1.5, 0.5], [2.0, 2.0], [5.0, 1.0]])
    whole = pointwise_loss(scores, plain_batch(labels), predicts_ratings=True)["mse"]
    shares = [
        pointwise_loss(
            scores[rows], plain_batch(labels[rows], n_global_rows=3), predicts_ratings=True
        )["mse"]
        for rows in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(sum(shares), whole)


@pytest.mark.parametrize("loss", ["bpr", "margin"])
def test_ranking_losses_compare_the_first_item_with_each_other_one(loss):
    model, batch = implicit_model("pmf")
    with torch.no_grad():
        scores = model(batch.users, batch.items, batch.owner).tolist()
        value = float(prediction_objective(loss)(model, batch)[loss])
    losses = []
    for positive, *negatives in scores:
        for negative in negatives:
            margin = positive - negative
            losses.append(math.log1p(math.exp(-margin)) if loss == "bpr" else max(0, 1 - margin))
    assert value == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_logistic_is_the_cross_entropy_for_ratings_too():
    model = new_model()
    batch = next(iter(epoch_batches(model, TABLE, 50)))
    assert set(prediction_objective("fit")(model, batch)) == {"mse"}
    terms = prediction_objective("logistic")(model, batch)
    scores = model(batch.users, batch.items, batch.owner)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.labels)
    torch.testing.assert_close(terms["bce"], expected)


def test_a_penalty_is_added_for_models_with_embedding_tables_only():
    penalty = norm_penalty(0.1)
    model = new_model()
    batch = next(iter(epoch_batches(model, TABLE, 50)))
    assert set(prediction_objective(penalty=penalty)(model, batch)) == {"mse", "reg"}
    wrapper = new_model("idcf-nn")  # its tables are frozen
    assert set(prediction_objective(penalty=penalty)(wrapper, batch)) == {"mse"}


def test_the_published_penalty_is_shared_by_the_processes():
    model = new_model()
    batch = next(iter(epoch_batches(model, TABLE, 50)))
    whole = norm_penalty(0.1)(model, batch)
    share = norm_penalty(0.1, Runtime(CPU, 1, 4))(model, batch)
    torch.testing.assert_close(4 * share, whole)


def test_a_user_without_counted_ratings_has_a_finite_penalty():
    model = new_model()
    batch = next(iter(epoch_batches(model, TABLE, 50)))
    zeros = torch.zeros(len(TABLE.users)), torch.zeros(len(TABLE.items))
    value = RidgePenalty(*zeros, 0.0, 1.0, 1.0)(model, batch)
    assert value.isfinite()
    assert RidgePenalty(*zeros, 0.0, 0.0, 0.0)(model, batch) == 0


def test_the_penalty_is_of_positives_only():
    model, batch = implicit_model("pmf")
    counts = torch.ones(model.user_table.vector.shape[0]), torch.ones(model.n_items)
    penalty = RidgePenalty(*counts, 1.0, 0.0, 0.0)
    expected = sum(
        model.user_table.vector[user].square().sum() + model.item_table.vector[item].square().sum()
        for user, item in zip(batch.users.ids[batch.owner], batch.items[:, 0], strict=True)
    )
    torch.testing.assert_close(penalty(model, batch), expected / len(batch.items))


@pytest.mark.parametrize("contrast", [0.0, 0.7])
def test_the_adaption_objective_is_the_fit_and_the_contrast(contrast):
    """For each user: -log softmax over the other users' induced latents, by a loop."""
    model = new_model("idcf-dot", n_attended_users=len(TABLE.users)).eval()
    batch = next(iter(epoch_batches(model, TABLE, 80)))
    with torch.no_grad():
        terms = adaption_objective(contrast)(model, batch)
        scores = model(batch.users, batch.items, batch.owner)
        torch.testing.assert_close(terms["mse"], (scores - batch.labels).square().mean())
        if not contrast:
            assert set(terms) == {"mse"}
            return
        encoded = model.encode_history(batch.users.history)
        induced = model.induce_latents(batch.users.history, encoded, batch.users.ids)[:, :-1]
        trained = model.backbone.user_table.vector[batch.users.ids]
        total = 0.0
        for n, user in enumerate(batch.users.ids.tolist()):
            logits = [
                float(trained[n] @ induced[k])
                for k, other in enumerate(batch.users.ids.tolist())
                if k == n or other != user
            ]
            total += math.log(sum(map(math.exp, logits))) - float(trained[n] @ induced[n])
    expected = contrast * total / len(batch.users)
    assert float(terms["contrast"]) == pytest.approx(expected, rel=1e-4)


def test_a_user_who_occurs_twice_is_not_their_own_negative():
    """With one user, twice, nothing is left to contrast with."""
    model = new_model("idcf-dot").eval()
    history = TABLE.history(users_with_rows(TABLE).ids[:1].repeat(2).numpy())
    ids = users_with_rows(TABLE).ids[:1].repeat(2)
    items = torch.tensor([[0], [1]])
    batch = Batch(Users(ids, history), torch.tensor([0, 1]), items, torch.ones(2, 1))
    with torch.no_grad():
        assert float(adaption_objective(1.0)(model, batch)["contrast"]) == pytest.approx(
            0, abs=1e-6
        )


def test_the_adaption_objective_names_a_model_that_it_is_not_for():
    with pytest.raises(TypeError, match="is for models on a backbone, got MatrixFactorization"):
        adaption_objective(0.1)(new_model(), plain_batch([[1.0]]))
