"""IDCF as a posterior: the relation model is the prior of a newcomer, their ratings are evidence.

    r_ui = μ + b_u + b_i + p_uᵀq_i + ε,  ε ~ N(0, 1/α),  (p_u, b_u) ~ N(W[1, φ_u], Λ⁻¹)

φ_u says what kind of history it is (which items, how many), not how they were rated. The chain
that sampled the items (`train.solvers.gibbs`) is kept as T blocks of consecutive sweeps, each as
means and second moments of the items; with a block per sweep this is the average over samples.
In each block a newcomer costs one solve, and the mean over blocks is one dot product of
concatenated vectors, so that ranking needs to know nothing of it.

Shapes: T blocks, D = embedding_size + 1 with the bias last, P = D(D + 1)/2, F features.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from idcf.models.base import Posterior
from idcf.models.layers.heads import Dot, Head
from idcf.models.layers.ragged import pool, segment_sum
from idcf.types import Domain, Embedded, History, Users

COHORTS, LIKES = 12, 5


@dataclass(frozen=True, kw_only=True)
class BayesConfig:
    embedding_size: int = 20
    blocks: int = 4  # kept of the chain: more are slower to answer and larger, hardly better
    sweeps: int = 160  # of the chain that are kept, divided among the blocks
    burn_in: int = 40  # sweeps before these
    rank: int = 30  # directions in which histories are told apart
    strength: float = 50.0  # users of "no relation" that the relation must outweigh
    freedom: float = 8.0  # ν: the larger, the more alike users' noise is; only in training
    lengths: tuple[int, int] = (1, 29)  # of the histories the prior is learnt for
    user_features: bool = False  # let the prior read what is known of users beside their histories
    item_features: bool = False  # and of items beside their raters
    validation: float = 0.05  # share of the users, the lightest, who are only watched


class Belief(NamedTuple):
    mean: Tensor  # [B, T, D]
    factor: Tensor  # [B, T, D, D]: Cholesky factor of the precision


class Moments(NamedTuple):
    """Of people or items, in each block."""

    means: Tensor  # [K, T, D]
    seconds: Tensor  # [K, T, P]

    @classmethod
    def of(cls, mean: Tensor, covariance: Tensor) -> Moments:
        second = covariance + mean[..., :, None] * mean[..., None, :]
        low = torch.tril_indices(*second.shape[-2:], device=mean.device)
        return cls(mean, second[..., low[0], low[1]])


class Bayes(Posterior):
    """Items known up to means and second moments, and the prior of people never met."""

    inductive: ClassVar[bool] = True
    source: ClassVar[str] = "posterior"
    means: Tensor  # [I, T, D]: of (q_i, b_i)
    seconds: Tensor  # [I, T, P]: of the products of any two of these
    noise: Tensor  # [T]: α
    precision: Tensor  # [T, D, D]: Λ
    link: Tensor  # [T, 1 + F, D]: ΛW
    average: Tensor  # [T, D]: of the key users
    item_precision: Tensor  # [T, D, D]: Λ of the items, for one that is new
    item_link: Tensor  # [T, D]: Λ times their mean
    basis: Tensor  # [I, R]
    shift: Tensor  # [R + 1]
    scale: Tensor  # [R + 1]
    usual: Tensor  # [I]: what those who rated an item add to it, for somebody without history
    selection: Tensor  # [2]: see `offset`
    stretch: Tensor  # []: of deviations, by what people who were held out showed
    raters: Tensor  # [I]: how many key users rated an item
    centers: Tensor  # [C, E]: cohorts of key users, as mean vectors
    sizes: Tensor  # [C]: how many people each is, 0 or at least five
    likes: Tensor  # [C, 5]: items that are theirs more than others'
    spread: Tensor  # []: how far people are from their cohort's mean
    triangle: Tensor  # [D, D]: where the second moment of two coordinates is kept

    def __init__(self, config: BayesConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items, self.mean, self.rates = domain.n_items, domain.mean, not domain.implicit
        self.head: Head = Dot()
        blocks, size = config.blocks, config.embedding_size + 1
        shapes = {
            "means": (self.n_items, blocks, size),
            "seconds": (self.n_items, blocks, size * (size + 1) // 2),
            "noise": (blocks,),
            "precision": (blocks, size, size),
            "link": (blocks, config.rank + 2, size),
            "average": (blocks, size),
            "item_precision": (blocks, size, size),
            "item_link": (blocks, size),
            "basis": (self.n_items, config.rank),
            "shift": (config.rank + 1,),
            "scale": (config.rank + 1,),
            "usual": (self.n_items,),
            "selection": (2,),
            "stretch": (),
            "raters": (self.n_items,),
            "centers": (COHORTS, blocks * (size - 1) + 1),
            "sizes": (COHORTS,),
            "spread": (),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))
        self.noise += 1  # until it is sampled, a proper prior
        self.precision += torch.eye(size)
        self.item_precision += torch.eye(size)
        self.scale += 1
        self.stretch += 1
        self.register_buffer("likes", torch.zeros(COHORTS, LIKES, dtype=torch.int64))
        self.register_buffer("triangle", triangle(size), persistent=False)

    def features(self, users: Users) -> Tensor:
        """φ [B, F]: the direction of the history and the log of its length, standardised; then
        what else is known, which is 0 where nothing is."""
        read = raw_features(self.basis, users.history)
        read = (read - self.shift) / self.scale
        more = self.link.shape[1] - 1 - read.shape[1]
        if not more:
            return read
        told = read.new_zeros(len(read), more) if users.features is None else users.features
        return torch.cat([read, told], 1)

    def posterior(self, users: Users) -> Belief:
        """Of (p_u, b_u), in each block."""
        history, n = users.history, users.history.lengths()
        moments, own = Moments(self.means, self.seconds), history.values - self.mean
        left, right = evidence(moments, self.triangle, history, own)
        prior = self.link[:, 0] + torch.einsum(
            "bf,tfd->btd", self.features(users), self.link[:, 1:]
        )
        factor = torch.linalg.cholesky(self.noise[:, None, None] * left + self.precision)
        mean = torch.cholesky_solve((self.noise[:, None] * right + prior)[..., None], factor)[
            ..., 0
        ]
        usual = self.average + self.told(users)
        return Belief(torch.where((n == 0)[:, None, None], usual, mean), factor)

    def told(self, users: Users) -> Tensor:
        """What is known of people beside their histories adds to the average person: [B, T, D]."""
        more = self.link.shape[1] - 1 - len(self.scale)
        if users.features is None or not more:
            return torch.zeros_like(self.average)
        right = torch.einsum("bf,tfd->btd", users.features, self.link[:, -more:])
        return torch.einsum("tde,bte->btd", torch.linalg.inv(self.precision), right)

    def offset(self, n: Tensor) -> Tensor:
        """People rate what they like: the less is known of them, the more a rating that they give
        exceeds what is expected of a person like them."""
        rest = 1 / (1 + n.to(self.selection.dtype))
        return torch.stack([rest.sqrt(), rest], -1) @ self.selection

    def embed_users(self, users: Users) -> Embedded:
        """The last coordinate is 1 without history: the items' means, and what features add."""
        n = users.history.lengths()
        mean, silent = self.posterior(users).mean, n == 0
        mean = torch.where(silent[:, None, None], self.told(users), mean)
        vector = torch.cat([mean[..., :-1].flatten(1), silent[:, None].to(mean.dtype)], 1)
        return Embedded(vector, mean[..., -1].mean(1) + self.offset(n) * ~silent)

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        means = self.means[items]
        vector = means[..., :-1].flatten(-2) / means.shape[-2]
        vector = torch.cat([vector, self.usual[items][..., None]], -1)
        return Embedded(vector, means[..., -1].mean(-1))

    def part(self, blocks: int) -> Bayes:
        """The model that the first blocks alone would make."""
        out = copy(self)
        out._buffers = dict(self._buffers)
        out.means, out.seconds = self.means[:, :blocks], self.seconds[:, :blocks]
        for name in ("noise", "precision", "link", "average", "item_precision", "item_link"):
            setattr(out, name, getattr(self, name)[:blocks])
        return out

    def deviation(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Noise, what is not known of the user, of the item, and both at once, in each block; the
        blocks' disagreement on top.

        With w = (p, 1) and S the covariance of (p, b_u): E w'vv'w + tr S_pp E qq' - (w'Ev)², all of
        it linear in the second moments of v = (q, b_i), and 2 Eq'S_pb + S_bb.
        """
        mean, factor = self.posterior(users)
        covariance = torch.cholesky_inverse(factor)  # [B, T, D, D]
        w = torch.cat([mean[..., :-1], torch.ones_like(mean[..., :1])], -1)
        square = w[..., :, None] * w[..., None, :]
        square[..., :-1, :-1] += covariance[..., :-1, :-1]
        low = torch.tril_indices(*self.triangle.shape, device=w.device)
        packed = square[..., low[0], low[1]] * (2 - (low[0] == low[1]).to(w.dtype))
        item, q = self.means[items], self.means[items][..., :-1]
        expected = torch.einsum("mtd,mktd->mkt", w[owner], item)
        moved = torch.einsum("mtp,mktp->mkt", packed[owner], self.seconds[items])
        crossed = torch.einsum("mtd,mktd->mkt", covariance[owner, :, :-1, -1], q)
        inside = moved - expected**2 + 2 * crossed + covariance[owner, :, -1, -1][:, None]
        score = expected + mean[owner, :, -1][:, None]
        total = (inside.clamp(min=0) + 1 / self.noise).mean(-1) + score.var(-1, correction=0)
        return self.stretch * total.sqrt()


def meet(model: Bayes, people: Users, raters: History, known: Tensor) -> Moments:
    """Of K items, from those who rated them: `Bayes.posterior` with both sides exchanged. The
    `raters` of an item are rows of `people`; `known` [K] is the row of an item that is in the
    model already and now has more of them, or -1: what is believed of it then is the prior."""
    mean, factor = model.posterior(people)
    moments = Moments.of(mean, torch.cholesky_inverse(factor))
    own = raters.values - model.mean - model.offset(people.history.lengths())[raters.items]
    left, right = evidence(moments, model.triangle, raters, own)
    before = model.means[known].double()
    spread = model.seconds[known][..., model.triangle] - before[..., :, None] * before[..., None, :]
    tiny = 1e-6 * torch.eye(before.shape[-1], dtype=before.dtype, device=before.device)
    precision = torch.linalg.inv(spread + tiny)
    there = (known >= 0)[:, None, None]
    prior = torch.where(there, (precision @ before[..., None])[..., 0], model.item_link)
    precision = torch.where(there[..., None], precision, model.item_precision)
    left = model.noise[:, None, None] * left + precision
    mean = torch.linalg.solve(left, model.noise[:, None] * right + prior)
    return Moments.of(mean.float(), torch.linalg.inv(left).float())


def with_items(model: Bayes, found: Moments, rows: Tensor, usual: Tensor, raters: Tensor) -> Bayes:
    """The same model with these items in these rows, some of them behind the last. To have had a
    new one says nothing of a person, only their rating of it does."""
    out = copy(model)
    out._buffers, out.n_items = dict(model._buffers), max(model.n_items, int(rows.max()) + 1)
    new = {"means": found.means, "seconds": found.seconds, "usual": usual}
    for name in (*new, "basis", "raters"):
        old: Tensor = getattr(model, name)
        wide = old.new_zeros(out.n_items, *old.shape[1:])
        wide[: model.n_items] = old
        if name in new:
            wide[rows] = new[name].to(wide.dtype)
        if name == "raters":
            wide[rows] += raters.to(wide.dtype)
        setattr(out, name, wide)
    return out


def evidence(of: Moments, place: Tensor, history: History, own: Tensor) -> tuple[Tensor, Tensor]:
    """What ratings of things known up to their moments say of those who rated them, as the left
    [B, T, D, D] and the right side [B, T, D] of an equation, in units of the noise.

    Σ E(own - b) q, where the last coordinate of what is paired with b_u is 1 and not b.
    """
    blocks, size = of.means.shape[1:]
    means, seconds = of.means.flatten(1), of.seconds.flatten(1)
    first = pool(means, history).view(-1, blocks, size)
    left = pool(seconds, history).view(-1, blocks, of.seconds.shape[2])[..., place]
    right = pool(means, history, own).view(-1, blocks, size) - left[..., -1]
    sums = segment_sum(own, history.owner(), len(first))
    right[..., -1] = sums[:, None] - first[..., -1]
    left[..., -1], left[..., -1, :] = first, first
    left[..., -1, -1] = history.lengths()[:, None]
    return left, right


def raw_features(basis: Tensor, history: History) -> Tensor:
    """Σ basis / √n over the history, and log(1 + n)."""
    n = history.lengths()[:, None].to(basis.dtype)
    return torch.cat([pool(basis, history) / n.clamp(min=1).sqrt(), n.log1p()], 1)


def triangle(size: int) -> Tensor:
    """Where [d, e] stands in a packed lower triangle: [D, D]."""
    low = torch.tril_indices(size, size)
    out = torch.empty(size, size, dtype=torch.int64)
    out[low[0], low[1]] = out[low[1], low[0]] = torch.arange(low.shape[1])
    return out
