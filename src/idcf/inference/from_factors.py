"""Fold-in models from factors that were trained elsewhere: `Recommender.from_factors`.

The vector of a new user is the posterior mean under a normal prior N(m, Λ⁻¹), which is fitted to
the user factors; without user factors it is a ridge solution.

Ratings: r = μ + b_i + pᵀq_i + ε; if user biases are given, b_u is the last coordinate of p.
Implicit feedback with user factors: an item i of the history should score above any other item j
by a margin, Σ_i E_j (margin - (s_i - s_j))² with s_i = pᵀq_i + b_i. To second order this is the
pairwise logistic loss of BPR, averaged over j. Margin and noise are in units of the users' scores,
so that factors of any scale fit. Implicit feedback without user factors: weighted least squares as
in `FoldInModel`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.config import dataclass_to_dict
from idcf.data.columns import ColumnOrigin, encode_typed_ids
from idcf.data.interactions import Vocab, titles_by_row
from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import Artifact, library_versions, make_contiguous
from idcf.inference.manifest import DomainInfo, Manifest, TrainingData
from idcf.models.baselines import FoldInModel
from idcf.models.options import FoldInConfig

Float64Array = NDArray[np.float64]
_MARGIN_IN_STD = 3.0  # in standard deviations of a user's scores
_NOISE_IN_VARIANCES = 2.0  # in variances of a user's scores: that of a difference of two scores
_CONSTANT_COLUMN_TOLERANCE = 1e-6  # standard deviation of a constant column, relative to the mean


class Factors(NamedTuple):
    """Validated factors."""

    items: Float64Array  # [I, D]
    item_bias: Float64Array  # [I]
    users: Float64Array | None  # [U, D]


class Biases(NamedTuple):
    """Biases that go with the factors, as given by the caller and not validated."""

    item: Any = None  # array-like [I]; None: no biases
    user: Any = None  # array-like [U]; None: no biases
    mean: float = 0.0  # of the ratings


class FoldInSpec(NamedTuple):
    """Kind of the feedback, and options of the solution for a new user."""

    implicit: bool  # whether the feedback is implicit
    reg: float = 0.5  # weight of the prior; for ratings, the variance of their noise
    alpha: float = 10.0  # confidence of an interaction, if no user factors are given
    rating_range: tuple[float, float] = (1.0, 5.0)  # lowest and highest rating


def from_factors(
    items: Any,
    users: Any,
    item_ids: Sequence[Any],
    biases: Biases,
    spec: FoldInSpec,
    titles: Mapping[Any, str] | None = None,
) -> Artifact:
    """Return a fold-in model of item factors [I, D], with titles by item id.

    The prior is fitted to the user factors [U, D]; None: a ridge penalty. DataError: shapes do not
    match or a value is not finite. ConfigError: an option is out of range.
    """
    implicit, mean = spec.implicit, biases.mean
    low, high = spec.rating_range
    _require(spec.reg > 0, "reg", spec.reg, "above 0")
    _require(spec.alpha > 0, "alpha", spec.alpha, "above 0")
    _require(low < high, "rating_range", spec.rating_range, "(lowest rating, highest rating)")
    _require(not (implicit and mean), "mean", mean, "0 with implicit=True: there are no ratings")
    vocab = _item_vocab(item_ids)
    factors = _validate_factors(items, users, biases, len(vocab), has_ratings=not implicit)
    config = FoldInConfig(
        embedding_size=factors.items.shape[1],
        reg=spec.reg,
        alpha=1.0 if users is not None else spec.alpha,
        shrinkage=float("inf"),
    )
    domain = DomainInfo(
        n_users=0 if factors.users is None else len(factors.users),
        n_items=len(vocab),
        mean=float(mean),
        levels=(1.0,) if implicit else (float(low), float(high)),
        implicit=implicit,
    )
    model = FoldInModel(config, domain.placeholder_domain())
    _set_model_tensors(model, factors, spec.reg)
    manifest = Manifest(
        model="als",
        options=dataclass_to_dict(config),
        domain=domain,
        training_data=_training_data(factors),
        versions=library_versions(),
    )
    return Artifact(manifest, make_contiguous(model), vocab, titles_by_row(vocab, titles))


def _set_model_tensors(model: FoldInModel, factors: Factors, reg: float) -> None:
    """Fill the buffers of a model from factors."""
    q, b, users = factors
    mean, precision = _fit_prior(users, q.shape[1])
    gram, prior_rhs = reg * precision, reg * precision @ mean
    if not model.predicts_ratings:
        q, b = q - q.mean(0), b - b.mean()  # only differences of scores matter
        model.popularity.copy_(torch.from_numpy(q @ mean))
        if users is None:
            gram, prior_rhs = gram + q.T @ q, prior_rhs - q.T @ b
        else:
            spread, cross = q.T @ q / len(q), q.T @ b / len(q)
            second = users.T @ users / len(users)
            variance = float((spread * second).sum() + 2 * mean @ cross + b.var())
            gram = _NOISE_IN_VARIANCES * variance * gram
            prior_rhs = _NOISE_IN_VARIANCES * variance * prior_rhs
            negative_terms = np.column_stack([spread, -cross])
            model.negative_terms.copy_(torch.from_numpy(negative_terms))
            model.positive_target.fill_(_MARGIN_IN_STD * variance**0.5)
    model.factors.copy_(torch.from_numpy(q))
    model.gram.copy_(torch.from_numpy(gram))
    model.prior_rhs.copy_(torch.from_numpy(prior_rhs))
    model.bias_model.item_bias.copy_(torch.from_numpy(b))


def _fit_prior(users: Float64Array | None, size: int) -> tuple[Float64Array, Float64Array]:
    """Return mean [D] and precision [D, D] of the prior.

    One pseudo-user, with equal variance in all directions, keeps the covariance invertible.
    """
    if users is None:
        return np.zeros(size), np.eye(size)
    centered = users - users.mean(0)
    spread = centered.T @ centered
    spread += np.trace(spread) / (len(users) * size) * np.eye(size)
    return users.mean(0), np.linalg.inv(spread / (len(users) + 1))


def _validate_factors(
    items: Any, users: Any, biases: Biases, n_items: int, *, has_ratings: bool
) -> Factors:
    """Check shapes and values, and put user biases and constant columns where they belong."""
    item_bias, user_bias, _ = biases
    q = _to_matrix(items, "items")
    if len(q) != n_items:
        raise DataError(
            f"items has {len(q):,} rows, but there are {n_items:,} item_ids; give one id per row"
        )
    b = np.zeros(n_items) if item_bias is None else _to_vector(item_bias, "item_bias", n_items)
    if users is None:
        if user_bias is not None:
            raise ConfigError("user_bias was given without users; pass both or neither")
        return Factors(np.column_stack([q, np.ones(n_items)]) if has_ratings else q, b, None)
    p = _to_matrix(users, "users")
    if p.shape[1] != q.shape[1]:
        raise DataError(
            f"users have {p.shape[1]} columns and items {q.shape[1]}; the numbers must be equal"
        )
    if len(p) < 2:
        raise DataError(f"a prior needs two users or more, got {len(p)}; leave users out instead")
    bias = None if user_bias is None else _to_vector(user_bias, "user_bias", len(p))
    p, q, b = _move_constant_columns_to_bias(p, q, b)
    if has_ratings and bias is not None:  # without ratings it does not change the order of items
        p, q = np.column_stack([p, bias]), np.column_stack([q, np.ones(n_items)])
    return Factors(q, b, p)


def _move_constant_columns_to_bias(
    p: Float64Array, q: Float64Array, b: Float64Array
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Add columns that are equal for all users to the item bias, as BPR of `implicit` has one."""
    std = p.std(0)
    is_constant = std <= _CONSTANT_COLUMN_TOLERANCE * std.mean()
    if is_constant.all():
        raise DataError("all rows of users are the same; leave users out instead")
    bias = b + q[:, is_constant] @ p[0, is_constant]
    return p[:, ~is_constant], q[:, ~is_constant], bias


def _to_matrix(values: Any, name: str) -> Float64Array:
    """Return values as a matrix that is not empty."""
    matrix = _to_float64(values, name)
    if matrix.ndim != 2 or not matrix.size:
        raise DataError(f"{name} must be a matrix with rows, got the shape {matrix.shape}")
    return matrix


def _to_vector(values: Any, name: str, length: int) -> Float64Array:
    """Return values as a vector of a given length."""
    vector = _to_float64(values, name)
    if vector.shape != (length,):
        raise DataError(f"{name} must be {length:,} numbers, got the shape {vector.shape}")
    return vector


def _to_float64(values: Any, name: str) -> Float64Array:
    """Return values as an array of finite numbers."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
    elif hasattr(values, "to_numpy"):  # dataframes, and matrices on a GPU
        values = values.to_numpy()
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be read as numbers: {error}") from None
    if not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        raise DataError(f"{name}{index} is {array[tuple(index)]}; factors must be finite")
    return array


def _item_vocab(item_ids: Sequence[Any]) -> Vocab:
    """Return item ids, all text or all integers, as a vocabulary."""
    values = item_ids.tolist() if isinstance(item_ids, np.ndarray) else list(item_ids)
    if not values:
        raise DataError("item_ids is empty; give an id for each row of items")
    encode_typed_ids(values, "item_id", ColumnOrigin("item_ids"))
    return Vocab([x if isinstance(x, str) else int(x) for x in values])


def _training_data(factors: Factors) -> TrainingData:
    """Describe factors in place of a training table; the checksum is theirs."""
    digest = hashlib.sha256()
    for part in factors:
        if part is not None:
            digest.update(np.ascontiguousarray(part).tobytes())
    n = 0 if factors.users is None else len(factors.users)
    return TrainingData(
        sha256=digest.hexdigest(), n_rows=0, n_users=n, n_key_users=n, key_threshold=0
    )


def _require(condition: bool, name: str, value: object, requirement: str) -> None:
    """Raise ConfigError if an option does not meet its requirement."""
    if not condition:
        raise ConfigError(f"{name} must be {requirement}, got {value!r}")
