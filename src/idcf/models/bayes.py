"""IDCF with a posterior: the relation model is the prior of a new user, the ratings are evidence.

    r_ui = μ + b_u + b_i + p_uᵀq_i + ε,  ε ~ N(0, 1/α),  (p_u, b_u) ~ N(W[1, φ_u], Λ⁻¹)

φ_u describes the history by its items and its length, not by its ratings. The items are sampled by
a Markov chain (`idcf.training.solvers.bayes`). The model stores T blocks of consecutive sweeps,
each as means and second moments of the items; with one block per sweep this would be the average
over samples. A new user costs one linear solve per block. The mean score over blocks is one dot
product of concatenated vectors, so that ranking is that of any two-tower model. Where held-out
users preferred it, the errors on the nearest items of the history are added to the scores
(`idcf.models.layers.neighbors`).

Shapes: T blocks, D = embedding_size + 1 with the bias last, P = D(D + 1)/2, F features of a user,
R directions of histories, C cohorts, E = T · embedding_size + 1.
"""

from __future__ import annotations

from copy import copy
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from idcf.models.base import CorrectedTwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.models.layers.index_checks import range_problem
from idcf.models.layers.ragged import segment_sum, sum_pool
from idcf.models.options import DEFAULT_ITEM_SHRINKAGE, BayesConfig
from idcf.types import CohortWeights, Domain, Embeddings, Ragged, RaggedRows, Users

N_COHORTS = 12
N_COHORT_ITEMS = 5
INTERVAL_LEVELS = tuple(round(0.01 * n, 2) for n in range(1, 100))
_OFFSET_PSEUDO_COUNT = 10.0  # raters at which the offset for empty histories has half its size

BLOCK_BUFFERS = (  # the buffers whose first dimension is the block
    "noise_precision",
    "precision",
    "prior_information",
    "mean_key_latent",
    "feature_weights",
    "item_precision",
    "item_prior_information",
)


class UserPosterior(NamedTuple):
    """The normal posterior of (p_u, b_u) in each block."""

    mean: Tensor  # [B, T, D]
    precision_cholesky: Tensor  # [B, T, D, D]: lower Cholesky factor of the precision


class Moments(NamedTuple):
    """First and second moments of K users or items in each block."""

    means: Tensor  # [K, T, D]
    second_moments: Tensor  # [K, T, P]: packed lower triangles

    @classmethod
    def from_mean_and_covariance(cls, mean: Tensor, covariance: Tensor) -> Moments:
        """Return mean and packed second moments Σ + m mᵀ of normals: mean m [K, T, D], covariance Σ
        [K, T, D, D]; `infer_item_moments` calls it for users and for items."""
        second_moments = covariance + mean[..., :, None] * mean[..., None, :]
        low = torch.tril_indices(*second_moments.shape[-2:], device=mean.device)
        return cls(mean, second_moments[..., low[0], low[1]])


class BayesModel(CorrectedTwoTower):
    """Posterior moments of the items, and the prior of a new user.

    The buffers are zeros, ones or identities until `idcf.training.solvers.bayes` fills them.
    """

    inductive: ClassVar[bool] = True
    source: ClassVar[str] = "posterior"
    has_uncertainty: ClassVar[bool] = True
    suggests_questions: ClassVar[bool] = True
    accepts_new_items: ClassVar[bool] = True
    means: Tensor  # [I, T, D]: E (q_i, b_i)
    second_moments: Tensor  # [I, T, P]: E of the products of two coordinates of (q_i, b_i)
    noise_precision: Tensor  # [T]: α
    precision: Tensor  # [T, D, D]: Λ
    prior_information: Tensor  # [T, 1 + F, D]: ΛW
    mean_key_latent: Tensor  # [T, D]: mean latent of the key users
    feature_weights: Tensor  # [T, F', D]: regression of the latents on the F' user features alone
    item_precision: Tensor  # [T, D, D]: prior precision of a new item
    item_prior_information: Tensor  # [T, D]: prior precision times prior mean of a new item
    basis: Tensor  # [I, R]: singular directions of the histories
    feature_mean: Tensor  # [R + 1]: standardizes `history_features`
    feature_std: Tensor  # [R + 1]
    empty_history_offset: Tensor  # [I]: added to an item's score for an empty history
    selection_coefficients: Tensor  # [2]: of `selection_offset`
    std_scale: Tensor  # []: calibrates `predictive_std` on held-out users
    interval_ratios: Tensor  # [L]: `interval_ratio` of each of `INTERVAL_LEVELS`
    n_raters: Tensor  # [I]: number of key users who rated the item
    cohort_centers: Tensor  # [C, E]: mean user vectors of the cohorts of key users
    cohort_sizes: Tensor  # [C]: number of key users in each cohort: 0 or at least five
    cohort_items: Tensor  # [C, 5]: items rated more often in the cohort than elsewhere; -1: none
    cohort_spread: Tensor  # []: typical distance of a user vector from its cohort's center
    packed_index: Tensor  # [D, D]: position of each product of two coordinates in [P]

    def __init__(self, config: BayesConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items = domain.n_items
        self.mean = domain.mean
        self.predicts_ratings = not domain.implicit
        self.head: Head = DotHead()
        blocks, size = config.n_blocks(self.n_items), config.embedding_size + 1
        shapes = {
            "means": (self.n_items, blocks, size),
            "second_moments": (self.n_items, blocks, size * (size + 1) // 2),
            "noise_precision": (blocks,),
            "precision": (blocks, size, size),
            "prior_information": (blocks, config.rank + 2, size),
            "mean_key_latent": (blocks, size),
            "feature_weights": (blocks, 0, size),
            "item_precision": (blocks, size, size),
            "item_prior_information": (blocks, size),
            "basis": (self.n_items, config.rank),
            "feature_mean": (config.rank + 1,),
            "feature_std": (config.rank + 1,),
            "empty_history_offset": (self.n_items,),
            "selection_coefficients": (2,),
            "std_scale": (),
            "interval_ratios": (len(INTERVAL_LEVELS),),
            "n_raters": (self.n_items,),
            "cohort_centers": (N_COHORTS, blocks * (size - 1) + 1),
            "cohort_sizes": (N_COHORTS,),
            "cohort_spread": (),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))
        self.register_neighbors()
        self.noise_precision += 1  # an unfitted model has a proper prior
        for matrices in (self.precision, self.item_precision):  # `torch.eye` is slow on "meta"
            matrices.diagonal(dim1=-2, dim2=-1).add_(1)
        self.feature_std += 1
        self.std_scale += 1
        self.interval_ratios += 1
        cohort_items = torch.zeros(N_COHORTS, N_COHORT_ITEMS, dtype=torch.int64)
        self.register_buffer("cohort_items", cohort_items)
        self.register_buffer("packed_index", packed_triangle_index(size), persistent=False)

    def index_problem(self) -> str:
        """Return what is wrong with neighbors and items of cohorts; "" if they can be used."""
        neighbors = range_problem("neighbor_items", self.neighbor_items, self.n_items)
        return neighbors or range_problem(
            "cohort_items", self.cohort_items, self.n_items, lowest=-1
        )

    @property
    def _n_user_features(self) -> int:
        """Number of user features that the prior reads besides the history."""
        return self.feature_weights.shape[1]

    def prior_features(self, users: Users) -> Tensor:
        """Return φ [B, F]: the standardized `history_features`, then the user features if the model
        has any: zeros, the average, where `users.features` is None."""
        features = history_features(self.basis, users.history)
        features = (features - self.feature_mean) / self.feature_std
        if not self._n_user_features:
            return features
        user_features = users.features
        if user_features is None:
            user_features = features.new_zeros(len(features), self._n_user_features)
        return torch.cat([features, user_features], 1)

    def posterior(self, users: Users) -> UserPosterior:
        """Return the posterior of (p_u, b_u) in each block.

        For an empty history the mean is that of the key users, moved by `feature_offset`.
        """
        history, n = users.history, users.history.lengths()
        moments = Moments(self.means, self.second_moments)
        matrix, rhs = expected_normal_equations(
            moments, self.packed_index, history, history.values - self.mean
        )
        prior = self.prior_information[:, 0] + torch.einsum(
            "bf,tfd->btd", self.prior_features(users), self.prior_information[:, 1:]
        )
        cholesky = torch.linalg.cholesky(
            self.noise_precision[:, None, None] * matrix + self.precision
        )
        rhs = self.noise_precision[:, None] * rhs + prior
        mean = torch.cholesky_solve(rhs[..., None], cholesky)[..., 0]
        empty_mean = self.mean_key_latent + self.feature_offset(users)
        return UserPosterior(torch.where((n == 0)[:, None, None], empty_mean, mean), cholesky)

    def feature_offset(self, users: Users) -> Tensor:
        """Return the effect of user features on the latent without a history: [B, T, D], or zeros
        [T, D] if the users have no features or the prior reads none.

        The weights are not those of the prior, where the history explains a part of the latents.
        """
        if users.features is None or not self._n_user_features:
            return torch.zeros_like(self.mean_key_latent)
        return torch.einsum("bf,tfd->btd", users.features, self.feature_weights)

    def selection_offset(self, history_lengths: Tensor) -> Tensor:
        """Return the constant added to the scores of a user with this many ratings.

        Users choose what they rate, so ratings exceed expectation, the more the shorter the
        history: c₀ / √(1 + n) + c₁ / (1 + n).
        """
        inverse = 1 / (1 + history_lengths.to(self.selection_coefficients.dtype))
        return torch.stack([inverse.sqrt(), inverse], -1) @ self.selection_coefficients

    def embed_users(self, users: Users) -> Embeddings:
        """Return the posterior means of all blocks, concatenated: [B, E].

        For an empty history the vector is `feature_offset` alone, and the last coordinate, which
        meets `empty_history_offset`, is 1 instead of 0.
        """
        n = users.history.lengths()
        mean, is_empty = self.posterior(users).mean, n == 0
        mean = torch.where(is_empty[:, None, None], self.feature_offset(users), mean)
        vector = torch.cat([mean[..., :-1].flatten(1), is_empty[:, None].to(mean.dtype)], 1)
        return Embeddings(vector, mean[..., -1].mean(1) + self.selection_offset(n) * ~is_empty)

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return the item means of all blocks, concatenated and divided by T: [..., E]."""
        # much faster than an index with brackets
        means = self.means.index_select(0, items.reshape(-1)).view(
            *items.shape, *self.means.shape[1:]
        )
        vector = means[..., :-1].flatten(-2) / means.shape[-2]
        vector = torch.cat([vector, self.empty_history_offset[items][..., None]], -1)
        return Embeddings(vector, means[..., -1].mean(-1))

    def first_blocks(self, n_blocks: int) -> BayesModel:
        """Return a model that shares the first blocks of this one."""
        out = copy(self)
        out._buffers = dict(self._buffers)
        out.means = self.means[:, :n_blocks]
        out.second_moments = self.second_moments[:, :n_blocks]
        for name in BLOCK_BUFFERS:
            setattr(out, name, getattr(self, name)[:n_blocks])
        return out

    def predictive_std(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the standard deviation of the rating of each pair [M, K]; see `rating_std`."""
        return rating_std(self, self.posterior(users), items, owner)

    def interval_ratio(self, confidence_level: float) -> float:
        """Return the ratio of the half widths of intervals to those for N(0, 1).

        The half widths are interpolated between `INTERVAL_LEVELS`, so that they grow with the
        level; below and above, the ratio is that of the nearest one.
        """
        ratios, (normal, *knots) = (
            self.interval_ratios.cpu().numpy(),
            _normal_half_widths(confidence_level, *INTERVAL_LEVELS),
        )
        nearest = np.clip(normal, knots[0], knots[-1])
        return float(np.interp(nearest, knots, ratios * knots) / nearest)

    def question_gains(self, users: Users, *, items_are_known: bool = False) -> Tensor:
        """Return the expected gain of a rating of each item [B, I]; see `variance_reduction`.

        Unless the items are known, it is multiplied by the square root of the item's share of
        raters; the root, because a rating of an item that nearly all users know says less than
        expected.
        """
        gain = variance_reduction(self, self.posterior(users))
        if items_are_known:
            return gain
        return gain * (self.n_raters / self.n_raters.max().clamp(min=1)).sqrt()

    def cohort_weights(self, users: Users) -> CohortWeights:
        """Return the weights of the cohorts: softmax of log size - ‖distance‖² / 2 spread²."""
        squared_distance = torch.cdist(self.embed_users(users).vector, self.cohort_centers).square()
        scaled_distance = squared_distance / (2 * self.cohort_spread.square() + 1e-12)
        weights = torch.softmax(self.cohort_sizes.log() - scaled_distance, 1)
        return CohortWeights(weights, self.cohort_sizes, self.cohort_items)

    def ranking_without_data(self) -> Tensor:
        """Return the number of raters of every item: [I]."""
        return self.n_raters

    def with_item_ratings(
        self, users: Users, raters: Ragged[Tensor], item_rows: Tensor
    ) -> BayesModel:
        """Return a model with the moments of K items inferred from their raters."""
        moments, offset = _infer_items(self, users, raters, item_rows)
        return with_items(self, moments, item_rows, offset, raters.lengths())


def _normal_half_widths(*levels: float) -> NDArray[np.float64]:
    """Return half the widths of the central intervals of N(0, 1)."""
    half_widths: NDArray[np.float64] = ndtri((1 + np.array(levels)) / 2)
    return half_widths


def rating_std(
    model: BayesModel, posterior: UserPosterior, item_rows: Tensor, owner: Tensor | None = None
) -> Tensor:
    """Return the standard deviations of the ratings of items int64 [M, K]: [M, K].

    Row m is for user `owner[m]` of the B posteriors, or for user m if `owner` is None. The variance
    in a block is that of the noise and of the score under the posteriors of user and item. With
    w = (p, 1), v = (q, b_i) and S the covariance of (p, b_u), the latter is
    E w'vv'w + tr S_pp E qq' - (w'Ev)² + 2 Eq'S_pb + S_bb, linear in the second moments of v. The
    variance of the scores between blocks is added to the mean over blocks.
    """
    (n_rows, k), (blocks, size) = item_rows.shape, model.mean_key_latent.shape
    mean, covariance = posterior.mean, torch.cholesky_inverse(posterior.precision_cholesky)
    w = torch.cat([mean[..., :-1], torch.ones_like(mean[..., :1])], -1)
    square = w[..., :, None] * w[..., None, :]
    square[..., :-1, :-1] += covariance[..., :-1, :-1]
    low = torch.tril_indices(size, size, device=w.device)
    weight = 2 - (low[0] == low[1]).to(w.dtype)
    packed = square.flatten(-2).index_select(-1, low[0] * size + low[1]) * weight
    cross = covariance[..., -1].clone()  # with the user bias, whose variance is added below
    cross[..., -1] = 0
    bias, bias_variance = mean[..., -1], covariance[..., -1, -1].sum(1)
    if owner is not None:
        w, packed, cross = w[owner], packed[owner], cross[owner]
        bias, bias_variance = bias[owner], bias_variance[owner]
    flat_rows = item_rows.flatten()
    item = model.means.index_select(0, flat_rows).view(n_rows, k, blocks, size)
    second_moments = model.second_moments.flatten(1).index_select(0, flat_rows)
    expected = (item * w[:, None]).sum(-1)  # [M, K, T]
    total = torch.bmm(second_moments.view(n_rows, k, -1), packed.view(n_rows, -1, 1))[..., 0]
    total += 2 * torch.bmm(item.flatten(2), cross.view(n_rows, -1, 1))[..., 0]
    total -= expected.square().sum(-1)
    total += bias_variance[:, None]
    within = total.clamp(min=0) / blocks + (1 / model.noise_precision).mean()
    between = (expected + bias[:, None]).var(-1, correction=0)
    return model.std_scale * (within + between).sqrt()


def variance_reduction(model: BayesModel, posterior: UserPosterior) -> Tensor:
    """Return how much a rating of each item reduces the expected variance of a user: [B, I].

    With S the covariance of the user and M the mean of ff' over the items that users rate, a
    rating of an item with moments f reduces the expected variance tr SM by f'SMSf / (1/α + f'Sf).
    """
    covariance = torch.cholesky_inverse(posterior.precision_cholesky)  # [B, T, D, D]
    alpha = model.noise_precision[:, None]
    covariance *= alpha[..., None]  # in units of the noise: fourth powers of ratings are too large
    means = model.means.transpose(0, 1)  # [T, I, D]
    f = torch.cat([means[..., :-1], torch.ones_like(means[..., :1])], -1)
    share = model.n_raters / model.n_raters.sum().clamp(min=1)
    mean_outer = f.mT @ (share[:, None] * f)
    reduction = ((f @ (covariance @ mean_outer @ covariance)) * f).sum(-1)
    variance = 1 + ((f @ covariance) * f).sum(-1)
    return (reduction / (variance * alpha)).mean(1)


def offset_for_empty_histories(
    item_residual: Tensor, item_bias: Tensor, n_raters: Tensor
) -> Tensor:
    """Return what is added to the scores of K items for users with empty histories: [K].

    It replaces the bias b_i by `item_residual`, the shrunk mean of the item's ratings less mean and
    user bias: the better prediction for an unknown user; fully so for many raters.
    """
    return (item_residual - item_bias) * n_raters / (n_raters + _OFFSET_PSEUDO_COUNT)


def _infer_items(
    model: BayesModel, users: Users, raters: Ragged[Tensor], item_rows: Tensor
) -> tuple[Moments, Tensor]:
    """Return the moments of K items, and their offsets for empty histories [K].

    Items of the model keep their offsets.
    """
    in_model = item_rows < model.n_items
    old_rows = torch.where(in_model, item_rows, -1)
    moments = infer_item_moments(model, users, raters, old_rows)
    bias, n = model.posterior(users).mean[..., -1].mean(1), raters.lengths()
    residuals = raters.values - model.mean - bias[raters.indices]
    item_residual = segment_sum(residuals, raters.owner(), len(n)) / (n + DEFAULT_ITEM_SHRINKAGE)
    offset = offset_for_empty_histories(item_residual, moments.means[..., -1].mean(1), n)
    return moments, torch.where(in_model, model.empty_history_offset[old_rows], offset)


def infer_item_moments(
    model: BayesModel, users: Users, raters: Ragged[Tensor], item_rows: Tensor
) -> Moments:
    """Return the posterior moments of K items from new ratings of them.

    This is `BayesModel.posterior` with users and items exchanged. `raters` holds for each item its
    raters, as rows of `users`, and their ratings; `item_rows` int64 [K] is the row of an item whose
    stored moments are the prior, or -1 for a new item.
    """
    mean, cholesky = model.posterior(users)
    user_moments = Moments.from_mean_and_covariance(mean, torch.cholesky_inverse(cholesky))
    selection = model.selection_offset(users.history.lengths())[raters.indices]
    matrix, rhs = expected_normal_equations(
        user_moments, model.packed_index, raters, raters.values - model.mean - selection
    )
    prior, precision = _item_prior(model, item_rows)
    matrix = model.noise_precision[:, None, None] * matrix + precision
    mean = torch.linalg.solve(matrix, model.noise_precision[:, None] * rhs + prior)
    return Moments.from_mean_and_covariance(mean.float(), torch.linalg.inv(matrix).float())


def _item_prior(model: BayesModel, item_rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return precision times mean [K, T, D] and precision [K, T, D, D] of the items' priors."""
    means = model.means[item_rows].double()
    covariance = (
        model.second_moments[item_rows][..., model.packed_index]
        - means[..., :, None] * means[..., None, :]
    )
    # rounding errors are those of the second moments
    squares = covariance.diagonal(dim1=-2, dim2=-1) + means.square()
    precision = torch.linalg.inv(covariance + torch.diag_embed(1e-6 * squares))
    in_model = (item_rows >= 0)[:, None, None]
    information = (precision @ means[..., None])[..., 0]
    prior = torch.where(in_model, information, model.item_prior_information)
    return prior, torch.where(in_model[..., None], precision, model.item_precision)


def with_items(
    model: BayesModel,
    moments: Moments,
    rows: Tensor,
    empty_history_offset: Tensor,
    n_raters: Tensor,
) -> BayesModel:
    """Return a model with the moments of K items replaced or added; rows from `n_items` on are new.

    `n_raters` [K] is added to the model's. New items get no row in `basis` and no neighbors: a
    rating of one is evidence, but φ does not see it.
    """
    out = copy(model)
    out._buffers = dict(model._buffers)
    out.n_items = max(model.n_items, int(rows.max()) + 1)
    replacements = {
        "means": moments.means,
        "second_moments": moments.second_moments,
        "empty_history_offset": empty_history_offset,
    }
    for name in (*replacements, "basis", "n_raters", "neighbor_items", "neighbor_weights"):
        buffer: Tensor = getattr(model, name)
        extended = buffer.new_zeros(out.n_items, *buffer.shape[1:])
        extended[: model.n_items] = buffer
        if name in replacements:
            extended[rows] = replacements[name].to(extended.dtype)
        if name == "n_raters":
            extended[rows] += n_raters.to(extended.dtype)
        setattr(out, name, extended)
    return out


def expected_normal_equations(
    moments: Moments, packed_index: Tensor, ratings: RaggedRows, residuals: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the expected normal equations of (p, b) given ratings: [B, T, D, D] and [B, T, D].

    For a rating with residual r (the rating less all known constants) of an item with v = (q, b_i),
    the matrix gains E xx' and the right side E (r - b_i) x, where x = (q, 1). `ratings` point at
    rows of `moments`: items, or the raters when items are inferred.
    """
    blocks, size = moments.means.shape[1:]
    means = moments.means.flatten(1)
    first = sum_pool(means, ratings).view(-1, blocks, size)
    packed = sum_pool(moments.second_moments.flatten(1), ratings)
    matrix = packed.view(-1, blocks, moments.second_moments.shape[2])[..., packed_index]
    rhs = sum_pool(means, ratings, residuals).view(-1, blocks, size) - matrix[..., -1]
    sums = segment_sum(residuals, ratings.owner(), len(first))
    rhs[..., -1] = sums[:, None] - first[..., -1]
    matrix[..., -1], matrix[..., -1, :] = first, first
    matrix[..., -1, -1] = ratings.lengths()[:, None]
    return matrix, rhs


def history_features(basis: Tensor, history: RaggedRows) -> Tensor:
    """Return Σ basis / √n over each history and log(1 + n): [B, R + 1]; zeros if n = 0.

    Ratings are not used. For the features of items, `history` holds the raters of each item and
    `basis` is that of the users.
    """
    n = history.lengths()[:, None].to(basis.dtype)
    return torch.cat([sum_pool(basis, history) / n.clamp(min=1).sqrt(), n.log1p()], 1)


def packed_triangle_index(size: int) -> Tensor:
    """Return the position of [d, e] and of [e, d] in a packed lower triangle: int64 [D, D]."""
    row, column = np.tril_indices(size)
    out = np.empty((size, size), np.int64)
    out[row, column] = out[column, row] = np.arange(len(row))
    return torch.from_numpy(out)
