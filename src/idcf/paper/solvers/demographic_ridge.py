"""Solver of the demographic ridge: normal equations summed item by item."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.models.layers.ragged import shrunk_mean
from idcf.models.options import DEFAULT_ITEM_SHRINKAGE
from idcf.paper.layers.feature_fields import bounded
from idcf.paper.model_options import DemographicRidgeConfig
from idcf.paper.models.demographic_ridge import DemographicRidge
from idcf.training.solvers import SolverContext
from idcf.types import Domain


def fit_demographic_ridge(
    config: DemographicRidgeConfig, table: Interactions, context: SolverContext
) -> DemographicRidge:
    """Fit the item means, then the weights of the features to what the means leave."""
    domain = table.domain()
    model = DemographicRidge(config, domain)
    raters = domain.raters
    residuals = raters.values - domain.mean
    model.item_mean = shrunk_mean(residuals, raters, DEFAULT_ITEM_SHRINKAGE)
    if domain.user_features is None or not config.user_features:
        return model
    matrix, rhs = cross_moments(domain, model)
    matrix += config.reg * torch.eye(len(matrix), dtype=matrix.dtype)
    model.weights = torch.linalg.solve(matrix, rhs).view(model.weights.shape).float()
    return model


def cross_moments(domain: Domain, model: DemographicRidge) -> tuple[Tensor, Tensor]:
    """Return Σ vvᵀ / n_u and Σ v (r - m_i) / n_u over the ratings, v = x ⊗ [z_i, 1].

    Σ vvᵀ = Σ_i (Σ_u xxᵀ) ⊗ [z, 1][z, 1]ᵀ, so that the raters of an item are added up once.
    Each user counts once, whatever the number n_u of their ratings: errors of one user are alike.
    """
    assert domain.user_features is not None
    users = bounded(domain.user_features).double()
    items = model.embed_items(torch.arange(domain.n_items)).vector.double()
    raters, n_items = domain.raters, len(items)
    residuals = (raters.values - domain.mean - model.item_mean[raters.owner()]).double()
    share = 1 / torch.bincount(raters.indices, minlength=len(users)).clamp(min=1).double()
    grams = torch.empty(n_items, users.shape[1] ** 2, dtype=users.dtype)  # Σ_u xxᵀ
    sums = torch.empty(n_items, users.shape[1], dtype=users.dtype)  # Σ_u x (r - m_i)
    for item, (start, end) in enumerate(pairwise(raters.offsets.tolist())):
        x, weight = users[raters.indices[start:end]], share[raters.indices[start:end], None]
        weighted = (x * weight).T
        grams[item], sums[item] = (weighted @ x).flatten(), weighted @ residuals[start:end]
    sizes = users.shape[1], items.shape[1]
    outer = (items[:, :, None] * items[:, None]).flatten(1)
    blocks = (grams.T @ outer).view(sizes[0], sizes[0], sizes[1], sizes[1])
    matrix = blocks.transpose(1, 2).reshape(sizes[0] * sizes[1], -1)
    return matrix, (sums.T @ items).flatten()
