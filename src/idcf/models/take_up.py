"""How likely a new user takes each item up, from a relation between items.

    s_i(H) = m_i + Σ_{j ∈ H} w_j (B_ji + S_ji)
    logit P(i | H) = f(c₀ + c₁ L + (c₂ + c₃ L) asinh(s_i / σ))

B + S is the relation (`idcf.training.solvers.item_relation`): weights of a regression of every item
on others, and a relation of low rank. S is a part of B where the catalogue is small, and 0 where it
does not help. w are the values of the history: 1, or less for
an item that was not liked. m grows with the item's popularity; it is small, and orders the items
that have no relation to the history. L = log(1 + |H|), at most that of the longest histories that
P is meant for. f is increasing and piecewise linear, so that P orders items as s does. P is fitted
on key users with short histories that B was fitted without (`idcf.training.solvers.take_up`). For
an empty history it follows from popularity: P(i | ∅) = 1 - exp(-N n_i / Σ n), where N is the number
of next items that P counts.
"""

from __future__ import annotations

from copy import copy
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Model
from idcf.models.layers.item_matrix import ItemMatrix, LowRankItemMatrix
from idcf.models.options import TakeUpConfig
from idcf.types import Domain, History, Users

_MAX_FEW_ITEMS = 64  # up to so many, only the weights of these items are read
N_LINK_KNOTS = 26  # K of f
_MIN_EXPECTED_COUNT = 1e-9  # of an item for an empty history, so that its logit is finite


class TakeUpModel(Model):
    """Ridge regression on the items of the history, with calibrated probabilities as scores."""

    inductive: ClassVar[bool] = True
    accepts_unseen_items: ClassVar[bool] = True
    has_item_similarities: ClassVar[bool] = True
    has_item_weights: ClassVar[bool] = True
    weighs_history: ClassVar[bool] = True
    predicts_probabilities: ClassVar[bool] = True
    item_counts: Tensor  # [I]: n, the number of key users who have the item
    prior_scores: Tensor  # [I]: m
    score_unit: Tensor  # []: σ
    coefficients: Tensor  # [4]: c
    max_log_length: Tensor  # []: largest L
    link_knots: Tensor  # [K]: arguments of f
    link_logits: Tensor  # [K]: values of f
    n_next_items: Tensor  # []: N

    def __init__(self, config: TakeUpConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items = domain.n_items
        self.predicts_ratings = False
        self.item_weights = ItemMatrix(domain.n_items)  # B: row j holds the weights of item j
        self.low_rank_weights = LowRankItemMatrix(domain.n_items)  # S
        self.register_buffer("item_counts", torch.zeros(domain.n_items))
        self.register_buffer("prior_scores", torch.zeros(domain.n_items))
        self.register_buffer("score_unit", torch.tensor(0.01))
        self.register_buffer("coefficients", torch.tensor([0.0, 0.0, 1.0, 0.0]))
        self.register_buffer("max_log_length", torch.tensor(10.0))
        self.register_buffer("link_knots", torch.linspace(-30, 30, N_LINK_KNOTS))
        self.register_buffer("link_logits", torch.linspace(-30, 30, N_LINK_KNOTS))
        self.register_buffer("n_next_items", torch.tensor(float(config.n_next_items)))

    def score_catalog(self, users: Users) -> Tensor:
        """Return the probability of every item for every user: [B, I]."""
        return self.logits(users.history).sigmoid()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the probability of `items` [M, K] for the users `owner` [M]: [M, K]."""
        columns, position = torch.unique(items, return_inverse=True)
        if len(columns) > _MAX_FEW_ITEMS:
            return self.score_catalog(users)[owner[:, None], items]
        history = users.history
        weights = self._block(history.items, columns) * history.values[:, None]
        scores = self.prior_scores[columns].repeat(len(users), 1)
        scores = scores.index_add(0, history.owner(), weights)
        logits = self._logits(scores, history, self.item_counts[columns])
        return logits.sigmoid()[owner[:, None], position]

    def index_problem(self) -> str:
        """Return what is wrong with the weights of pairs of items; "" if they can be used."""
        return self.item_weights.index_problem()

    def ranking_without_data(self) -> Tensor:
        """Return n, which orders the items for an empty history."""
        return self.item_counts

    def item_similarities(self, item_row: int) -> Tensor:
        """Return the weights of one item for all items: [I]."""
        weights = self.item_weights.dense_row(item_row)
        if not self.has_factors:
            return weights
        row = torch.tensor([item_row], device=weights.device)
        return weights + self.low_rank_weights.block(row, torch.arange(self.n_items).to(row))[0]

    def similarities_among(self, item_rows: Tensor) -> Tensor:
        """Return the weights of some items [..., K] for one another: [..., K, K]."""
        return self._block(item_rows, item_rows)

    def item_popularity(self) -> Tensor:
        """Return n."""
        return self.item_counts

    def with_n_items(self, n_items: int) -> TakeUpModel:
        """Return a model of a larger catalogue, whose new items nobody has interacted with."""
        model, n_new = copy(self), n_items - self.n_items
        model._buffers, model._modules = dict(self._buffers), dict(self._modules)
        model.n_items, model.item_counts = n_items, F.pad(self.item_counts, (0, n_new))
        model.prior_scores = F.pad(self.prior_scores, (0, n_new))
        model.item_weights = ItemMatrix(n_items)
        model.item_weights.offsets = F.pad(
            self.item_weights.offsets, (0, n_new), value=len(self.item_weights.columns)
        )
        model.item_weights.columns = self.item_weights.columns
        model.item_weights.values = self.item_weights.values
        model.low_rank_weights = self.low_rank_weights.with_n_items(n_items)
        return model

    def logits(self, history: History) -> Tensor:
        """Return the logit of P of every item for every history: [B, I]."""
        return self._logits(self.relation_scores(history), history, self.item_counts)

    def _logits(self, scores: Tensor, history: History, item_counts: Tensor) -> Tensor:
        """Return the logit of P for s [B, K] of each history and n [K] of the items: [B, K]."""
        lengths = history.lengths()[:, None]
        t, log_length = take_up_features(scores, lengths, self.score_unit)
        log_length, c = log_length.clamp(max=self.max_log_length), self.coefficients
        z = c[0] + c[1] * log_length + (c[2] + c[3] * log_length) * t
        logits = interpolate(z, self.link_knots, self.link_logits)
        expected = self.n_next_items * item_counts / self.item_counts.sum().clamp(min=1)
        empty = expected.clamp(min=_MIN_EXPECTED_COUNT).expm1().log()
        return torch.where(lengths == 0, empty, logits)

    def relation_scores(self, history: History) -> Tensor:
        """Return s of every item for every history: [B, I]."""
        scores = self.item_weights.sum_pool(history, history.values).add_(self.prior_scores)
        return scores + self.low_rank_weights.sum_pool(history) if self.has_factors else scores

    @property
    def has_factors(self) -> bool:
        """Whether S is held by its factors."""
        return self.low_rank_weights.rank > 0

    def _block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the weights of some items [..., R] for others [..., C]: [..., R, C]."""
        block = self.item_weights.block(rows, columns)
        return block + self.low_rank_weights.block(rows, columns) if self.has_factors else block


def take_up_features(scores: Tensor, lengths: Tensor, score_unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return t of s [B, K], and L of history lengths [B, 1]."""
    return torch.asinh(scores / score_unit), lengths.to(scores.dtype).log1p()


def interpolate(z: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Return the piecewise linear function through K points at z; straight lines outside them."""
    slopes = values.diff() / knots.diff()
    segment = torch.bucketize(z, knots[1:-1], out_int32=True).view(-1)
    # much faster than an index with brackets; in place, since z is as large as a block of scores
    start, slope, value = (x.index_select(0, segment).view_as(z) for x in (knots, slopes, values))
    return torch.sub(z, start, out=start).mul_(slope).add_(value)
