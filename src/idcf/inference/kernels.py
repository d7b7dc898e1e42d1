"""Fast inference kernels for frozen models, and which model has which.

A kernel gives the scores or embeddings of the model's own methods, to rounding; the tests compare
the two. A model without a kernel is scored by its own methods. Models do not know their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from scipy.linalg.lapack import sposv
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.models.base import Model, TwoTower
from idcf.models.baselines import FoldInModel
from idcf.models.bayes import BayesModel, UserPosterior, rating_std
from idcf.models.idcf import IDCF, POOLING_POWER
from idcf.models.layers.heads import DotHead
from idcf.models.matrix_factorization import MatrixFactorization
from idcf.models.take_up import TakeUpModel
from idcf.types import Embeddings, EncodedHistory, History, Users, select_histories

_MAX_NUMPY_TABLE_SIZE = 1 << 20  # numbers in a matrix; above this PyTorch multiplies faster
_MAX_DENSE_WEIGHTS = 1 << 24  # numbers in a matrix of item weights that is held with its zeros
_MAX_DATA_TO_PRIOR_RATIO = 1e5  # above this single precision is not enough for `FoldInKernel`


class SingleUserScorer(Protocol):
    """Score the whole catalogue for one new user with a history, on NumPy arrays."""

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""

    @property
    def rating_std(self) -> Callable[[Ints, Floats, Ints], Floats] | None:
        """Standard deviations [K] from the two arrays of a history and K item rows, or None."""


class BatchEmbedder(Protocol):
    """Embed many new users: a replacement of `TwoTower.embed_users`."""

    def embed_users(self, users: Users) -> Embeddings:
        """Return the embeddings of the users: vectors [B, D] and biases [B]."""


def batch_embedder(model: Model, *, copies_items: bool = True) -> BatchEmbedder | None:
    """Return the kernel that embeds many users, or None if the model has none.

    `copies_items`: it may hold copies of all item vectors.
    """
    build = _BATCH_EMBEDDERS.get(type(model))
    if build is None or (build is fold_in_kernel and not copies_items):
        return None
    return build(model)


def has_item_table(model: TwoTower) -> bool:
    """Return whether scores are dot products with rows of a table, so that a few items are embedded
    without the others."""
    source = model.backbone if isinstance(model, IDCF) else model
    is_table = isinstance(source, FoldInModel | BayesModel | MatrixFactorization)
    return is_table and isinstance(model.head, DotHead)


def single_user_scorer(model: Model, embedder: BatchEmbedder | None) -> SingleUserScorer | None:
    """Return the kernel that scores the catalogue for one user, or None if the model has none.

    `embedder` is the `batch_embedder` of the model, whose arrays are shared.
    """
    source = model if embedder is None else embedder
    build = _SINGLE_USER_SCORERS.get(type(source))
    return None if build is None else build(source)


def posterior_kernel(model: Model) -> BayesPosteriorKernel | None:
    """Return the kernel of embeddings and standard deviations, or None if the model has none."""
    build = _POSTERIOR_KERNELS.get(type(model))
    return None if build is None else build(model)


class MatrixVectorProduct:
    """Multiply one fixed matrix [I, D] with vectors [D].

    A call of NumPy has less overhead, PyTorch reads memory faster, so the size decides.
    """

    def __init__(self, matrix: Floats) -> None:
        self._is_small = matrix.size < _MAX_NUMPY_TABLE_SIZE
        # [D, I]: contiguous for NumPy, a transposed view of a contiguous matrix for PyTorch
        self._transposed = (
            np.ascontiguousarray(matrix.T) if self._is_small else np.ascontiguousarray(matrix).T
        )
        self._tensor = torch.from_numpy(self._transposed)  # the same memory

    def __call__(self, vector: Floats) -> Floats:
        """Return matrix @ vector: [I]."""
        product: Floats
        if self._is_small:
            product = vector @ self._transposed
        else:
            product = torch.mm(torch.from_numpy(vector)[None], self._tensor)[0].numpy()
        return product


def to_float32_array(tensor: Tensor) -> Floats:
    """Copy a tensor into a float32 array on the CPU."""
    array: Floats = tensor.detach().float().cpu().numpy().copy()
    return array


def fold_in_kernel(model: FoldInModel) -> FoldInKernel | None:
    """Return the kernel of a fold-in model, or None where only the model's solver is exact enough.

    That is so for models with a term per history entry and for nearly singular shared equations.
    """
    if model.negative_terms.any():
        return None
    cholesky, error = torch.linalg.cholesky_ex(model.gram.double())
    if error:
        return None
    kernel = FoldInKernel(model, cholesky)
    return kernel if kernel.data_to_prior_ratio < _MAX_DATA_TO_PRIOR_RATIO else None


class FoldInKernel:
    """`FoldInModel.embed_users` and scores with one equation per item of the history.

    In coordinates z = L⁻¹q, with LLᵀ the part of the left side that all users share, Z the rows of
    the history, m the prior mean and y the residuals: p = m + Zᵀ(ZZᵀ + 1/α)⁻¹(y - Zm).
    """

    rating_std = None

    def __init__(self, model: FoldInModel, cholesky: Tensor) -> None:
        self.model, self.embedding_size, self.alpha = model, model.factors.shape[1], model.alpha
        white = torch.linalg.solve_triangular(cholesky, model.factors.double().T, upper=False)
        self.whitened_items = white.T.float().contiguous()
        self.inverse_cholesky = torch.linalg.inv(cholesky).float()
        prior_rhs = model.prior_rhs.double()[:, None]
        prior_mean = torch.linalg.solve_triangular(cholesky, prior_rhs, upper=False)
        self.prior_mean = prior_mean[:, 0].float()
        self.prior_scores = self.whitened_items @ self.prior_mean
        largest_norm = float(self.whitened_items.square().sum(1).max())
        self.data_to_prior_ratio = self.alpha * self.embedding_size * largest_norm
        self.item_offsets = model.bias_model.item_bias + model.mean
        self.positive_target = None if model.predicts_ratings else float(model.positive_target)
        self._whitened_items_np = to_float32_array(self.whitened_items)
        self._prior_scores_np = to_float32_array(self.prior_scores)
        self._item_offsets_np = to_float32_array(self.item_offsets)
        scores_at_prior = self._item_offsets_np + self._prior_scores_np
        scores_at_prior += to_float32_array(model.popularity_bias())
        self._catalog_product = MatrixVectorProduct(
            np.column_stack([self._whitened_items_np, scores_at_prior])
        )

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""
        z, n = self._whitened_items_np.take(item_rows, 0), len(item_rows)
        targets = values if self.positive_target is None else self.positive_target
        residuals = targets - self._item_offsets_np[item_rows]
        if self.positive_target is None:
            bias = residuals.sum() / np.float32(max(n + self.model.bias_model.shrinkage, 1e-9))
            residuals -= bias
        vector = np.ones(self.embedding_size + 1, np.float32)
        if n <= self.embedding_size:
            matrix = z @ z.T
            matrix.ravel()[:: n + 1] += np.float32(1 / self.alpha)
            vector[:-1] = sposv(matrix, residuals - self._prior_scores_np[item_rows])[1] @ z
        else:
            matrix = np.float32(self.alpha) * (z.T @ z)
            matrix.ravel()[:: self.embedding_size + 1] += 1
            rhs = np.float32(self.alpha) * (residuals - self._prior_scores_np[item_rows]) @ z
            vector[:-1] = sposv(matrix, rhs)[1]
        scores = self._catalog_product(vector)
        if self.positive_target is None:
            scores += bias
        return scores

    def embed_users(self, users: Users) -> Embeddings:
        """Return the embeddings of the users; long histories are solved by the model."""
        is_short = users.history.lengths() <= self.embedding_size // 2
        if bool(is_short.all()):
            return self._embed_short_histories(users.history)
        if not bool(is_short.any()):
            return self.model.embed_users(users)
        short_rows, long_rows = (x.nonzero()[:, 0] for x in (is_short, ~is_short))
        short = self._embed_short_histories(select_histories(users.history, short_rows))
        long_history = select_histories(users.history, long_rows)
        long = self.model.embed_users(Users(users.ids[long_rows], long_history))
        order = torch.cat([short_rows, long_rows]).argsort()
        return Embeddings(
            torch.cat([short.vector, long.vector])[order], torch.cat([short.bias, long.bias])[order]
        )

    def _embed_short_histories(self, history: History) -> Embeddings:
        """Solve all users at once, padded with rows of zeros, which change nothing."""
        n, model = history.lengths(), self.model
        if model.predicts_ratings:
            bias, residuals = model.bias_model.user_bias_and_residuals(history)
        else:
            bias = torch.zeros(len(n), device=n.device)
            residuals = model.positive_target - self.item_offsets[history.items]
        columns = torch.arange(int(n.max()) if len(n) else 0, device=n.device)
        is_entry = columns < n[:, None]
        z = self.whitened_items.new_zeros(*is_entry.shape, self.embedding_size)
        z[is_entry] = self.whitened_items[history.items]
        rhs = self.whitened_items.new_zeros(is_entry.shape)
        rhs[is_entry] = residuals - self.prior_scores[history.items]
        matrix = z @ z.mT
        matrix.diagonal(dim1=1, dim2=2).add_(1 / self.alpha)
        solution = torch.cholesky_solve(rhs[..., None], torch.linalg.cholesky(matrix))
        vector = (self.prior_mean + (solution.mT @ z)[:, 0]) @ self.inverse_cholesky
        # an empty history of implicit feedback is ranked by popularity, the last coordinate
        is_popular = (n == 0)[:, None] & (not model.predicts_ratings)
        vector = torch.cat([vector.masked_fill(is_popular, 0), is_popular.to(vector)], 1)
        return Embeddings(vector, bias)


class BayesSingleUserScorer:
    """`BayesModel.posterior` and the scores of the catalogue for one user with a history.

    User features are not read: a user with features is scored by the model.
    """

    def __init__(self, model: BayesModel) -> None:
        self.model, self.rating_mean = model, model.mean
        self.n_blocks, self.latent_size = model.mean_key_latent.shape
        self.second_moments = to_float32_array(model.second_moments.flatten(1))
        self.item_means = to_float32_array(model.means.flatten(1))
        self.packed_index = model.packed_index.cpu().numpy()
        self.noise_precision = to_float32_array(model.noise_precision)[:, None]
        self.prior_precision = to_float32_array(model.precision)
        # φ = (raw - mean) / std is linear, so that mean and std go into the coefficients
        link = model.prior_information[:, : 1 + len(model.feature_std)].double()
        link = link / torch.cat([model.feature_std.new_ones(1), model.feature_std])[:, None]
        link[:, 0] -= torch.einsum("f,tfd->td", model.feature_mean.double(), link[:, 1:])
        self.basis = to_float32_array(model.basis)
        self.prior_information = to_float32_array(link.transpose(0, 1).flatten(1))
        items = model.embed_catalog()
        self.catalog_product = MatrixVectorProduct(to_float32_array(items.vector[:, :-1]))
        self.item_offsets = to_float32_array(items.bias + model.mean)
        self.selection_coefficients = to_float32_array(model.selection_coefficients).tolist()
        low = np.tril_indices(self.latent_size)
        self.packed_position = low[0] * self.latent_size + low[1]  # in a flat square matrix
        self.packed_weight = np.where(low[0] == low[1], 1, 2).astype(np.float32)
        self.noise_variance = float((1 / model.noise_precision).mean())
        self.std_scale = float(model.std_scale)
        self.neighbor_items = model.neighbor_items.cpu().numpy()
        self.neighbor_weights = to_float32_array(model.neighbor_weights)
        self.neighbor_scale = float(model.neighbor_scale)

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""
        mean, _ = self.posterior(item_rows, values)
        scores = self.catalog_product(mean[:, :-1].reshape(-1))
        scores += self.item_offsets
        inverse = 1 / (1 + len(item_rows))
        first, second = self.selection_coefficients
        scores += mean[:, -1].mean() + first * inverse**0.5 + second * inverse
        if self.neighbor_items.shape[1]:
            scores += self._correction(item_rows, values - scores[item_rows])
        return scores

    def _correction(self, item_rows: Ints, residuals: Floats) -> Floats:
        """Return what the residuals of the history add to the score of every item [I]."""
        cells = self.neighbor_items.take(item_rows, 0).ravel()
        weights = self.neighbor_weights.take(item_rows, 0)
        n_items = len(self.neighbor_items)
        sums = np.bincount(cells, (weights * residuals[:, None]).ravel(), n_items)
        total = np.bincount(cells, weights.ravel(), n_items)
        correction: Floats = (self.neighbor_scale * sums / (1 + total)).astype(np.float32)
        return correction

    def posterior(self, item_rows: Ints, values: Floats) -> tuple[Floats, Floats]:
        """Return mean [T, D] and precision [T, D, D] of (p_u, b_u) in each block."""
        n, shape = len(item_rows), (self.n_blocks, self.latent_size)
        residuals = values - np.float32(self.rating_mean)
        means = self.item_means.take(item_rows, 0)
        first = np.add.reduce(means, 0).reshape(shape)
        second = np.add.reduce(self.second_moments.take(item_rows, 0), 0).reshape(self.n_blocks, -1)
        precision = second[:, self.packed_index]
        rhs = (residuals @ means).reshape(shape) - precision[:, -1]
        rhs[:, -1] = residuals.sum() - first[:, -1]
        precision[:, -1], precision[:, :, -1] = first, first
        precision[:, -1, -1] = n
        precision *= self.noise_precision[:, :, None]
        precision += self.prior_precision
        features = np.empty(len(self.prior_information), np.float32)
        features[0], features[-1] = 1, np.log1p(n)
        features[1:-1] = np.add.reduce(self.basis.take(item_rows, 0), 0) / n**0.5
        rhs *= self.noise_precision
        rhs += (features @ self.prior_information).reshape(shape)
        mean: Floats = np.linalg.solve(precision, rhs[..., None])[..., 0]
        return mean, precision

    def rating_std(self, item_rows: Ints, values: Floats, target_rows: Ints) -> Floats:
        """Return the standard deviations [K] of the ratings of items [K], as the model does."""
        mean, precision = self.posterior(item_rows, values)
        covariance, user_bias = np.linalg.inv(precision), mean[:, -1]
        w = np.column_stack([mean[:, :-1], np.ones_like(user_bias)])
        item = self.item_means.take(target_rows, 0).reshape(-1, *mean.shape)
        expected = (item * w).sum(-1)  # [K, T]
        square = w[:, :, None] * w[:, None, :]
        square[:, :-1, :-1] += covariance[:, :-1, :-1]
        packed = square.reshape(len(w), -1)[:, self.packed_position] * self.packed_weight
        cross = covariance[..., -1].copy()
        cross[:, -1] = 0
        total = self.second_moments.take(target_rows, 0) @ packed.reshape(-1)
        total += 2 * (item.reshape(len(target_rows), -1) @ cross.reshape(-1))
        total += covariance[:, -1, -1].sum() - np.square(expected).sum(-1)
        within = np.maximum(total, 0) / len(w) + np.float32(self.noise_variance)
        std: Floats = self.std_scale * np.sqrt(within + (expected + user_bias).var(-1))
        return std.astype(np.float32)


class BayesPosteriorKernel:
    """One posterior of many users with histories gives their embeddings and their deviations."""

    def __init__(self, model: BayesModel) -> None:
        self.model = model

    def posterior(self, users: Users) -> UserPosterior:
        """Return the posterior of each user."""
        return self.model.posterior(users.to(self.model.device))

    def embed_users(self, users: Users, posterior: UserPosterior) -> Embeddings:
        """Return what `BayesModel.embed_users` does, for users with histories only."""
        mean, n = posterior.mean, users.history.lengths().to(self.model.device)
        vector = F.pad(mean[..., :-1].flatten(1), (0, 1))
        return Embeddings(vector, mean[..., -1].mean(1) + self.model.selection_offset(n))

    def rating_std(self, posterior: UserPosterior, item_rows: Tensor) -> Tensor:
        """Return the standard deviations [B, K] of the ratings of items [B, K]."""
        return rating_std(self.model, posterior, item_rows.to(self.model.device))


def idcf_batch_embedder(model: IDCF) -> IDCFBatchEmbedder | None:
    """Return the kernel of an IDCF, or None unless it attends to all key users by dot products."""
    has_kernel = model.relation.attention == "dot" and model.meta_path is None
    return IDCFBatchEmbedder(model) if has_kernel else None


def idcf_single_user_scorer(embedder: IDCFBatchEmbedder) -> IDCFSingleUserScorer | None:
    """Return the kernel of an IDCF, or None unless the item vectors of its backbone are a table,
    and query and key latents hold what they hold by default."""
    model, config = embedder.model, embedder.model.config
    has_table = isinstance(model.backbone, MatrixFactorization)
    has_kernel = has_table and config.query_length and config.relate_bias
    return IDCFSingleUserScorer(embedder) if has_kernel else None


class IDCFBatchEmbedder:
    """`IDCF.embed_users` as one fused attention of B·H queries over the key users."""

    def __init__(self, model: IDCF) -> None:
        self.model = model
        relation = model.relation
        self.n_heads, _, self.key_size = relation.query.shape
        query_key, value_out = relation.fold()
        query_key = query_key * (relation.scale * model.key_scale) / model.query_std[:, None]
        self.query_key = query_key.transpose(0, 1).flatten(1).contiguous()
        self.value_out = value_out.flatten(0, 1)

    def embed_users(self, users: Users) -> Embeddings:
        """Return the embeddings of the users: vectors [B, D] and biases [B]."""
        history, shrinkage = users.history, self.model.config.bias_shrinkage
        n, query = history.lengths(), self.model.raw_query(history)
        bias_scale = 1 / (n + shrinkage).clamp(min=1e-9)
        encoded = EncodedHistory(query, history.owner(), bias_scale, None)
        latents = self.model.split_latents(self._induce_latents(query, n))
        return self.model.embed_latents(latents, users, encoded)

    def _induce_latents(self, query: Tensor, history_lengths: Tensor) -> Tensor:
        """Return p̃ [B, D + 1], as `IDCF.induce_latents` does."""
        projected = (query - self.model.query_mean) @ self.query_key
        keys = self.model.key_latents[None, None]
        attended = F.scaled_dot_product_attention(
            projected.view(1, 1, -1, self.key_size), keys, keys, scale=1.0
        )
        latent = attended.view(-1, self.n_heads * self.key_size) @ self.value_out
        is_empty = (history_lengths == 0)[:, None]
        return torch.where(is_empty, self.model.mean_key_latent, latent)


class IDCFSingleUserScorer:
    """Score the catalogue for one new user with NumPy, for an IDCF whose backbone has item vectors.

    A call takes the item rows and values of a history, and returns the score of every item [I].
    All items are scored without the user bias first; the residuals of the history are among these
    scores, and they give the bias.
    """

    rating_std = None

    def __init__(self, embedder: IDCFBatchEmbedder) -> None:
        model, config = embedder.model, embedder.model.config
        items = model.backbone.item_table
        self.item_vectors = to_float32_array(items.vector)
        self.query_mean = to_float32_array(model.query_mean)
        self.query_key = to_float32_array(embedder.query_key)
        self.value_out = to_float32_array(embedder.value_out)
        self.key_latents = model.key_latents.cpu().T.contiguous()  # laid out for the longer product
        self.n_heads, self.key_size = embedder.n_heads, embedder.key_size
        self.pooling_power = POOLING_POWER[config.pooling]
        expected = to_float32_array(items.bias + model.mean + model.mean_key_latent[-1])
        self.expected_ratings = expected if config.query == "ratings" else None
        self.item_offsets = to_float32_array(items.bias + model.mean)
        # with biases as parameters of the training users, a new user has bias 0
        self.adds_expected_bias = not model.has_user_parameters
        infers_bias = model.predicts_ratings and self.adds_expected_bias
        self.bias_shrinkage = config.bias_shrinkage if infers_bias else None
        self.catalog_product = MatrixVectorProduct(self.item_vectors)
        self.head = None if isinstance(model.head, DotHead) else model.head
        self.item_tensor, self.device = items.vector, model.device

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""
        latent = self.embed(item_rows, values)
        vector, expected_bias = latent[:-1], latent[-1]
        if self.head is None:
            scores = self.catalog_product(vector)
        else:
            user = torch.from_numpy(np.ascontiguousarray(vector))[None].to(self.device)
            scores = self.head.score_all_pairs(user, self.item_tensor)[0].cpu().numpy()
        scores += self.item_offsets
        if self.adds_expected_bias:
            scores += expected_bias
        if self.bias_shrinkage is not None:
            residuals = values - scores[item_rows]
            scores += residuals.sum() / (len(item_rows) + self.bias_shrinkage)
        return scores

    def embed(self, item_rows: Ints, values: Floats) -> Floats:
        """Return p̃ and the expected bias of a user with a history: [D + 1]."""
        vectors = self.item_vectors.take(item_rows, 0)
        query = np.empty(vectors.shape[1] + 1, np.float32)
        np.add.reduce(vectors, 0, out=query[:-1])
        query[:-1] /= len(item_rows) ** self.pooling_power
        query[-1] = np.log1p(len(item_rows))
        if self.expected_ratings is not None:
            residuals = values - self.expected_ratings[item_rows]
            query = np.concatenate([query, residuals @ vectors / len(item_rows) ** 0.5])
        projected = (query - self.query_mean) @ self.query_key
        queries = torch.from_numpy(projected.reshape(self.n_heads, self.key_size))
        attended = torch.softmax(queries @ self.key_latents, 1) @ self.key_latents.T
        latent: Floats = attended.numpy().reshape(-1) @ self.value_out
        return latent


class TakeUpSingleUserScorer:
    """`TakeUpModel.score_catalog` for one history that is not empty.

    A small matrix is held with its zeros, so that whole rows are added. In a large catalogue whose
    relation has no part of low rank (`is_sparse`) most items have no relation to the history; their
    probabilities depend on its length alone, and are kept for each length.
    """

    rating_std = None

    def __init__(self, model: TakeUpModel) -> None:
        weights = model.item_weights
        self.n_items = model.n_items
        self._offsets = weights.offsets.cpu().numpy()
        self._columns = weights.columns.cpu().numpy()
        self._values = to_float32_array(weights.values)
        self._dense: Floats | None = None
        if self.n_items**2 <= _MAX_DENSE_WEIGHTS:
            self._dense = to_float32_array(weights.to_dense())
        self._low_rank: tuple[Floats, Floats, Floats] | None = None  # sources, targets, diagonal
        if model.has_factors:
            part = model.low_rank_weights
            tensors = (part.sources, part.targets, part.diagonal())
            self._low_rank = tuple(map(to_float32_array, tensors))  # type: ignore[assignment]
        self.is_sparse = self._dense is None and self._low_rank is None
        self._prior_scores = to_float32_array(model.prior_scores)
        self._inverse_unit = 1 / float(model.score_unit)
        self._coefficients = model.coefficients.tolist()
        self._max_log_length = float(model.max_log_length)
        self._knots, self._logits = (
            x.double().cpu().numpy() for x in (model.link_knots, model.link_logits)
        )
        self._unrelated: dict[float, Floats] = {}  # by L: probabilities without any relation

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the probability of every item [I]."""
        if self.is_sparse:
            probability = self.unrelated_probability(len(item_rows)).copy()
            rows, related = self.related_probability(item_rows, values)
            probability[rows] = related
            return probability
        if self._dense is not None:
            score = values @ self._dense[item_rows] + self._prior_scores
        else:
            columns, weights = self._entries(item_rows, values)
            score = np.bincount(columns, weights, self.n_items).astype(np.float32)
            score += self._prior_scores
        score = self._with_low_rank(score, item_rows, values)
        return self._probability(score, self._log_length(len(item_rows)))

    def unrelated_probability(self, length: int) -> Floats:
        """Return P of every item [I] without a relation to a history of some length. Read only."""
        log_length = self._log_length(length)
        if log_length not in self._unrelated:
            self._unrelated[log_length] = self._probability(self._prior_scores, log_length)
        return self._unrelated[log_length]

    def related_probability(self, item_rows: Ints, values: Floats) -> tuple[Ints, Floats]:
        """Return the items that have weights of items of the history, in ascending order, and their
        P; without the part of low rank."""
        columns, weights = self._entries(item_rows, values)
        rows, position = np.unique(columns, return_inverse=True)
        score = np.bincount(position, weights, len(rows)).astype(np.float32)
        score += self._prior_scores[rows]
        return rows, self._probability(score, self._log_length(len(item_rows)))

    def _entries(self, item_rows: Ints, values: Floats) -> tuple[Ints, Floats]:
        """Return the columns of the stored weights of some items, and the weights · `values`."""
        entries = np.concatenate(
            [np.arange(self._offsets[row], self._offsets[row + 1]) for row in item_rows]
        )
        lengths = self._offsets[item_rows + 1] - self._offsets[item_rows]
        return self._columns[entries], self._values[entries] * np.repeat(values, lengths)

    def _log_length(self, length: int) -> float:
        """Return L of a history."""
        return min(float(np.log1p(length)), self._max_log_length)

    def _with_low_rank(self, score: Floats, item_rows: Ints, values: Floats) -> Floats:
        """Add the part of low rank to the scores of all items [I], in place."""
        if self._low_rank is not None:
            sources, targets, diagonal = self._low_rank
            score += targets @ (values @ sources[item_rows])
            np.subtract.at(score, item_rows, values * diagonal[item_rows])
        return score

    def _probability(self, score: Floats, log_length: float) -> Floats:
        """Return P for scores and L, as the model does."""
        c0, c1, c2, c3 = self._coefficients
        z = np.arcsinh(score * np.float32(self._inverse_unit))
        z *= c2 + c3 * log_length
        z += c0 + c1 * log_length
        logit = np.interp(z, self._knots, self._logits)
        probability: Floats = (1 / (1 + np.exp(-logit))).astype(np.float32)
        return probability


# What builds the kernel of a class; it returns None for instances that have no kernel. The keys
# are final classes, so that `type` finds them.
_BATCH_EMBEDDERS: Mapping[type, Callable[[Any], BatchEmbedder | None]] = {
    IDCF: idcf_batch_embedder,
    FoldInModel: fold_in_kernel,
}
_SINGLE_USER_SCORERS: Mapping[type, Callable[[Any], SingleUserScorer | None]] = {
    BayesModel: BayesSingleUserScorer,  # the classes below are batch embedders
    IDCFBatchEmbedder: idcf_single_user_scorer,
    FoldInKernel: lambda kernel: kernel,
    TakeUpModel: TakeUpSingleUserScorer,
}
_POSTERIOR_KERNELS: Mapping[type, Callable[[Any], BayesPosteriorKernel]] = {
    BayesModel: BayesPosteriorKernel
}
