"""Popularity and biases: sums, divided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.models.base import Backbone
from idcf.models.baselines import Bias, BiasConfig, Popularity, PopularityConfig
from idcf.training.solvers.context import Work


def popularity(config: PopularityConfig, table: Interactions, work: Work) -> Popularity:
    model = Popularity(config, table.domain())
    model.counts = counts(table)
    return model


def counts(table: Interactions) -> Tensor:
    return torch.from_numpy(table.item_counts()).float()


def bias(config: BiasConfig, table: Interactions, work: Work) -> Bias:
    """Ridge on both sides in turn: b_i = Σ (r - μ - b_u) / (n + item_strength), b_u likewise.

    Only b_i is kept: the users' side is computed when they come.
    """
    model = Bias(config, table.domain())
    own = table.rating - model.mean
    n_items, n_users = counts(table).numpy(), table.counts()
    left, rounds = own, 1 if config.strength == float("inf") else 5
    for _ in range(rounds):
        b_i = np.bincount(table.item, left, len(table.items)) / (n_items + config.item_strength)
        b_u = np.bincount(table.user, own - b_i[table.item], len(table.users))
        left = own - (b_u / (n_users + config.strength))[table.user]
    model.item_bias = torch.from_numpy(b_i).float()
    return model


def fill(base: Bias, config: BiasConfig, table: Interactions) -> None:
    """Fit the biases inside another baseline."""
    if not table.implicit:
        base.item_bias = bias(config, table, Work()).item_bias


def start_from_biases(model: Backbone, table: Interactions) -> None:
    """Begin at the ridge biases: rare items have them from the first step."""
    base, own = _both(table)
    with torch.no_grad():
        model.items.bias.copy_(base.item_bias + base.mean - model.mean)
        model.users.bias.copy_(own)


def level(table: Interactions) -> Interactions:
    """The same ratings as if all raters were equally generous. An item's mean says who rates it as
    well as how good it is, and newcomers are not those who rate it."""
    rating = table.rating - _both(table)[1].numpy()[table.user]
    return replace(table, rating=rating.astype(table.rating.dtype))


def _both(table: Interactions) -> tuple[Bias, Tensor]:
    """The ridge biases of items, and those of users."""
    base = bias(BiasConfig(), table, Work())
    return base, base.residual(table.history(np.arange(len(table.users))))[0]
