"""Alternating least squares on what the biases leave unexplained, or on confidences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions
from idcf.models.baselines import BiasConfig, FoldIn, FoldInConfig
from idcf.nn.pooling import normal_equations
from idcf.rng import derive
from idcf.train.solvers.counts import counts, fill
from idcf.train.solvers.work import Work, turn
from idcf.types import History


def als(config: FoldInConfig, table: Interactions, work: Work) -> FoldIn:
    model = FoldIn(config, table.domain())
    fill(model.base, BiasConfig(strength=config.strength), table)
    model.popularity = counts(table) * (0.0 if model.rates else 1.0)
    users = table.history(np.arange(len(table.users)))
    items, back = turn(users, len(table.items))
    if model.rates:
        target = model.base.residual(users)[1]
    else:
        target = torch.full_like(users.values, (1 + model.alpha) / model.alpha)
    size, eye = config.embedding_size, torch.eye(config.embedding_size)
    draw = torch.Generator().manual_seed(derive(work.seed, "als"))
    factors = torch.randn(len(table.items), size, generator=draw) * 0.1
    for _ in range(config.epochs):
        people = _half(factors, users, target, model, config.reg * eye)
        factors = _half(people, items, target[back], model, config.reg * eye)
    shared = config.reg * eye
    model.factors = factors.contiguous()
    model.gram = shared if model.rates else shared + factors.T @ factors
    return model


def _half(fixed: Tensor, history: History, target: Tensor, model: FoldIn, ridge: Tensor) -> Tensor:
    """The best vectors of one side while the other side stands still."""
    outer, right = normal_equations(fixed, history, target)
    shared = ridge if model.rates else ridge + fixed.T @ fixed
    solved: Tensor = torch.linalg.solve(shared + model.alpha * outer, model.alpha * right)
    return solved
