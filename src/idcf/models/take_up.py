"""How likely a new user takes each item up: ridge regression of every item on the other items.

    s_i(H) = Σ_{j ∈ H} w_j B_ji
    logit P(i | H) = c₀ + c₂ L + (c₁ + c₃ L) asinh(s_i / σ),   L = log(1 + |H|)

B minimizes Σ_u d_u ‖x_u - x_u B‖² + Σ_j (λ + a n_j) ‖B_j·‖² with a zero diagonal, where x_u is the
0/1 row of a key user and n_j the number of them who have item j: EASE (Steck 2019) trained with
dropout, because a new user shows only a part of what they like. d_u ∝ (length of x_u)^-β lets users
with short histories, who resemble new users most, count for more. To B, c times a relation of low
rank may be added. An empty history counts as the average history of one item. w are the values of
the history: 1, or less for an item that was not liked. P is calibrated on key users with short
histories that B was fitted without (`idcf.training.solvers.take_up`), and it grows with s: it
orders items as s does.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Model
from idcf.models.layers.item_matrix import ItemMatrix
from idcf.types import Domain, History, Users

SCORE_UNIT = 0.01  # σ
_MAX_FEW_ITEMS = 64  # up to so many, only the weights of these items are read


@dataclass(frozen=True, kw_only=True)
class TakeUpConfig:
    """Options of idcf-takeup. None: chosen on held-out users."""

    reg: float | None = None  # λ
    count_reg: float | None = None  # a
    length_power: float | None = None  # β; 0 above `max_dense_items`
    spectral_weight: float | None = None  # c; 0 above `max_dense_items`
    nonnegative: bool | None = None  # weights of the nearest items, none below 0; c does not count
    neighbors: int = 1000  # weights stored per item
    max_dense_items: int = 6000  # up to here one matrix is inverted; above, each item has its own
    local_neighbors: int = 50  # items that an item is regressed on, above that size
    local_pairs: int = 300  # entries of XᵀX kept per item, above that size
    history_lengths: tuple[int, int] = (1, 25)  # of the held-out users
    n_next_items: int = 10  # P is the probability to be among so many next items
    max_held_out_users: int = 1000


class TakeUpModel(Model):
    """Ridge regression on the items of the history, with calibrated probabilities as scores."""

    inductive: ClassVar[bool] = True
    accepts_unseen_items: ClassVar[bool] = True
    has_item_similarities: ClassVar[bool] = True
    item_counts: Tensor  # [I]: n, the number of key users who have the item
    prior_regression: Tensor  # [I]: s of an empty history, Σ_j n_j B_ji / Σ_j n_j
    coefficients: Tensor  # [4]: c

    def __init__(self, config: TakeUpConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items = domain.n_items
        self.predicts_ratings = False
        self.item_weights = ItemMatrix(domain.n_items)  # B: row j holds the weights of item j
        self.register_buffer("item_counts", torch.zeros(domain.n_items))
        self.register_buffer("prior_regression", torch.zeros(domain.n_items))
        self.register_buffer("coefficients", torch.tensor([0.0, 1.0, 0.0, 0.0]))

    def score_catalog(self, users: Users) -> Tensor:
        """Return the probability of every item for every user: [B, I]."""
        return self.logits(users.history).sigmoid()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the probability of `items` [M, K] for the users `owner` [M]: [M, K]."""
        columns, position = torch.unique(items, return_inverse=True)
        if len(columns) > _MAX_FEW_ITEMS:
            return self.score_catalog(users)[owner[:, None], items]
        history, is_empty = users.history, (users.history.lengths() == 0)[:, None]
        weights = self.item_weights.block(history.items, columns) * history.values[:, None]
        regression = weights.new_zeros(len(users), len(columns))
        regression = regression.index_add(0, history.owner(), weights)
        regression = torch.where(is_empty, self.prior_regression[columns], regression)
        return self._logits(regression, history).sigmoid()[owner[:, None], position]

    def ranking_without_data(self) -> Tensor:
        """Return n, which orders the items for an empty history."""
        return self.item_counts

    def item_similarities(self, item_row: int) -> Tensor:
        """Return the weights of one item for all items: [I]."""
        return self.item_weights.dense_row(item_row)

    def similarities_among(self, item_rows: Tensor) -> Tensor:
        """Return the weights of some items [K] for one another: [K, K]."""
        return self.item_weights.block(item_rows, item_rows)

    def item_popularity(self) -> Tensor:
        """Return n."""
        return self.item_counts

    def with_n_items(self, n_items: int) -> TakeUpModel:
        """Return a model of a larger catalogue, whose new items nobody has interacted with."""
        model, n_new = copy(self), n_items - self.n_items
        model._buffers, model._modules = dict(self._buffers), dict(self._modules)
        model.n_items, model.item_counts = n_items, F.pad(self.item_counts, (0, n_new))
        model.prior_regression = F.pad(self.prior_regression, (0, n_new))
        model.item_weights = ItemMatrix(n_items)
        model.item_weights.offsets = F.pad(
            self.item_weights.offsets, (0, n_new), value=len(self.item_weights.columns)
        )
        model.item_weights.columns = self.item_weights.columns
        model.item_weights.values = self.item_weights.values
        return model

    def logits(self, history: History) -> Tensor:
        """Return the logit of P of every item for every history: [B, I]."""
        return self._logits(self.regression(history), history)

    def _logits(self, regression: Tensor, history: History) -> Tensor:
        """Return the logit of P for s [B, K] of each history: [B, K]."""
        length = history.lengths()[:, None].clamp(min=1).float()
        score, log_length, product = take_up_features(regression, length)
        c = self.coefficients
        logits: Tensor = c[0] + c[1] * score + c[2] * log_length + c[3] * product
        return logits

    def regression(self, history: History) -> Tensor:
        """Return s of every item for every history: [B, I]."""
        is_empty = (history.lengths() == 0)[:, None]
        regression = self.item_weights.sum_pool(history, history.values)
        return torch.where(is_empty, self.prior_regression, regression)


def take_up_features(regression: Tensor, length: Tensor) -> list[Tensor]:
    """Return asinh(s / σ) of s [B, K], L of these history lengths [B, 1], and their product."""
    score, log_length = torch.asinh(regression / SCORE_UNIT), length.log1p()
    return [score, log_length, score * log_length]
