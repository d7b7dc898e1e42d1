"""Item-kNN and EASE: one item-by-item matrix each."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix

from idcf.data.interactions import Interactions
from idcf.models.baselines import BiasConfig, ItemItem, ItemItemConfig
from idcf.train.solvers.counts import counts, fill
from idcf.train.solvers.work import Work


def item_knn(config: ItemItemConfig, table: Interactions, work: Work) -> ItemItem:
    """Cosine of the residual (or 0/1) columns, shrunk by support n / (n + reg), best k kept."""
    model, x = _start(config, table)
    gram = np.asarray((x.T @ x).todense(), np.float32)
    norm = np.sqrt(np.diag(gram)) + 1e-9
    weight = gram / norm[:, None] / norm
    if model.rates:
        ones = x.copy()
        ones.data[:] = 1
        support = np.asarray((ones.T @ ones).todense(), np.float32)
        weight *= support / (support + config.reg)
    np.fill_diagonal(weight, 0)
    keep = min(config.neighbours, len(weight))
    found = torch.from_numpy(weight)
    floor = found.abs().topk(keep, dim=0).values[-1]  # per target item, its k nearest
    model.weight = (found * (found.abs() >= floor.clamp(min=1e-9))).contiguous()
    return model


def ease(config: ItemItemConfig, table: Interactions, work: Work) -> ItemItem:
    """B = I - P / diag(P), P = (XᵀX + λI)⁻¹, diagonal zero."""
    model, x = _start(config, table)
    gram = np.asarray((x.T @ x).todense(), np.float64)
    gram[np.diag_indices_from(gram)] += config.reg
    inverse = np.linalg.inv(gram)
    weight = -inverse / np.diag(inverse)
    np.fill_diagonal(weight, 0)
    model.weight = torch.from_numpy(weight).float().contiguous()
    return model


def _start(config: ItemItemConfig, table: Interactions) -> tuple[ItemItem, csr_matrix]:
    """The model with its biases, and the matrix of residuals (or ones)."""
    model = ItemItem(config, table.domain())
    model.popularity = counts(table)
    fill(model.base, BiasConfig(strength=config.strength), table)
    value = table.rating
    user, item = table.user, table.item
    if model.rates:
        order, _ = table.by_user
        user, item = user[order], item[order]
        value = model.base.residual(table.history(np.arange(len(table.users))))[1].numpy()
    shape = (len(table.users), len(table.items))
    return model, csr_matrix((value.astype(np.float32), (user, item)), shape=shape)
