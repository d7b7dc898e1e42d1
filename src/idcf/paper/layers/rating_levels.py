"""Scores and loss of models that classify a rating into one of the rating levels."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from idcf.models.layers.ragged import nearest_level
from idcf.types import Batch, LossTerms


def expected_rating(logits: Tensor, levels: Tensor) -> Tensor:
    """Return the expected rating, given the logits [..., L] of the levels [L]: [...]."""
    return logits.softmax(-1) @ levels


def level_cross_entropy(logits: Tensor, levels: Tensor, batch: Batch) -> LossTerms:
    """Return {"levels": mean cross-entropy of the levels nearest to the labels of a batch}.

    The mean is over the items of the whole batch; a process with a share of the batch returns its
    part of the mean.

    Parameters
    ----------
    logits : Tensor
        [M, K, L]: the logits of the levels for the items of the batch.
    levels : Tensor
        [L].
    batch : Batch
        The rows, with the ratings as labels.
    """
    level = nearest_level(batch.labels, levels)
    loss = F.cross_entropy(logits.flatten(0, 1), level.flatten(), reduction="sum")
    return {"levels": loss / (batch.n_rows * batch.items.shape[1])}
