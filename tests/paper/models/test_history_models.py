"""FISM and Mult-VAE: the equations of their papers, by loops, and the pitfalls of each."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from idcf.data import batches
from idcf.models.registry import configure, model_entry
from idcf.rng import random_stream
from idcf.testing.worlds import synthetic_world, train_in_world, untrained_model, users_with_rows
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import prediction_objective
from idcf.training.options import TrainConfig
from idcf.training.presets import stage_config
from idcf.training.train import TrainingJob, train
from idcf.types import Batch, History, Users

NAMES = ("fism", "mult-vae")


def make_table(implicit):
    split = synthetic_world(implicit=implicit).split
    return split.train.for_users(split.key_users)


def make_model(name, implicit, **options):
    """An untrained model whose weights are all random, and three users."""
    torch.manual_seed(0)
    rows = make_table(implicit)
    model = untrained_model(name, rows, users_with_rows(rows), options=options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model, rows.build_users(np.flatnonzero(rows.user_counts())[:3])


def make_batch(rows, **options):
    """The first batch of an epoch of episodes."""
    defaults = {"batch_size": 64, "history_lengths": (4, 8), "targets_per_episode": 4}
    rng = random_stream(0, "test")
    return next(iter(batches.episode_batches(rows, **{**defaults, **options}, rng=rng)))


def profiles_of(users):
    """The (item, value) pairs of each user."""
    history = users.history
    return [
        [*zip(history.items[a:b].tolist(), history.values[a:b].tolist(), strict=True)]
        for a, b in pairwise(history.offsets.tolist())
    ]


def slow_encode(model, profile):
    """The vector and the bias of a history, one entry at a time."""
    encoder, item_bias = model.history_encoder, model.items.bias
    has_ratings = encoder.rating_vectors is not None
    residuals = [r - model.mean - float(item_bias[j]) for j, r in profile]
    bias = sum(residuals) / (len(profile) + encoder.shrinkage) if has_ratings else 0.0
    total = torch.zeros(encoder.identity_vectors.shape[1])
    for (j, _), e in zip(profile, residuals, strict=True):
        total = total + encoder.identity_vectors[j]
        if has_ratings:
            total = total + (e - bias) * encoder.rating_vectors[j]
    return total * len(profile) ** -0.5, bias


def slow_posterior(model, vector):
    """m and log s² of an encoded history."""
    return model.posterior_layer(torch.tanh(vector + model.encoder_bias)).chunk(2)


@pytest.mark.parametrize("implicit", [False, True])
def test_fism_is_a_sum_over_the_history(implicit):
    model, users = make_model("fism", implicit)
    with torch.no_grad():
        for profile, scores in zip(profiles_of(users), model.score_catalog(users), strict=True):
            vector, b_u = slow_encode(model, profile)
            for i in range(model.n_items):
                expected = model.mean + b_u + float(model.items.bias[i])
                expected += float(vector @ model.items.vector[i])
                expected += float(model.global_bias) if implicit else 0.0
                assert float(scores[i]) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("implicit", [False, True])
def test_mult_vae_decodes_the_posterior_mean(implicit):
    model, users = make_model("mult-vae", implicit)
    with torch.no_grad():
        for profile, scores in zip(profiles_of(users), model.score_catalog(users), strict=True):
            vector, b_u = slow_encode(model, profile)
            z, _ = slow_posterior(model, vector)
            out = model.decoder(z) @ model.items.vector.T + model.items.bias
            expected = out.log_softmax(-1) if implicit else out + b_u + model.mean
            torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)


def test_probabilities_sum_to_1():
    model, users = make_model("mult-vae", True)
    with torch.no_grad():
        torch.testing.assert_close(model.score_catalog(users).exp().sum(1), torch.ones(3))


def test_the_multinomial_loss_is_the_likelihood_of_the_targets_plus_the_kl_divergence():
    model, _ = make_model("mult-vae", True, dropout=0.0, anneal=0, beta=0.3)
    model.steps += 1
    batch = make_batch(make_table(True), n_negatives=2)
    terms = {k: v.detach() for k, v in prediction_objective()(model, batch).items()}
    with torch.no_grad():
        log_shares = model.score_catalog(batch.users).log_softmax(-1)
        nll, kl = 0.0, 0.0
        for owner, items in zip(batch.owner.tolist(), batch.items.tolist(), strict=True):
            nll -= float(log_shares[owner, items[0]])  # the negatives beside it are not used
        for profile in profiles_of(batch.users):
            mean, log_variance = slow_posterior(model, slow_encode(model, profile)[0])
            posterior = torch.distributions.Normal(mean, (log_variance / 2).exp())
            prior = torch.distributions.Normal(0.0, 1.0)
            kl += 0.3 * float(torch.distributions.kl_divergence(posterior, prior).sum())
    n = len(batch.items)
    assert float(terms["multinomial"]) == pytest.approx(nll / n, rel=1e-4)
    assert float(terms["kl"]) == pytest.approx(kl / n, rel=1e-4)


def test_the_weight_of_the_kl_divergence_grows_with_the_steps_and_is_saved():
    options = {"dropout": 0.0, "anneal": 4, "beta": 0.5}
    model, _ = make_model("mult-vae", True, **options)
    model.train()
    users = make_batch(make_table(True)).users
    costs = [float(model.kl_divergence(users).sum().detach()) for _ in range(7)]
    assert costs[0] == 0.0
    assert costs[1:4] == pytest.approx([costs[4] * k / 4 for k in (1, 2, 3)], rel=1e-5)
    assert costs[4:] == pytest.approx([costs[4]] * 3)
    loaded, _ = make_model("mult-vae", True, **options)
    loaded.load_state_dict(model.state_dict())
    assert int(loaded.steps) == 7


@pytest.mark.parametrize("implicit", [False, True])
def test_a_resumed_training_ends_like_an_uninterrupted_one(implicit, tmp_path):
    """Noise, dropout and annealing included."""
    rows = make_table(implicit)
    config = TrainConfig(epochs=3, patience=0)

    def epoch(number):
        yield from batches.episode_batches(
            rows,
            batch_size=256,
            history_lengths=(4, 8),
            rng=random_stream(0, number),
            n_negatives=2 * implicit,
        )

    def run(checkpoint_path, n_epochs):
        model, _ = make_model("mult-vae", implicit)
        fit_by_gradient(
            model,
            epoch,
            prediction_objective(),
            config,
            n_epochs=n_epochs,
            seed=3,
            checkpoint_path=checkpoint_path,
        )
        return model.state_dict()

    uninterrupted = run(None, 3)
    run(tmp_path / "checkpoint", 1)
    for key, value in run(tmp_path / "checkpoint", 3).items():
        assert torch.equal(value, uninterrupted[key]), key


def test_two_halves_of_a_batch_cost_as_much_as_the_whole():
    """Terms are sums divided by the rows of the whole batch, so processes may share it."""
    model, _ = make_model("mult-vae", True, dropout=0.0, anneal=1)
    model.steps += 1
    whole = make_batch(make_table(True))
    history, offsets = whole.users.history, whole.users.history.offsets
    middle, total = len(whole.users) // 2, 0.0
    for low, high in ((0, middle), (middle, len(whole.users))):
        entries = slice(offsets[low], offsets[high])
        part_history = History(
            history.items[entries], history.values[entries], offsets[low : high + 1] - offsets[low]
        )
        rows = (whole.owner >= low) & (whole.owner < high)
        part = Batch(
            Users(whole.users.ids[low:high], part_history),
            whole.owner[rows] - low,
            whole.items[rows],
            whole.labels[rows],
            whole.n_rows,
        )
        total += float(sum(prediction_objective()(model, part).values()).detach())
    expected = float(sum(prediction_objective()(model, whole).values()).detach())
    assert total == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_training_never_shows_the_target(name):
    """The history of an episode contains none of its targets."""
    for batch in batches.episode_batches(
        make_table(False),
        batch_size=128,
        history_lengths=stage_config(name).history_lengths,
        rng=random_stream(1, name),
    ):
        history = batch.users.history
        shown = set(zip(history.owner().tolist(), history.items.tolist(), strict=True))
        targets = set(zip(batch.owner.tolist(), batch.items[:, 0].tolist(), strict=True))
        assert not shown & targets


@pytest.mark.parametrize("name", NAMES)
def test_ratings_matter_except_in_the_binary_form(name):
    for binary in (False, True):
        model, users = make_model(name, False, binary=binary)
        reversed_users = Users(users.ids, users.history._replace(values=6 - users.history.values))
        with torch.no_grad():
            scores, reversed_scores = map(model.score_catalog, (users, reversed_users))
        assert torch.equal(scores, reversed_scores) is binary
        assert model.predicts_ratings
        assert model.trains_on_binary is binary


@pytest.mark.parametrize("name", NAMES)
def test_the_published_form_scores_far_below_the_ratings(name):
    """It is trained on 1 for an interaction and 0 for none."""
    split = synthetic_world().split
    preset = stage_config(name, preset="published")
    assert configure(name, preset.options).binary
    options = {"train.epochs": 8, "train.learning_rate": 0.02, "embedding_size": 8}
    model = train(name, TrainingJob(split, preset="published"), options=options).model
    with torch.no_grad():
        scores = model.score_catalog(split.train.build_users(split.query_users).anonymous())
    assert model.predicts_ratings
    assert float(scores.mean()) < float(split.train.rating.mean()) - 1


@pytest.mark.parametrize("name", NAMES)
def test_validation_holds_out_users_and_never_uses_test_rows(name):
    split = synthetic_world().split
    log = train(name, TrainingJob(split), options={"train.epochs": 2}).logs[name]
    assert {"valid", "loss"} <= set(log.records[0])
    without_test = replace(split, test=split.test.where(np.zeros(len(split.test), bool)))
    other_log = train(name, TrainingJob(without_test), options={"train.epochs": 2}).logs[name]
    assert [r["valid"] for r in log.records] == [r["valid"] for r in other_log.records]


def test_declared_capabilities():
    for name in NAMES:
        assert model_entry(name).inductive
        assert train_in_world(name, epochs=1).model.source == "relation"
