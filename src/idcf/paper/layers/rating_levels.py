"""Scores and loss of models that classify a rating into one of the rating levels."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from idcf.models.layers.ragged import nearest_level
from idcf.types import Batch, LossTerms, Users


def expected_rating(logits: Tensor, levels: Tensor) -> Tensor:
    """Return the expected rating, given the logits [..., L] of the levels [L]: [...]."""
    return logits.softmax(-1) @ levels


def level_cross_entropy(
    level_logits: Callable[[Users, Tensor, Tensor], Tensor], levels: Tensor, batch: Batch
) -> LossTerms:
    """Return {"levels": mean cross-entropy of the levels nearest to the labels of a batch}.
    `level_logits` returns the logits [M, K, L] of users, items and owners. The mean is over the
    items of the whole batch, of which a process returns its part."""
    logits = level_logits(batch.users, batch.items, batch.owner)
    level = nearest_level(batch.labels, levels)
    loss = F.cross_entropy(logits.flatten(0, 1), level.flatten(), reduction="sum")
    return {"levels": loss / (batch.n_rows * batch.items.shape[1])}
