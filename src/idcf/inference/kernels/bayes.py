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
