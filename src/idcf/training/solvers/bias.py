"""Solvers of the popularity and the bias model, and biases for the models that start from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.models.base import Backbone
from idcf.models.baselines import BiasModel, PopularityModel
from idcf.models.layers.ragged import item_ridge_biases
from idcf.models.options import BiasConfig, PopularityConfig
from idcf.training.solvers import SolverContext


def fit_popularity(
    config: PopularityConfig, table: Interactions, context: SolverContext | None = None
) -> PopularityModel:
    """Return a model that scores items by their number of rows, or the sum of their weights;
    `context` is not used."""
    model = PopularityModel(config, table.domain())
    counts = np.bincount(table.item, table.weight, minlength=len(table.items))
    model.counts = torch.from_numpy(counts).float()
    return model


def item_counts_tensor(table: Interactions) -> Tensor:
    """Return the number of rows of each item as floats: [I]."""
    return torch.from_numpy(table.item_counts()).float()


def fit_bias(
    config: BiasConfig, table: Interactions, context: SolverContext | None = None
) -> BiasModel:
    """Fit the item biases by alternating ridge regression; `context` is not used.

    The model computes b_u from a user's history.
    """
    domain = table.domain()
    model = BiasModel(config, domain)
    model.item_bias = item_ridge_biases(
        domain, config.shrinkage, config.item_shrinkage, dtype=torch.float64
    )
    return model


def fit_base_bias(base: BiasModel, shrinkage: float, table: Interactions) -> None:
    """Fit the bias model inside another baseline, in place; do nothing for implicit feedback."""
    if not table.implicit:
        base.item_bias = fit_bias(BiasConfig(shrinkage=shrinkage), table).item_bias


def initialize_biases(model: Backbone, table: Interactions) -> None:
    """Set the biases of an untrained backbone to the ridge biases, so that items with few ratings
    have theirs from the first step."""
    base, user_bias = _ridge_biases(table)
    with torch.no_grad():
        model.item_table.bias.copy_(base.item_bias + base.mean - model.mean)
        model.user_table.bias.copy_(user_bias)


def subtract_user_biases(table: Interactions) -> Interactions:
    """Return the table with each rating less its user's ridge bias.

    An item's mean depends on which users rate it; new users are not among them.
    """
    rating = table.rating - _ridge_biases(table)[1].numpy()[table.user]
    return replace(table, rating=rating.astype(table.rating.dtype))


def _ridge_biases(table: Interactions) -> tuple[BiasModel, Tensor]:
    """Return the bias model of the table and the biases of its users [U]."""
    base = fit_bias(BiasConfig(), table)
    return base, base.user_bias_and_residuals(table.history(np.arange(len(table.users))))[0]
