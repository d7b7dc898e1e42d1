"""The solver of BOMIC: SoftImpute over the blocks.

An iteration fills the missing cells with the current prediction, projects the table on each block
and shrinks its singular values. The filled table is sparse + low rank and never built. The residual
block is followed by subspace iteration from the directions of the iteration before. Nesterov's
momentum, restarted where the objective rises, leaves the solution of this convex problem unchanged.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from idcf.data.interactions import Interactions, Ints
from idcf.data.progress import progress_bar
from idcf.paper.model_options import BomicConfig
from idcf.paper.models.bomic import Bomic
from idcf.rng import random_stream
from idcf.training.solvers import SolverContext

_EXTRA_DIRECTIONS = 6  # directions that are followed beside those that survive
_MAX_CELLS = 1 << 22  # numbers gathered at a time, to bound memory
_MIN_RIDGE, _MAX_RIDGE = 1e-6, 1e9

Array = NDArray[np.float64]


class BlockRegularization(NamedTuple):
    """Weight λ of the nuclear norm of each penalized block: item biases, user biases, residual."""

    items: float  # of item_bias
    users: float  # of user_bias
    residual: float  # of left_factors right_factorsᵀ

    @classmethod
    def from_config(cls, config: BomicConfig, ratings: csr_array) -> BlockRegularization:
        """Convert penalties from units of noise: the singular value s (√rows + √columns) of a
        matrix whose cells have mean square s², that of the ratings."""
        m, n = ratings.shape
        cell = float(ratings.data.std()) * (len(ratings.data) / (m * n)) ** 0.5
        return cls(
            items=config.item_reg * cell * n**0.5,
            users=config.user_reg * cell * m**0.5,
            residual=config.reg * cell * (m**0.5 + n**0.5),
        )


class BomicSolution(NamedTuple):
    """The completed matrix Z [m, n] = mean + user_bias + item_bias + left_factors right_factorsᵀ.
    Its m users and n items are those with ratings."""

    mean: float  # c
    item_bias: Array  # [n]: b
    user_bias: Array  # [m]: a
    left_factors: Array  # [m, D]: the residual block is left_factors @ right_factors.T
    right_factors: Array  # [n, D]: orthonormal columns
    predictions: Array  # [N]
    penalty: float = 0.0  # Σ λ ‖block‖


class _FilledResidual(NamedTuple):
    """The residual block with missing cells filled in: a sparse matrix plus low-rank terms, with
    the means of its rows and columns projected out."""

    sparse: csr_array  # [m, n]
    low_rank: tuple[tuple[float, Array, Array], ...]  # weight, U [m, D], V [n, D]: weight · U Vᵀ

    def matmul(self, vectors: Array) -> Array:
        """Return the matrix times `vectors` [n, k]: [m, k]."""
        centered = vectors - vectors.mean(0)
        terms = sum(weight * (u @ (v.T @ centered)) for weight, u, v in self.low_rank)
        product: Array = self.sparse @ centered + terms
        product -= product.mean(0)
        return product

    def transposed_matmul(self, vectors: Array) -> Array:
        """Return the transpose times `vectors` [m, k], whose columns have mean 0: [n, k]."""
        terms = sum(weight * (v @ (u.T @ vectors)) for weight, u, v in self.low_rank)
        product: Array = self.sparse.T @ vectors + terms
        product -= product.mean(0)
        return product


def fit_bomic(config: BomicConfig, table: Interactions, context: SolverContext) -> Bomic:
    """Fit BOMIC to a table of ratings; users and items without ratings are allowed."""
    model = Bomic(config, table.domain())
    users, items = np.flatnonzero(table.user_counts()), np.flatnonzero(table.item_counts())
    ratings = observed_ratings(table, users, items)
    _store_solution(model, ratings, soft_impute(ratings, config, context), config, items)
    return model.to(context.device)


def observed_ratings(table: Interactions, users: Ints, items: Ints) -> csr_array:
    """Return all ratings [m, n], zeros stored too; `users` and `items` must be every user and item
    that has a rating, ascending (a subset gives wrong cells)."""
    order, start = table.rows_by_user
    value = table.rating[order].astype(np.float64)
    columns = np.searchsorted(items, table.item[order])
    shape = (len(users), len(items))
    return csr_array((value, columns, np.append(start[users], len(order))), shape=shape)


def _with_values(ratings: csr_array, values: Array) -> csr_array:
    """Return a sparse matrix with other values [N] at the cells of the ratings."""
    return csr_array((values, ratings.indices, ratings.indptr), shape=ratings.shape)


def soft_impute(ratings: csr_array, config: BomicConfig, context: SolverContext) -> BomicSolution:
    """Iterate until the predictions of the ratings change by less than `config.tolerance`."""
    rng, (m, n) = random_stream(context.seed, "bomic"), ratings.shape
    reg = BlockRegularization.from_config(config, ratings)
    mean = float(ratings.data.mean())
    scale = max(float(np.linalg.norm(ratings.data - mean)), 1e-9)
    max_rank = max(1, min(config.rank, m - 1, n - 1))
    right_factors = rng.standard_normal((n, min(max_rank, _EXTRA_DIRECTIONS)))
    left_factors = np.zeros((m, right_factors.shape[1]))
    predictions = np.full(len(ratings.data), mean)
    current = BomicSolution(
        mean, np.zeros(n), np.zeros(m), left_factors, right_factors, predictions
    )
    previous, momentum, best = current, 1.0, np.inf
    with progress_bar(context.progress_label, steps=range(config.epochs), unit="sweep") as bar:
        for _ in bar:
            next_momentum = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            extrapolation = (momentum - 1) / next_momentum
            solution = _proximal_step(ratings, current, previous, extrapolation, reg)
            errors = ratings.data - solution.predictions
            loss = 0.5 * np.square(errors).sum() + solution.penalty
            momentum, best = (1.0 if loss > best else next_momentum), min(best, loss)
            change = float(np.linalg.norm(solution.predictions - current.predictions)) / scale
            previous, current = current, _resize_subspace(solution, max_rank, rng)
            bar.set_postfix(loss=f"{loss:.1f}", change=f"{change:.1e}")
            if change < config.tolerance:
                break
    return current


def _proximal_step(
    ratings: csr_array,
    current: BomicSolution,
    previous: BomicSolution,
    extrapolation: float,
    reg: BlockRegularization,
) -> BomicSolution:
    """Take one proximal step from current + extrapolation · (current - previous)."""
    m, n = ratings.shape
    residuals = (
        ratings.data
        - current.predictions
        - extrapolation * (current.predictions - previous.predictions)
    )
    error = _with_values(ratings, residuals)
    overall_mean = residuals.sum() / (m * n)
    user_means, item_means = error.sum(1) / n, error.sum(0) / m
    filled = _FilledResidual(
        error,
        (
            (1 + extrapolation, current.left_factors, current.right_factors),
            (-extrapolation, previous.left_factors, previous.right_factors),
        ),
    )
    basis = np.linalg.qr(filled.matmul(current.right_factors))[0]
    right_factors, size, rotation = np.linalg.svd(
        filled.transposed_matmul(basis), full_matrices=False
    )
    size = np.maximum(size - reg.residual, 0)
    left_factors = basis @ rotation.T * size
    mean = current.mean + extrapolation * (current.mean - previous.mean) + overall_mean
    item_bias = current.item_bias + extrapolation * (current.item_bias - previous.item_bias)
    user_bias = current.user_bias + extrapolation * (current.user_bias - previous.user_bias)
    item_bias, item_penalty = _shrink_bias(item_bias + item_means - overall_mean, reg.items, m)
    user_bias, user_penalty = _shrink_bias(user_bias + user_means - overall_mean, reg.users, n)
    solution = BomicSolution(mean, item_bias, user_bias, left_factors, right_factors, residuals)
    penalty = item_penalty + user_penalty + reg.residual * float(size.sum())
    return solution._replace(predictions=_predict_observed(ratings, solution), penalty=penalty)


def _shrink_bias(x: Array, reg: float, other_side_length: int) -> tuple[Array, float]:
    """Return the proximal map of λ times the nuclear norm of a bias block, and λ times the norm.
    The other side of the block is a column of ones: the norm is ‖x‖ √other_side_length."""
    norm = float(np.linalg.norm(x)) * other_side_length**0.5
    shrunken_norm = max(norm - reg, 0.0)
    return x * (shrunken_norm / norm if norm else 0.0), reg * shrunken_norm


def _predict_observed(ratings: csr_array, solution: BomicSolution) -> Array:
    """Return Z at the observed ratings: [N]."""
    user, item = np.repeat(np.arange(ratings.shape[0]), np.diff(ratings.indptr)), ratings.indices
    predictions = solution.mean + solution.item_bias[item] + solution.user_bias[user]
    survives = solution.left_factors.any(0)
    left_factors = solution.left_factors[:, survives]
    right_factors = solution.right_factors[:, survives]
    step = max(1, _MAX_CELLS // max(left_factors.shape[1], 1))
    for low in range(0, len(predictions), step):
        chunk = slice(low, low + step)
        predictions[chunk] += np.einsum(
            "nd,nd->n", left_factors[user[chunk]], right_factors[item[chunk]]
        )
    return predictions


def _resize_subspace(
    solution: BomicSolution, max_rank: int, rng: np.random.Generator
) -> BomicSolution:
    """Follow the directions that survive and a few more; the factors have the largest first."""
    left_factors, right_factors = solution.left_factors, solution.right_factors
    n_items, n_directions = right_factors.shape
    n_wanted = min(max_rank, int(left_factors.any(0).sum()) + _EXTRA_DIRECTIONS)
    if n_wanted <= n_directions:
        return solution._replace(
            left_factors=left_factors[:, :n_wanted], right_factors=right_factors[:, :n_wanted]
        )
    n_new = n_wanted - n_directions
    new_directions = rng.standard_normal((n_items, n_new)) * n_items**-0.5
    return solution._replace(
        left_factors=np.pad(left_factors, ((0, 0), (0, n_new))),
        right_factors=np.hstack([right_factors, new_directions]),
    )


def _store_solution(
    model: Bomic,
    ratings: csr_array,
    solution: BomicSolution,
    config: BomicConfig,
    items: Ints,
) -> None:
    """Store the item side of the blocks, and the regression that gives a user's row."""
    (m, n), reg = ratings.shape, BlockRegularization.from_config(config, ratings)
    size = np.linalg.norm(solution.left_factors, axis=0)
    order = np.argsort(-size, kind="stable")[: config.rank]
    factors = np.zeros((model.n_items, config.rank))
    factors[items, : len(order)] = solution.right_factors[:, order] * np.sqrt(size[order])
    bias = np.full(model.n_items, solution.mean - model.mean)
    bias[items] += solution.item_bias
    ridge = np.full(config.rank + 1, reg.residual)
    user_norm = float(np.linalg.norm(solution.user_bias))
    ridge[-1] = min(reg.users * n**0.5 / user_norm, _MAX_RIDGE) if user_norm else _MAX_RIDGE
    errors = ratings.data - solution.predictions
    item_means = _with_values(ratings, errors).sum(0) / m
    # c is not penalized, so the multiplier of the biases is 0
    multiplier = np.append(item_means @ factors[items], 0.0)
    model.item_bias, model.factors, model.ridge, model.orthogonality_multiplier = (
        torch.from_numpy(np.array(x, np.float32, order="C"))
        for x in (bias, factors, np.maximum(ridge, _MIN_RIDGE), multiplier)
    )
