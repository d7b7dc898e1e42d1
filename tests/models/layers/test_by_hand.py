"""A step of adaption by hand against the recorded one."""

import numpy as np
import pytest
import torch

from idcf.data import batches
from idcf.models.idcf import IDCF
from idcf.models.layers import by_hand
from idcf.models.registry import configure
from idcf.testing import fitted, world
from idcf.testing.worlds import keys_of
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import adapt
from idcf.types import Batch, History, Ready, Users

torch.set_num_threads(1)
SPLIT = world().split
TABLE = SPLIT.train.of(SPLIT.key_users)


def build(name="idcf-nn", **options):
    torch.manual_seed(0)
    backbone = {"idcf-dot": "pmf", "idcf-nn": "nnmf", "idcf-gc": "gcmc"}[name]
    model = IDCF(configure(name, options), fitted(backbone).model, keys_of(TABLE))
    with torch.no_grad():  # nothing at zero, where a wrong gradient would not show
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p) * 0.1)
    return model.train()


def some(size=40, lengths=(1, 9)):
    rng = np.random.default_rng(0)
    return list(batches.episodes(TABLE, size=size, lengths=lengths, rng=rng, targets=4))


def gradients(model, objective, batch):
    """The loss, and what it leaves with the weights."""
    model.zero_grad()
    loss = sum(objective(model, batch).values())
    if loss.requires_grad:
        loss.backward()
    return loss, {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("contrast", [0.0, 0.3])
@pytest.mark.parametrize(
    "options",
    [{}, {"query": "ratings"}, {"heads": 1, "scaled": False}, {"bias_strength": 0.0}],
    ids=str,
)
def test_a_step_equals_the_recorded_one(options, contrast, monkeypatch):
    """Everybody is listened to, so that nothing is drawn."""
    model, objective = build(sample=10_000, **options), adapt(contrast)
    seen = 0
    for batch in model.ahead(some()[:5]):
        assert batch.ready is not None
        seen += batch.ready.again is not None
        loss, got = gradients(model, objective, batch)
        assert not loss.requires_grad
        objective(model, batch)  # once more: gradients add up
        twice = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
        with monkeypatch.context() as recorded:
            recorded.setattr(by_hand, "wanted", lambda: False)
            plain, expected = gradients(model, objective, batch)
        assert plain.requires_grad
        torch.testing.assert_close(loss, plain.detach())
        assert [*got] == [*expected]
        assert len(got) == 4 + len([*model.head.parameters()])
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(twice[name], got[name] * 2)
    assert 0 < seen < 5  # somebody stands in a batch twice, and in another nobody does


def test_gradients_are_those_of_the_loss():
    draw = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    heard, asked = torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 2, 1, 2])
    share = random(3).abs()
    again = torch.zeros(3, 3, dtype=torch.bool)
    again[0, 2] = again[2, 0] = True
    who = torch.cat([heard, asked])
    shapes = (random(2, 3, 5), random(2, 6, 4), who, random(9, 3), random(9))
    ready = Ready(heard, asked, *shapes, share, random(3, 3), again)
    sizes = [(2, 5, 4), (2, 4, 4), (2, 4, 4), (8, 4), (7, 9), (7,), (6, 7), (6,), (1, 6), (1,)]
    weights = [random(*size).requires_grad_() for size in sizes]
    by_hand.step(ready, 0.7, 5.0, weights)
    for weight in weights:
        flat, found = weight.detach().view(-1), weight.grad.view(-1)
        for place in range(len(flat)):
            either = []
            for move in (1e-5, -2e-5, 1e-5):  # up, down, and back where it was
                flat[place] += move
                either.append(by_hand.step(ready, 0.7, 5.0, [w.detach() for w in weights]))
            slope = (either[0] - either[1]) / 2e-5
            torch.testing.assert_close(found[place], slope, rtol=1e-4, atol=1e-6)


def test_training_by_hand_is_training(monkeypatch):
    """The same key users are drawn, and the weights end in the same place."""
    ends = []
    for wanted in (True, False):
        monkeypatch.setattr(by_hand, "wanted", lambda wanted=wanted: wanted)
        model = build(sample=5)
        if not wanted:
            monkeypatch.setattr("idcf.models.idcf._plain", lambda model: False)
        config = TrainConfig(learning_rate=0.01)
        fit(model, lambda _, model=model: model.ahead(some()), adapt(0.1), config, epochs=2)
        ends.append(model.state_dict())
    assert not torch.equal(ends[0]["relation.query"], build(sample=5).relation.query)
    for name, value in ends[1].items():
        torch.testing.assert_close(ends[0][name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("idcf-dot", {}),
        ("idcf-gc", {}),
        ("idcf-nn", {"attention": "additive"}),
        ("idcf-nn", {"bias": "own"}),
        ("idcf-nn", {"reach": "meta-path"}),
    ],
)
def test_others_are_recorded(name, options):
    assert all(b.ready is None for b in build(name, **options).ahead(some()[:2]))


def test_a_newcomer_without_history_is_recorded():
    model, first = build(), some()[0]
    nobody = Users(torch.tensor([0]), History.empty(1))
    empty = Batch(nobody, first.owner[:1] * 0, first.items[:1], first.labels[:1])
    assert all(b.ready is None for b in model.ahead([first, empty]))


def test_mixed_precision_is_recorded():
    with torch.autocast("cpu", torch.bfloat16):
        assert not by_hand.wanted()
    assert by_hand.wanted()
