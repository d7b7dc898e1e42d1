"""Kernel of the Bayesian model: the posterior of one new user on NumPy arrays."""

from __future__ import annotations

import numpy as np
import torch

from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels.linalg import MatrixVectorProduct, to_float32_array
from idcf.models.bayes import BayesModel


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

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""
        mean, _ = self.posterior(item_rows, values)
        scores = self.catalog_product(mean[:, :-1].reshape(-1))
        scores += self.item_offsets
        inverse = 1 / (1 + len(item_rows))
        first, second = self.selection_coefficients
        scores += mean[:, -1].mean() + first * inverse**0.5 + second * inverse
        return scores

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
        """Return the standard deviations [K] of the ratings of items [K]; see `PosteriorStd`.

        Parameters
        ----------
        item_rows, values
            The history.
        target_rows
            Rows of the K items.
        """
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
