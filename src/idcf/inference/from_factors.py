"""Factors trained elsewhere, and the new-user step they lack: `Recommender.from_factors`.

A newcomer's vector is the posterior mean under a normal prior, N(m, Λ⁻¹), that is fitted to the
vectors of the users of that training; where these are not given, under a plain ridge.

Ratings: r = μ + b_i + pᵀq_i + ε, and where user biases are given b_u is the last coordinate of p.
Yes or no, users given: an item i of the history is expected to stand above any other item j by a
margin, Σ_i E_j (margin - (s_i - s_j))², s_i = pᵀq_i + b_i. To second order this is the pairwise
logistic loss of BPR with j averaged out, and as margin and noise are in units of the users' own
scores it fits factors of any scale. Users not given: weighted least squares as in `FoldIn`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.config import plain
from idcf.data.columns import Origin as Place
from idcf.data.columns import typed_ids
from idcf.data.history_reader import named
from idcf.data.interactions import Vocab
from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import Artifact, settle, versions
from idcf.inference.manifest import Manifest, Origin, World
from idcf.models.baselines import FoldIn, FoldInConfig

Numbers = NDArray[np.float64]
_MARGIN = 3.0  # standard deviations of a user's scores
_NOISE = 2.0  # variances of a user's scores: that of a difference of two
_ALIKE = 1e-6  # of a typical spread: less is none


class Brought(NamedTuple):
    """What came, checked, each part with as many rows and columns as it should have."""

    items: Numbers  # [I, D]
    item_bias: Numbers  # [I]
    users: Numbers | None  # [U, D]


class Biases(NamedTuple):
    """Beside the factors, as they came."""

    item: Any = None
    user: Any = None
    mean: float = 0.0


class How(NamedTuple):
    """What the numbers mean, and how newcomers are to be solved for."""

    implicit: bool
    reg: float = 0.5  # what the prior weighs; for ratings the variance of their noise
    alpha: float = 10.0  # confidence of an interaction, where no users are given
    scale: tuple[float, float] = (1.0, 5.0)  # of the ratings


def bring(
    items: Any,
    users: Any,
    item_ids: Sequence[Any],
    biases: Biases,
    how: How,
    titles: Mapping[Any, str] | None = None,
) -> Artifact:
    """A model of these factors, as if it had been trained here."""
    implicit, reg, alpha, scale = how
    _require(reg > 0, "reg", reg, "above 0")
    _require(alpha > 0, "alpha", alpha, "above 0")
    _require(scale[0] < scale[1], "scale", scale, "(lowest rating, highest rating)")
    mean = biases.mean
    _require(not (implicit and mean), "mean", mean, "0 with implicit=True: there are no ratings")
    ids = _ids(item_ids)
    found = _checked(items, users, biases, len(ids), ratings=not implicit)
    size = found.items.shape[1]
    config = FoldInConfig(
        embedding_size=size,
        reg=reg,
        alpha=1.0 if users is not None else alpha,
        strength=float("inf"),
    )
    world = World(
        n_users=0 if found.users is None else len(found.users),
        n_items=len(ids),
        mean=float(mean),
        levels=(1.0,) if implicit else (float(scale[0]), float(scale[1])),
        implicit=implicit,
    )
    model = FoldIn(config, world.domain())
    _fill(model, found, reg)
    manifest = Manifest(
        model="als",
        options=plain(config),
        domain=world,
        data=_origin(found),
        versions=versions(),
    )
    return Artifact(manifest, settle(model), ids, named(ids, titles))


def _fill(model: FoldIn, found: Brought, reg: float) -> None:
    q, b, users = found
    size = q.shape[1]
    if not model.rates:  # nothing but differences of scores matters
        q, b = q - q.mean(0), b - b.mean()
    mean, precision = _prior(users, size)
    gram, prior, rivals = reg * precision, reg * precision @ mean, np.zeros((size, size + 1))
    if not model.rates and users is not None:
        spread, cross = q.T @ q / len(q), q.T @ b / len(q)
        second = np.cov(users.T, bias=True).reshape(size, size) + np.outer(mean, mean)
        variance = float((spread * second).sum() + 2 * mean @ cross + b.var())
        gram, prior = _NOISE * variance * gram, _NOISE * variance * prior
        rivals = np.concatenate([spread, -cross[:, None]], 1)
        model.target.fill_(_MARGIN * variance**0.5)
    elif not model.rates:
        gram, prior = gram + q.T @ q, prior - q.T @ b
    if not model.rates:
        model.popularity.copy_(torch.from_numpy(q @ mean))
    parts = {"factors": q, "gram": gram, "prior": prior, "rivals": rivals}
    for name, value in parts.items():
        getattr(model, name).copy_(torch.from_numpy(value))
    model.base.item_bias.copy_(torch.from_numpy(b))


def _prior(users: Numbers | None, size: int) -> tuple[Numbers, Numbers]:
    """Mean and precision; one more user's worth of equal spread keeps few users proper."""
    if users is None:
        return np.zeros(size), np.eye(size)
    off = users - users.mean(0)
    spread = off.T @ off
    spread += np.trace(spread) / (len(users) * size) * np.eye(size)
    return users.mean(0), np.linalg.inv(spread / (len(users) + 1))


def _checked(items: Any, users: Any, biases: Biases, n: int, *, ratings: bool) -> Brought:
    item_bias, user_bias, _ = biases
    q = _matrix(items, "items")
    if len(q) != n:
        raise DataError(f"items has {len(q):,} rows, but there are {n:,} item_ids: one each")
    b = np.zeros(n) if item_bias is None else _vector(item_bias, "item_bias", n)
    if users is None:
        if user_bias is not None:
            raise ConfigError("user_bias was given without users; pass both, or neither")
        return Brought(np.column_stack([q, np.ones(n)]) if ratings else q, b, None)
    p = _matrix(users, "users")
    if p.shape[1] != q.shape[1]:
        raise DataError(f"users have {p.shape[1]} columns and items {q.shape[1]}: they must match")
    if len(p) < 2:
        raise DataError(f"a prior needs two users or more, got {len(p)}; leave users out instead")
    own = None if user_bias is None else _vector(user_bias, "user_bias", len(p))
    p, q, b = _unfold(p, q, b)
    if ratings and own is not None:  # without ratings it moves all scores of a user alike
        p, q = np.column_stack([p, own]), np.column_stack([q, np.ones(n)])
    return Brought(q, b, p)


def _unfold(p: Numbers, q: Numbers, b: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """A column in which all users are alike is the items' bias, as in `implicit`'s BPR."""
    spread = p.std(0)
    alike = spread <= _ALIKE * spread.mean()
    if alike.all():
        raise DataError("all rows of users are the same: there is nothing to tell people apart by")
    return p[:, ~alike], q[:, ~alike], b + q[:, alike] @ p[0, alike]


def _matrix(values: Any, what: str) -> Numbers:
    found = _numbers(values, what)
    if found.ndim != 2 or not found.size:
        raise DataError(f"{what} must be a matrix, one row each, got the shape {found.shape}")
    return found


def _vector(values: Any, what: str, n: int) -> Numbers:
    found = _numbers(values, what)
    if found.shape != (n,):
        raise DataError(f"{what} must be {n:,} numbers, got the shape {found.shape}")
    return found


def _numbers(values: Any, what: str) -> Numbers:
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    elif hasattr(values, "to_numpy"):  # dataframes, and matrices on a GPU
        values = values.to_numpy()
    try:
        found = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} cannot be read as numbers: {error}") from None
    if not np.isfinite(found).all():
        place = np.argwhere(~np.isfinite(found))[0].tolist()
        raise DataError(f"{what}{place} is {found[tuple(place)]}; factors must be finite")
    return found


def _ids(item_ids: Sequence[Any]) -> Vocab:
    values = np.asarray(item_ids).tolist() if isinstance(item_ids, np.ndarray) else list(item_ids)
    if not values:
        raise DataError("item_ids is empty; give an id for each row of items")
    typed_ids(values, "item_id", Place("item_ids"))
    return Vocab([x if isinstance(x, str) else int(x) for x in values])


def _origin(found: Brought) -> Origin:
    digest = hashlib.sha256()
    for part in found:
        if part is not None:
            digest.update(np.ascontiguousarray(part).tobytes())
    n = 0 if found.users is None else len(found.users)
    return Origin(sha256=digest.hexdigest(), rows=0, users=n, key_users=n, key_threshold=0)


def _require(fine: bool, what: str, value: object, must: str) -> None:
    if not fine:
        raise ConfigError(f"{what} must be {must}, got {value!r}")
