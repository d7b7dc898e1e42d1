"""The posterior of a newcomer against brute force, its limits, and its uncertainty."""

import numpy as np
import pytest
import torch

from idcf.inference.topk import Exact
from idcf.models.bayes import Bayes, BayesConfig, triangle
from idcf.models.registry import configure, model_entry
from idcf.testing.synthetic import checkerboard
from idcf.types import History, Users

torch.set_num_threads(1)
ITEMS = 30


def built(size: int = 3, blocks: int = 2, *, item_noise: float = 0.3, seed: int = 0) -> Bayes:
    """A model of random moments, every one of them proper."""
    domain = checkerboard(40, ITEMS, np.random.default_rng(0)).domain()
    options = {"embedding_size": size, "blocks": blocks, "rank": 4}
    model = model_entry("idcf-bayes").model_class(configure("idcf-bayes", options), domain)
    assert isinstance(model, Bayes)
    draw = torch.Generator().manual_seed(seed)
    for tensor in (
        model.means,
        model.link,
        model.average,
        model.basis,
        model.shift,
        model.usual,
        model.selection,
    ):
        tensor.copy_(torch.randn(tensor.shape, generator=draw) * 0.5)
    wide = size + 1
    half = torch.randn(ITEMS, blocks, wide, wide, generator=draw) * item_noise
    second = half @ half.mT + model.means[..., :, None] * model.means[..., None, :]
    low = torch.tril_indices(wide, wide)
    model.seconds.copy_(second[..., low[0], low[1]])
    half = torch.randn(blocks, wide, wide, generator=draw) * 0.5
    model.precision.copy_(half @ half.mT + torch.eye(wide))
    model.noise.copy_(torch.rand(blocks, generator=draw) + 1)
    model.scale.copy_(torch.rand(model.scale.shape, generator=draw) + 0.5)
    return model.eval()


def history(n: int, seed: int = 0, items: int = ITEMS) -> History:
    rng = np.random.default_rng(seed)
    rows = rng.choice(items, n, replace=n > items)
    values = rng.integers(1, 6, n).astype(np.float32)
    return History(torch.from_numpy(rows), torch.from_numpy(values), torch.tensor([0, n]))


def user(told: History) -> Users:
    return Users(torch.tensor([-1]), told)


def pinned(model: Bayes) -> Bayes:
    """The same with items known exactly."""
    size = model.average.shape[1]
    low = torch.tril_indices(size, size)
    exact = model.means[..., :, None] * model.means[..., None, :]
    model.seconds.copy_(exact[..., low[0], low[1]])
    return model


def prior_of(model: Bayes, told: History) -> torch.Tensor:
    natural = model.link[:, 0] + torch.einsum(
        "f,tfd->td", model.features(user(told))[0], model.link[:, 1:]
    )
    return torch.linalg.solve(model.precision, natural)


def test_one_dimension_by_brute_force() -> None:
    """Only the bias is free: its posterior, integrated over a grid, number by number."""
    model, told = pinned(built(size=0, blocks=1)), history(5)
    prior = float(prior_of(model, told)[0, 0])
    grid = np.linspace(-10, 10, 200_001)
    log = -0.5 * float(model.precision[0, 0, 0]) * (grid - prior) ** 2
    for row, value in zip(told.items.tolist(), told.values.tolist(), strict=True):
        off = value - model.mean - float(model.means[row, 0, 0]) - grid
        log -= 0.5 * float(model.noise[0]) * off**2
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = weight @ grid
    found = model.posterior(user(told))
    assert float(found.mean[0, 0, 0]) == pytest.approx(mean, abs=1e-5)
    spread = weight @ (grid - mean) ** 2
    assert 1 / float(found.factor[0, 0, 0, 0]) ** 2 == pytest.approx(spread, rel=1e-4)


def test_evidence_is_what_a_slow_sum_says() -> None:
    """Item by item, with what is not known of the items, in plain matrices."""
    model, told = built(), history(7)
    found = model.posterior(user(told))
    size = model.average.shape[1]
    for block in range(2):
        left, right = (
            model.precision[block].clone(),
            model.precision[block] @ prior_of(model, told)[block],
        )
        for row, value in zip(told.items.tolist(), told.values.tolist(), strict=True):
            second = model.seconds[row, block][triangle(size)]
            q, b = model.means[row, block, :-1], model.means[row, block, -1]
            outer = torch.ones(size, size)
            outer[:-1, :-1], outer[-1, :-1], outer[:-1, -1] = second[:-1, :-1], q, q
            left += model.noise[block] * outer
            r = value - model.mean
            right += model.noise[block] * torch.cat([r * q - second[:-1, -1], (r - b)[None]])
        torch.testing.assert_close(found.mean[0, block], torch.linalg.solve(left, right))
        factor = found.factor[0, block]
        torch.testing.assert_close(factor @ factor.T, left, rtol=1e-4, atol=1e-4)


def test_nothing_known_is_the_prior() -> None:
    """The average key user; and one uninformative rating away from the prior of its history."""
    model = built()
    empty = History.empty(1)
    torch.testing.assert_close(model.posterior(user(empty)).mean[0], model.average)
    items = model.mean + model.means[..., -1].mean(1) + model.usual
    torch.testing.assert_close(model.rank(user(empty))[0], items)
    told = history(3)
    model.noise.mul_(1e-8)
    torch.testing.assert_close(
        model.posterior(user(told)).mean[0], prior_of(model, told), atol=1e-4, rtol=1e-4
    )


def test_a_huge_history_is_the_ridge_solution() -> None:
    model = pinned(built(blocks=1))
    model.noise.mul_(100)  # or the features of so long a history would still be heard
    told = history(40_000)
    f = torch.cat([model.means[told.items, 0, :-1], torch.ones(len(told.items), 1)], 1).double()
    target = (told.values - model.mean - model.means[told.items, 0, -1]).double()
    ridge = torch.linalg.solve(f.T @ f + 1e-3 * torch.eye(4), f.T @ target)
    torch.testing.assert_close(
        model.posterior(user(told)).mean[0, 0].double(), ridge, atol=2e-3, rtol=2e-3
    )


def test_one_dot_product_is_the_average_over_blocks() -> None:
    model, told = built(blocks=5), history(6)
    users = user(told)
    each, offset = [], float(model.offset(torch.tensor(6)))
    for block in range(5):
        p = model.posterior(user(told)).mean[0, block]
        q = model.means[:, block]
        each.append(model.mean + q[:, :-1] @ p[:-1] + p[-1] + q[:, -1] + offset)
    torch.testing.assert_close(model.rank(users)[0], torch.stack(each).mean(0))
    first = torch.stack(each[:3]).mean(0)
    torch.testing.assert_close(model.part(3).rank(users)[0], first)


def test_the_deviation_is_that_of_draws() -> None:
    """Draw the user, the item and the noise, block by block, and look at the ratings."""
    model, told = built(blocks=3), history(4)
    asked = torch.tensor([[0, 7, 19]])
    found = model.deviation(user(told), asked, torch.tensor([0]))[0]
    draw = torch.Generator().manual_seed(1)
    n, size = 400_000, model.average.shape[1]
    mean, factor = model.posterior(user(told))
    for place, row in enumerate(asked[0].tolist()):
        ratings = []
        for block in range(3):
            noise = torch.randn(n, size, generator=draw)
            u = (
                mean[0, block]
                + torch.linalg.solve_triangular(factor[0, block].T, noise.T, upper=True).T
            )
            center = model.means[row, block]
            cover = model.seconds[row, block][triangle(size)] - center[:, None] * center
            v = center + torch.randn(n, size, generator=draw) @ torch.linalg.cholesky(cover).T
            y = (u[:, :-1] * v[:, :-1]).sum(1) + u[:, -1] + v[:, -1]
            ratings.append(y + torch.randn(n, generator=draw) / model.noise[block].sqrt())
        assert float(torch.cat(ratings).std()) == pytest.approx(float(found[place]), rel=0.01)


@pytest.mark.parametrize("n", [1, 2, 9, 29])
def test_the_quick_way_is_the_same(n: int) -> None:
    model, told = built(size=6, blocks=3), history(n)
    plain = model.rank(user(told))[0]
    one = Exact(model).one(told.items.numpy(), told.values.numpy())
    torch.testing.assert_close(torch.from_numpy(one), plain, rtol=1e-4, atol=1e-4)


def test_a_longer_history_is_surer() -> None:
    """Of what was rated and of what was not."""
    model, asked = built(), torch.arange(ITEMS)[None]
    spread = [
        model.deviation(user(history(n)), asked, torch.tensor([0])).mean() for n in (1, 5, 20)
    ]
    assert spread[0] > spread[1] > spread[2] > float((1 / model.noise).mean().sqrt())


def test_defaults_are_those_of_the_config() -> None:
    assert configure("idcf-bayes") == BayesConfig()


def test_features_alone_move_the_average_person() -> None:
    """In each block by Λ⁻¹Lx; and where nothing is known, it is as if nothing had been told."""
    model = built()
    extra = torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(1))
    model.link = torch.cat([model.link, extra], 1)
    empty, x = History.empty(3), torch.tensor([[0.0, 0.0], [1.0, -2.0], [0.5, 0.0]])
    told = Users(torch.full((3,), -1), empty, x)
    found = model.posterior(told).mean
    for block in range(2):
        moved = torch.linalg.solve(model.precision[block], (x @ extra[block]).T).T
        torch.testing.assert_close(found[:, block], model.average[block] + moved)
    untold = model.rank(Users(told.ids, empty))
    scores = model.rank(told)
    torch.testing.assert_close(scores[0], untold[0])
    by_hand = (found - model.average)[1]
    effect = (model.means[..., :-1] * by_hand[:, :-1]).sum(-1).mean(1) + by_hand[:, -1].mean()
    torch.testing.assert_close(scores[1], untold[0] + effect, rtol=1e-4, atol=1e-5)


def test_features_of_many_in_blocks_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built()
    draw = torch.Generator().manual_seed(1)
    model.link = torch.cat([model.link, torch.randn(2, 2, 4, generator=draw)], 1)
    monkeypatch.setattr("idcf.inference.topk._SCORES", 3 * ITEMS)
    index, told = Exact(model), history(4)
    x = torch.randn(7, 2, generator=draw)
    offsets = torch.tensor([0, 0, 4, 4, 4, 4, 4, 4])
    found = index.top(Users(torch.full((7,), -1), told._replace(offsets=offsets), x), 5)
    for row in range(7):
        own = (told.items.numpy(), told.values.numpy()) if row == 1 else (
            np.empty(0, np.int64), np.empty(0, np.float32))  # fmt: skip
        alone = index.one(*own, x[row].numpy())
        np.testing.assert_allclose(np.sort(alone)[::-1][:5], found.scores[row], rtol=1e-4)
