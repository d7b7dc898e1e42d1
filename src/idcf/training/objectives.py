"""Objectives: functions (model, batch) -> named loss terms, whose sum the gradient loop minimizes.

A term is a sum over the rows of this process divided by the rows of the whole batch, so that the
sum over processes is the loss of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import BackboneWrapper, EmbeddingTableModel, Model
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.options import ContrastOver, LossName
from idcf.types import Batch, LossTerms

Objective = Callable[[Model, Batch], LossTerms]
Penalty = Callable[[EmbeddingTableModel, Batch], Tensor]


def pointwise_loss(scores: Tensor, batch: Batch, predicts_ratings: bool) -> LossTerms:
    """Return {"mse": mean squared error} of ratings, else {"bce": mean cross-entropy of logits
    against the 0/1 labels}; the mean is over the batch of all processes."""
    n = batch.n_rows * scores.shape[1]
    if predicts_ratings:
        return {"mse": (scores - batch.labels).square().sum() / n}
    loss = F.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum")
    return {"bce": loss / n}


def prediction_objective(loss: LossName = "fit", penalty: Penalty | None = None) -> Objective:
    """Return the objective of a model that wraps no backbone, with `Model.extra_loss_terms`.

    "fit" is the squared error of ratings, or cross-entropy; "logistic" is cross-entropy for ratings
    too. A model with `Model.loss_terms` is trained with these instead. `penalty` is added for
    models with embedding tables.
    """

    def objective(model: Model, batch: Batch) -> LossTerms:
        """Return the loss terms of a batch."""
        if (model_terms := model.loss_terms(batch)) is not None:
            return model_terms
        scores = model(batch.users, batch.items, batch.owner)
        if loss in ("bpr", "margin"):
            terms: LossTerms = {loss: _ranking_loss(scores, batch, loss)}
        else:
            terms = pointwise_loss(scores, batch, model.predicts_ratings and loss != "logistic")
        terms |= model.extra_loss_terms(batch)
        if penalty and isinstance(model, EmbeddingTableModel):
            terms["reg"] = penalty(model, batch)
        return terms

    return objective


def _ranking_loss(scores: Tensor, batch: Batch, loss: LossName) -> Tensor:
    """Return -log σ(m) ("bpr") or max(0, 1 - m) ("margin"), with m the score of the positive, the
    first item of a row, less that of a negative."""
    margin = scores[:, :1] - scores[:, 1:]
    losses = F.softplus(-margin) if loss == "bpr" else (1 - margin).relu()
    return losses.sum() / (batch.n_rows * margin.shape[1])


@dataclass(frozen=True)
class RidgePenalty:
    """The squared penalty of a backbone's embedding tables, spread over the ratings of each row.

    Over an epoch, a row with n ratings costs (reg · n + row_reg) ‖vector‖² + bias_reg · bias².
    """

    user_counts: Tensor  # [U]: ratings of each user
    item_counts: Tensor  # [I]: ratings of each item
    reg: float
    row_reg: float
    bias_reg: float

    def __call__(self, model: EmbeddingTableModel, batch: Batch) -> Tensor:
        """Return the penalty of the batch's users and positive items."""
        users, items = batch.users.ids[batch.owner], batch.items[:, 0]  # positives come first
        total = torch.zeros((), device=users.device)
        for table, rows, counts in (
            (model.user_table, users, self.user_counts),
            (model.item_table, items, self.item_counts),
        ):
            embeddings, share = table(rows), 1 / counts.to(users.device)[rows].clamp(min=1)
            weight = self.reg + self.row_reg * share
            total = total + (weight * embeddings.vector.square().sum(-1)).sum()
            total = total + (self.bias_reg * share * embeddings.bias.square()).sum()
        return total / batch.n_rows


def norm_penalty(reg: float, runtime: Runtime = LOCAL_RUNTIME) -> Penalty:
    """Return the published penalty: λ (Σ_u ‖p_u‖ + Σ_i ‖q_i‖) over the whole tables per step."""

    def penalty(model: EmbeddingTableModel, batch: Batch) -> Tensor:
        """Return reg · (Σ ‖p_u‖ + Σ ‖q_i‖) / n, this process's share of it."""
        norms = (
            model.user_table.vector.norm(dim=1).sum() + model.item_table.vector.norm(dim=1).sum()
        )
        total: Tensor = reg * norms / batch.n_rows / runtime.world_size
        return total

    return penalty


def adaption_objective(
    contrast: float, runtime: Runtime = LOCAL_RUNTIME, contrast_over: ContrastOver = "induced"
) -> Objective:
    """Return the objective of the adaption stage of a wrapper: the fit and a contrastive loss.

    The latter, of weight `contrast`, pulls each induced latent p̃_u to the backbone's p_u: -log
    softmax over the users u' of the batch, of all processes, of p_uᵀ p̃_u' ("induced", the paper's)
    or of p̃_uᵀ p_u' ("trained", the published code's), at u' = u.
    """

    def objective(model: Model, batch: Batch) -> LossTerms:
        """Return the loss terms of a batch."""
        if not isinstance(model, BackboneWrapper):
            raise TypeError(
                f"the adaption objective is for models on a backbone, got {type(model).__name__}"
            )
        scores, vectors = model.adapted_scores(batch)
        terms = pointwise_loss(scores, batch, model.predicts_ratings)
        if contrast:
            loss = _contrastive_loss(model, batch.users.ids, vectors, runtime, contrast_over)
            terms["contrast"] = loss * (contrast / batch.n_users)
        return terms

    return objective


def _contrastive_loss(
    model: BackboneWrapper,
    user_ids: Tensor,
    induced_vectors: Tensor,
    runtime: Runtime,
    contrast_over: ContrastOver,
) -> Tensor:
    """Return the sum over this process's users of the contrastive loss."""
    trained = model.backbone.user_table.vector
    all_ids = runtime.gather_rows(user_ids)
    if contrast_over == "induced":
        logits = trained.index_select(0, user_ids) @ runtime.gather_rows(induced_vectors).T
    else:
        logits = induced_vectors @ trained.index_select(0, all_ids).T
    start = _process_offset(user_ids, runtime)
    target = torch.arange(start, start + user_ids.shape[0], device=user_ids.device)
    # other occurrences of the user in the batch are no negatives
    repeated = user_ids[:, None] == all_ids
    repeated.scatter_(1, target[:, None], False)
    return F.cross_entropy(logits.masked_fill_(repeated, -torch.inf), target, reduction="sum")


def _process_offset(user_ids: Tensor, runtime: Runtime) -> int:
    """Return the position of this process's first user among all users of the batch."""
    if runtime.world_size == 1:
        return 0
    sizes = runtime.gather_rows(torch.tensor([len(user_ids)], device=user_ids.device))
    return int(sizes[: runtime.rank].sum())
