"""BOMIC by SoftImpute: fill what is missing with what is believed, project on each block, shrink
its singular values, and again.

The filled table is sparse + low rank and is never made: it is only multiplied with. Of the residual
block so many singular directions are followed as survive, and a few more, each iteration beginning
with the last one's (subspace iteration). The steps are accelerated (Nesterov's momentum, begun
afresh where the objective rises); the objective is convex, so where it ends does not depend on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from tqdm import tqdm

from idcf.data.interactions import Interactions, Ints
from idcf.paper.models.bomic import Bomic, BomicConfig
from idcf.rng import stream
from idcf.training.solvers.context import Work

_SPARE = 6  # directions followed beside those that survive
_CELLS = 1 << 22  # gathered at a time
_NO_RIDGE, _ONLY_RIDGE = 1e-6, 1e9

Array = NDArray[np.float64]


class Ratings(NamedTuple):
    """Of the users and items that have any, numbered afresh, in the order of users."""

    user: Ints
    item: Ints
    start: Ints  # [m + 1]
    turned: Ints  # places in the order of items
    turned_start: Ints  # [n + 1]
    value: Array

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.start) - 1, len(self.turned_start) - 1

    def spread(self, left: Array) -> tuple[csr_array, csr_array]:
        """What is left of each rating as a matrix, and its transpose."""
        m, n = self.shape
        turned = (left[self.turned], self.user[self.turned], self.turned_start)
        return (
            csr_array((left, self.item, self.start), shape=(m, n)),
            csr_array(turned, shape=(n, m)),
        )


class Reg(NamedTuple):
    """λ of each block."""

    items: float
    users: float
    rest: float

    @classmethod
    def of(cls, config: BomicConfig, ratings: Ratings) -> Reg:
        """In singular values that noise as wide as the ratings would have in the block: of a matrix
        with s² for the mean square of its cells, s (√rows + √columns)."""
        m, n = ratings.shape
        noise = float(ratings.value.std())
        cell = noise * (len(ratings.value) / (m * n)) ** 0.5
        return cls(
            items=config.item_reg * cell * n**0.5,
            users=config.user_reg * cell * m**0.5,
            rest=config.reg * cell * (m**0.5 + n**0.5),
        )


class Point(NamedTuple):
    """The blocks of Z, and Z where ratings are."""

    mean: float
    items: Array  # [n]: b
    users: Array  # [m]: a
    left: Array  # [m, D]: the residual is left @ right.T, columns of `right` orthonormal
    right: Array  # [n, D]
    at: Array  # [N]
    size: float = 0.0  # Σ λ ‖block‖


def bomic(config: BomicConfig, table: Interactions, work: Work) -> Bomic:
    model = Bomic(config, table.domain())
    people, things = np.flatnonzero(table.counts()), np.flatnonzero(table.item_counts())
    ratings = observed(table, people, things)
    found = solve(ratings, config, work)
    _settle(model, ratings, found, config, things)
    return model.to(work.device)


def observed(table: Interactions, people: Ints, things: Ints) -> Ratings:
    order, start = table.by_user
    user = np.searchsorted(people, table.user[order])
    item = np.searchsorted(things, table.item[order])
    turned = np.argsort(item, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(item, minlength=len(things)))])
    value = table.rating[order].astype(np.float64)
    return Ratings(user, item, np.append(start[people], len(user)), turned, ends, value)


def solve(ratings: Ratings, config: BomicConfig, work: Work) -> Point:
    """Iterate until the predictions of the ratings stand still."""
    rng, (m, n) = stream(work.seed, "bomic"), ratings.shape
    reg = Reg.of(config, ratings)
    mean = float(ratings.value.mean())
    scale = max(float(np.linalg.norm(ratings.value - mean)), 1e-9)
    blank, width = np.zeros, max(1, min(config.rank, m - 1, n - 1))
    start = rng.standard_normal((n, min(width, _SPARE)))
    now = Point(
        mean,
        blank(n),
        blank(m),
        blank((m, start.shape[1])),
        start,
        np.full(len(ratings.value), mean),
    )
    before, momentum, best = now, 1.0, np.inf
    quiet = None if work.progress else True
    with tqdm(range(config.epochs), desc=work.progress, unit="sweep", disable=quiet) as bar:
        for _ in bar:
            longer = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = (momentum - 1) / longer
            found = _step(ratings, now, before, ahead, reg)
            loss = 0.5 * np.square(ratings.value - found.at).sum() + found.size
            momentum, best = (1.0 if loss > best else longer), min(best, loss)
            moved = float(np.linalg.norm(found.at - now.at)) / scale
            before, now = now, _room(found, width, rng)
            bar.set_postfix(loss=f"{loss:.1f}", change=f"{moved:.1e}")
            if moved < config.tolerance:
                break
    return now


def _step(ratings: Ratings, now: Point, before: Point, ahead: float, reg: Reg) -> Point:
    """One proximal step from a point a little beyond `now`."""
    m, n = ratings.shape
    left = ratings.value - now.at - ahead * (now.at - before.at)
    error, turned = ratings.spread(left)
    total, of_users, of_items = left.sum() / (m * n), error.sum(1) / n, error.sum(0) / m

    def beyond(x: Array, y: Array) -> Array:
        out: Array = x + ahead * (x - y)
        return out

    pair = ((1 + ahead, now.left, now.right), (-ahead, before.left, before.right))

    def across(q: Array) -> Array:  # the filled residual, projected, times q
        q = q - q.mean(0)
        out: Array = error @ q + sum(x * (u @ (v.T @ q)) for x, u, v in pair)
        out -= out.mean(0)
        return out

    def back(q: Array) -> Array:
        out: Array = turned @ q + sum(x * (v @ (u.T @ q)) for x, u, v in pair)
        out -= out.mean(0)
        return out

    basis = np.linalg.qr(across(now.right))[0]
    right, size, turn = np.linalg.svd(back(basis), full_matrices=False)
    size = np.maximum(size - reg.rest, 0)
    mean = now.mean + ahead * (now.mean - before.mean) + total
    items, a = _shrink(beyond(now.items, before.items) + of_items - total, reg.items, m)
    users, b = _shrink(beyond(now.users, before.users) + of_users - total, reg.users, n)
    found = Point(mean, items, users, basis @ turn.T * size, right, left)
    whole = a + b + reg.rest * float(size.sum())
    return found._replace(at=_at(ratings, found), size=whole)


def _shrink(x: Array, reg: float, other: int) -> tuple[Array, float]:
    """The proximal map of λ times the nuclear norm of a bias, whose other side is a column of
    1/√other: a vector is shortened as a whole. And λ times what is left."""
    size = float(np.linalg.norm(x)) * other**0.5
    rest = max(size - reg, 0.0)
    return x * (rest / size if size else 0.0), reg * rest


def _at(ratings: Ratings, z: Point) -> Array:
    """Z where ratings are."""
    user, item = ratings.user, ratings.item
    out = z.mean + z.items[item] + z.users[user]
    alive = z.left.any(0)
    one, other = z.left[:, alive], z.right[:, alive]
    step = max(1, _CELLS // max(one.shape[1], 1))
    for low in range(0, len(out), step):
        own = slice(low, low + step)
        out[own] += np.einsum("nd,nd->n", one[user[own]], other[item[own]])
    return out


def _room(z: Point, width: int, rng: np.random.Generator) -> Point:
    """Follow the directions that survive and a few more; `right` has the largest first."""
    have, want = z.right.shape[1], min(width, int(z.left.any(0).sum()) + _SPARE)
    if want <= have:
        return z._replace(left=z.left[:, :want], right=z.right[:, :want])
    fresh = rng.standard_normal((len(z.right), want - have)) * len(z.right) ** -0.5
    left = np.pad(z.left, ((0, 0), (0, want - have)))
    return z._replace(left=left, right=np.hstack([z.right, fresh]))


def _settle(model: Bomic, ratings: Ratings, z: Point, config: BomicConfig, things: Ints) -> None:
    """The item side of the blocks, and the regression that gives a user's row."""
    (m, n), reg = ratings.shape, Reg.of(config, ratings)
    size = np.linalg.norm(z.left, axis=0)
    order = np.argsort(-size, kind="stable")[: config.rank]
    factors = np.zeros((model.n_items, config.rank))
    factors[things, : len(order)] = z.right[:, order] * np.sqrt(size[order])
    bias = np.full(model.n_items, z.mean - model.mean)
    bias[things] += z.items
    ridge = np.full(config.rank + 1, reg.rest)
    spread = float(np.linalg.norm(z.users))
    ridge[-1] = min(reg.users * n**0.5 / spread, _ONLY_RIDGE) if spread else _ONLY_RIDGE
    of_items = ratings.spread(ratings.value - z.at)[0].sum(0) / m
    pull = np.append(of_items @ factors[things], 0.0)  # c is free, so nothing pulls at the biases
    ridge = np.maximum(ridge, _NO_RIDGE)
    for name, value in {
        "item_bias": bias,
        "factors": factors,
        "ridge": ridge,
        "pull": pull,
    }.items():
        setattr(model, name, torch.from_numpy(np.array(value, np.float32, order="C")))
