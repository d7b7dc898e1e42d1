"""An objective maps (model, batch) to named terms; the loop minimises their sum.

Every term is a sum over the rows at hand divided by the rows of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Graded, Model, Penalised, Tabled, Variational
from idcf.models.idcf import IDCF, part
from idcf.training.distributed import LOCAL, Runtime
from idcf.types import Batch

Terms = dict[str, Tensor]
Objective = Callable[[Model, Batch], Terms]
Loss = Literal["fit", "bpr", "margin", "logistic"]
Penalty = Callable[[Tabled, Batch], Tensor]


def fit_to_labels(scores: Tensor, batch: Batch, rates: bool) -> Terms:
    """Squared error for ratings, cross-entropy against sampled negatives without."""
    n = batch.n_rows * scores.shape[1]
    if rates:
        return {"mse": (scores - batch.labels).square().sum() / n}
    loss = F.binary_cross_entropy_with_logits(scores, batch.labels, reduction="sum")
    return {"bce": loss / n}


def accuracy(loss: Loss = "fit", penalty: Penalty | None = None) -> Objective:
    """The fit, or an order; what the model itself asks to be added; and tables kept small, where
    there are any and a penalty is given."""

    def objective(model: Model, batch: Batch) -> Terms:
        if isinstance(model, Graded):
            return _levels(model, batch)
        scores = model(batch.users, batch.items, batch.owner)
        if isinstance(model, Variational):
            return _variational(model, scores, batch)
        if loss in ("bpr", "margin"):
            terms: Terms = {loss: _order(scores, batch, loss)}
        else:
            terms = fit_to_labels(scores, batch, model.rates and loss != "logistic")
        if isinstance(model, Penalised):
            terms["reg"] = model.penalty() * (len(batch.items) / batch.n_rows)
        if penalty and isinstance(model, Tabled):
            terms["reg"] = penalty(model, batch)
        return terms

    return objective


def _variational(model: Variational, scores: Tensor, batch: Batch) -> Terms:
    """The likelihood of what was asked, and what the belief behind it cost. Without ratings it is
    multinomial: a list of positives costs the sum of theirs, and no negatives are read."""
    if model.rates:
        terms = fit_to_labels(scores, batch, True)
    else:
        terms = {"multinomial": -scores[:, 0].sum() / batch.n_rows}
    return {**terms, "kl": model.divergence(batch.users).sum() / batch.n_rows}


def _levels(model: Graded, batch: Batch) -> Terms:
    """Cross-entropy of the rating level."""
    logits = model.logits(batch.users, batch.items, batch.owner)
    middle = (model.levels[1:] + model.levels[:-1]) / 2
    level = torch.bucketize(batch.labels, middle)
    loss = F.cross_entropy(logits.flatten(0, 1), level.flatten(), reduction="sum")
    return {"levels": loss / (batch.n_rows * batch.items.shape[1])}


def _order(scores: Tensor, batch: Batch, loss: Loss) -> Tensor:
    """A positive, which comes first, should be above each of its negatives: the further the
    better, or by 1 and no more."""
    margin = scores[:, :1] - scores[:, 1:]
    lost = F.softplus(-margin) if loss == "bpr" else (1 - margin).relu()
    return lost.sum() / (batch.n_rows * margin.shape[1])


@dataclass(frozen=True)
class Ridge:
    """Squared penalties of a backbone's tables, spread over the ratings of each row.

    `reg` holds a vector back in proportion to its ratings, `row_reg` and `bias_reg` are the same
    for every row: a Gaussian prior.
    """

    users: Tensor  # [U] ratings of each user
    items: Tensor  # [I]
    reg: float
    row_reg: float
    bias_reg: float

    def __call__(self, model: Tabled, batch: Batch) -> Tensor:
        who, what = batch.users.ids[batch.owner], batch.items[:, 0]  # positives come first
        total = torch.zeros((), device=who.device)
        for table, rows, counts in (
            (model.users, who, self.users),
            (model.items, what, self.items),
        ):
            own, share = table(rows), 1 / counts.to(who.device)[rows].clamp(min=1)
            weight = self.reg + self.row_reg * share
            total = total + (weight * own.vector.square().sum(-1)).sum()
            total = total + (self.bias_reg * share * own.bias.square()).sum()
        return total / batch.n_rows


def norms(reg: float, runtime: Runtime = LOCAL) -> Penalty:
    """The published penalty: λ (Σ_u ‖p_u‖ + Σ_i ‖q_i‖) over the whole tables in every step."""

    def penalty(model: Tabled, batch: Batch) -> Tensor:
        size = model.users.vector.norm(dim=1).sum() + model.items.vector.norm(dim=1).sum()
        total: Tensor = reg * size / batch.n_rows / runtime.world
        return total

    return penalty


def factorise(penalty: Penalty) -> Objective:
    """Fit a backbone and keep its tables small."""
    return accuracy("fit", penalty)


def adapt(contrast: float, runtime: Runtime = LOCAL) -> Objective:
    """Fit the relation model; with `contrast`, pull each induced latent towards the one that the
    backbone learnt: -log softmax over the users u' of the batch of p_uᵀ p̃_u' at u' = u."""

    def objective(model: Model, batch: Batch) -> Terms:
        assert isinstance(model, IDCF)
        users = batch.users
        encoded = model.take_in(users.history)
        own = part(model.induce(users.history, encoded, users.ids))
        scores = model.answer(own, users, encoded, batch.items, batch.owner)
        terms = fit_to_labels(scores, batch, model.rates)
        if not contrast:
            return terms
        ids, induced = users.ids, runtime.gather(own.vector)
        logits = model.backbone.users.vector.index_select(0, ids) @ induced.T
        start = _start(ids, runtime)
        place = torch.arange(start, start + ids.shape[0], device=ids.device)
        again = ids[:, None] == runtime.gather(ids)  # the same person is no counter-example
        again.scatter_(1, place[:, None], False)
        pull = F.cross_entropy(logits.masked_fill_(again, -torch.inf), place, reduction="sum")
        return {**terms, "contrast": pull * (contrast / batch.n_users)}

    return objective


def _start(ids: Tensor, runtime: Runtime) -> int:
    """Where this process's users begin among all users of the batch."""
    if runtime.world == 1:
        return 0
    sizes = runtime.gather(torch.tensor([len(ids)], device=ids.device))
    return int(sizes[: runtime.rank].sum())
