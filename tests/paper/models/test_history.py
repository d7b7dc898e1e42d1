"""FISM and Mult-VAE: what their papers write, by loops, and the pitfalls of each."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from idcf.data import batches
from idcf.models.registry import configure, model_entry
from idcf.rng import stream
from idcf.testing.worlds import blank, keys_of, learn, world
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import accuracy
from idcf.training.presets import setting
from idcf.training.train import Job, train
from idcf.types import Batch, History, Users

torch.set_num_threads(1)
NAMES = ("fism", "mult-vae")


def table(implicit):
    split = world(implicit=implicit).split
    return split.train.of(split.key_users)


def fresh(name, implicit, **options):
    """Untrained, with weights that all matter."""
    torch.manual_seed(0)
    rows = table(implicit)
    model = blank(name, rows, keys_of(rows), options=options).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model, rows.people(np.flatnonzero(rows.counts())[:3])


def entries(users):
    at = users.history.offsets.tolist()
    return [
        [*zip(users.history.items[a:b].tolist(), users.history.values[a:b].tolist(), strict=True)]
        for a, b in pairwise(at)
    ]


def read(model, row):
    """A history as vector and bias, one entry at a time."""
    part, b = model.reader, model.items.bias
    left = [r - model.mean - float(b[j]) for j, r in row]
    b_u = sum(left) / (len(row) + part.strength) if part.rated is not None else 0.0
    total = torch.zeros(part.had.shape[1])
    for (j, _), e in zip(row, left, strict=True):
        total = total + part.had[j]
        if part.rated is not None:
            total = total + (e - b_u) * part.rated[j]
    return total * len(row) ** -0.5, b_u


@pytest.mark.parametrize("implicit", [False, True])
def test_fism_is_a_sum_over_the_history(implicit):
    model, users = fresh("fism", implicit)
    with torch.no_grad():
        ranked = model.rank(users)
        for row, found in zip(entries(users), ranked, strict=True):
            vector, b_u = read(model, row)
            for i in range(model.n_items):
                score = model.mean + b_u + float(model.items.bias[i])
                score += float(vector @ model.items.vector[i])
                score += float(model.level) if implicit else 0.0
                assert float(found[i]) == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("implicit", [False, True])
def test_mult_vae_is_two_layers_down_and_two_up(implicit):
    model, users = fresh("mult-vae", implicit)
    with torch.no_grad():
        ranked = model.rank(users)
        for row, found in zip(entries(users), ranked, strict=True):
            vector, b_u = read(model, row)
            z = model.belief(torch.tanh(vector + model.first))[: model.belief.out_features // 2]
            out = model.decoder(z) @ model.items.vector.T + model.items.bias
            expected = out.log_softmax(-1) if implicit else out + b_u + model.mean
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_shares_add_up_to_one():
    model, users = fresh("mult-vae", True)
    with torch.no_grad():
        torch.testing.assert_close(model.rank(users).exp().sum(1), torch.ones(3))


def asked(rows, **more):
    options = {"size": 64, "lengths": (4, 8), "rng": stream(0, "test"), "targets": 4, **more}
    return next(iter(batches.episodes(rows, **options)))


def test_the_multinomial_loss_is_the_list_s_likelihood_and_the_divergence():
    model, _ = fresh("mult-vae", True, dropout=0.0, anneal=0, beta=0.3)
    model.steps += 1
    batch = asked(table(True), negatives=2)
    terms = {k: v.detach() for k, v in accuracy()(model, batch).items()}
    with torch.no_grad():
        shares = model.rank(batch.users).log_softmax(-1)
        fit_, cost = 0.0, 0.0
        for owner, items in zip(batch.owner.tolist(), batch.items.tolist(), strict=True):
            fit_ -= float(shares[owner, items[0]])  # the negatives beside it are not read
        for row in entries(batch.users):
            belief = model.belief(torch.tanh(read(model, row)[0] + model.first))
            mean, spread = belief.chunk(2)
            mine = torch.distributions.Normal(mean, (spread / 2).exp())
            nothing = torch.distributions.Normal(0.0, 1.0)
            cost += 0.3 * float(torch.distributions.kl_divergence(mine, nothing).sum())
    n = len(batch.items)
    assert float(terms["multinomial"]) == pytest.approx(fit_ / n, rel=1e-4)
    assert float(terms["kl"]) == pytest.approx(cost / n, rel=1e-4)


def test_the_divergence_s_weight_grows_with_the_steps_and_is_kept():
    model, _ = fresh("mult-vae", True, dropout=0.0, anneal=4, beta=0.5)
    model.train()
    users = asked(table(True)).users
    costs = [float(model.divergence(users).sum().detach()) for _ in range(7)]
    assert costs[0] == 0.0
    assert costs[1:4] == pytest.approx([costs[4] * k / 4 for k in (1, 2, 3)], rel=1e-5)
    assert costs[4:] == pytest.approx([costs[4]] * 3)
    again, _ = fresh("mult-vae", True, dropout=0.0, anneal=4, beta=0.5)
    again.load_state_dict(model.state_dict())
    assert int(again.steps) == 7


@pytest.mark.parametrize("implicit", [False, True])
def test_a_killed_training_ends_where_another_does(implicit, tmp_path):
    """Noise, dropout and annealing included."""
    rows = table(implicit)
    config = TrainConfig(epochs=3, patience=0)

    def epoch(number):
        yield from batches.episodes(
            rows, size=256, lengths=(4, 8), rng=stream(0, number), negatives=2 * implicit
        )

    def run(path, epochs):
        model, _ = fresh("mult-vae", implicit)
        fit(model, epoch, accuracy(), config, epochs=epochs, seed=3, checkpoint=path)
        return model.state_dict()

    whole = run(None, 3)
    run(tmp_path / "kept", 1)
    for key, value in run(tmp_path / "kept", 3).items():
        assert torch.equal(value, whole[key]), key


def test_two_halves_of_a_batch_cost_what_the_whole_does():
    """Terms are sums divided by the rows of the whole batch, so processes may share it."""
    model, _ = fresh("mult-vae", True, dropout=0.0, anneal=1)
    model.steps += 1
    whole = asked(table(True))
    cut = len(whole.users) // 2
    total = 0.0
    for low, high in ((0, cut), (cut, len(whole.users))):
        history, at = whole.users.history, whole.users.history.offsets
        mine = (whole.owner >= low) & (whole.owner < high)
        own = History(
            history.items[at[low] : at[high]],
            history.values[at[low] : at[high]],
            at[low : high + 1] - at[low],
        )
        users = Users(whole.users.ids[low:high], own)
        part = Batch(
            users, whole.owner[mine] - low, whole.items[mine], whole.labels[mine], whole.n_rows
        )
        total += float(sum(accuracy()(model, part).values()).detach())
    assert total == pytest.approx(float(sum(accuracy()(model, whole).values()).detach()), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_training_never_shows_the_target(name):
    """The history of an episode holds none of the rows that are asked for."""
    for batch in batches.episodes(
        table(False), size=128, lengths=setting(name).lengths, rng=stream(1, name)
    ):
        history = batch.users.history
        shown = set(zip(history.owner().tolist(), history.items.tolist(), strict=True))
        wanted = set(zip(batch.owner.tolist(), batch.items[:, 0].tolist(), strict=True))
        assert not shown & wanted


@pytest.mark.parametrize("name", NAMES)
def test_ratings_matter_and_binary_does_not_look_at_them(name):
    for binary in (False, True):
        model, users = fresh(name, False, binary=binary)
        other = Users(users.ids, users.history._replace(values=6 - users.history.values))
        with torch.no_grad():
            assert torch.equal(model.rank(users), model.rank(other)) is binary
        assert model.rates
        assert model.binary is binary


@pytest.mark.parametrize("name", NAMES)
def test_the_published_form_is_compared_with_stars_it_never_saw(name):
    """Trained on 1 for had and 0 for not: far below the stars."""
    split = world().split
    chosen = setting(name, preset="published")
    assert configure(name, chosen.options).binary
    options = {"train.epochs": 8, "train.learning_rate": 0.02, "embedding_size": 8}
    found = train(name, Job(split, preset="published"), options=options).model
    with torch.no_grad():
        scores = found.rank(split.train.people(split.query_users).anonymous())
    assert found.rates
    assert float(scores.mean()) < float(split.train.rating.mean()) - 1


@pytest.mark.parametrize("name", NAMES)
def test_people_are_held_out_not_rows(name):
    """An inductive model is stopped by newcomers with short histories."""
    split = world().split
    job = Job(split)
    log = train(name, job, options={"train.epochs": 2}).logs[name]
    assert {"valid", "loss"} <= set(log.records[0])
    silent = replace(split, test=split.test.where(np.zeros(len(split.test), bool)))
    again = train(name, Job(silent), options={"train.epochs": 2}).logs[name]
    assert [r["valid"] for r in log.records] == [r["valid"] for r in again.records]


def test_rows_say_what_they_are():
    for name in NAMES:
        assert model_entry(name).model_class.inductive
        assert learn(name, epochs=1).model.source == "relation"
