"""Inductive baselines: popularity, biases, item-item weights (item-kNN, EASE, SLIM), fold-in (ALS).

The classes only score. `idcf.training.solvers` fits them in closed form or by alternating
least squares, without gradients.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Model, TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.models.layers.item_matrix import ItemMatrix
from idcf.models.layers.ragged import normal_equations, shrunk_mean
from idcf.models.options import (
    BiasConfig,
    FoldInConfig,
    ItemItemConfig,
    PopularityConfig,
)
from idcf.types import Domain, Embeddings, History, Users


class PopularityModel(Model):
    """The number of interactions of an item as its score: one ranking for all users."""

    inductive: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    source: ClassVar[str] = "popular"
    counts: Tensor  # [I]

    def __init__(self, config: PopularityConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items = domain.n_items
        self.predicts_ratings = False
        self.register_buffer("counts", torch.zeros(domain.n_items))

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the number of interactions of `items` [M, K]."""
        return self.counts[items]

    def score_catalog(self, users: Users) -> Tensor:
        """Return the number of interactions of every item for every user: [B, I]."""
        return self.counts.expand(len(users), -1)

    def item_popularity(self) -> Tensor:
        """Return the number of interactions of every item."""
        return self.counts


class BiasModel(Model):
    """μ + b_i + b_u, where b_u = Σ (r - μ - b_i) / (n + shrinkage) over the history.

    With an infinite `shrinkage` the score is the item's mean rating.
    """

    inductive: ClassVar[bool] = True
    source: ClassVar[str] = "popular"  # the ranking does not depend on the user
    item_bias: Tensor  # [I]

    def __init__(self, config: BiasConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items = domain.n_items
        self.predicts_ratings = not domain.implicit
        self.mean = domain.mean
        self.shrinkage = config.shrinkage
        self.register_buffer("item_bias", torch.zeros(domain.n_items))

    def user_bias_and_residuals(self, history: History) -> tuple[Tensor, Tensor]:
        """Return b_u [B] and the residuals r - μ - b_i - b_u of the ratings [N]."""
        residuals = history.values - self.mean - self.item_bias[history.items]
        bias = shrunk_mean(residuals, history, self.shrinkage)
        return bias, residuals - bias[history.owner()]

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score `items` [M, K] for the users `owner` [M]: [M, K]."""
        user_bias, _ = self.user_bias_and_residuals(users.history)
        return self.mean + self.item_bias[items] + user_bias[owner, None]

    def score_catalog(self, users: Users) -> Tensor:
        """Return the scores of every item for every user: [B, I]."""
        user_bias, _ = self.user_bias_and_residuals(users.history)
        return self.mean + self.item_bias + user_bias[:, None]


class ItemItemModel(Model):
    """Σ_{j ∈ history} w_ji x_uj: item-kNN, EASE (Steck 2019) and SLIM (Ning & Karypis 2011).

    For ratings, x is the residual of user and item bias, and both biases are added to the sum.
    For implicit feedback, x is 1. With `ratings="scaled"`, x is (r - lowest) / (highest - lowest).
    """

    inductive: ClassVar[bool] = True
    has_item_similarities: ClassVar[bool] = True
    has_item_weights: ClassVar[bool] = True
    popularity: Tensor  # [I]: scores for an empty history, where scores are no ratings

    def __init__(self, config: ItemItemConfig, domain: Domain) -> None:
        super().__init__()
        self.bias_model = BiasModel(BiasConfig(shrinkage=config.shrinkage), domain)
        self.predicts_ratings = not domain.implicit and config.ratings == "residuals"
        self.counts_without_history = not self.predicts_ratings
        self.lowest_rating = min(domain.levels)
        self.rating_span = max(domain.levels) - self.lowest_rating
        self.n_items = domain.n_items
        self.normalize = config.normalize
        self.item_weights = ItemMatrix(domain.n_items)  # row j: the weights w_j· of item j
        self.register_buffer("popularity", torch.zeros(domain.n_items))

    def score_catalog(self, users: Users) -> Tensor:
        """Return the scores of every item for every user: [B, I]."""
        history = users.history
        if not self.predicts_ratings:
            values, has_ratings = self.list_values(history.values), self.rating_span > 0
            total = values.new_zeros(len(users)).index_add_(0, history.owner(), values)
            scores = self.item_weights.sum_pool(history, values if has_ratings else None)
            return torch.where((total == 0)[:, None], self.popularity, scores)
        bias, residuals = self.bias_model.user_bias_and_residuals(history)
        score = self.item_weights.sum_pool(history, residuals)
        if self.normalize:
            score = score / (self.item_weights.absolute().sum_pool(history) + 1.0)
        return self.bias_model.mean + self.bias_model.item_bias + bias[:, None] + score

    def index_problem(self) -> str:
        """Return what is wrong with the weights of pairs of items; "" if they can be used."""
        return self.item_weights.index_problem()

    def list_values(self, ratings: Tensor) -> Tensor:
        """Return what ratings count where scores order lists: from 0, the lowest, to 1."""
        if self.rating_span == 0:
            return torch.ones_like(ratings)
        return (ratings - self.lowest_rating) / self.rating_span

    def item_similarities(self, item_row: int) -> Tensor:
        """Return the weights of one item for all items: [I]."""
        return self.item_weights.dense_row(item_row)

    def similarities_among(self, item_rows: Tensor) -> Tensor:
        """Return the weights of some items [..., K] for one another: [..., K, K]."""
        return self.item_weights.block(item_rows, item_rows)

    def item_popularity(self) -> Tensor | None:
        """Return the number of users of every item, for implicit feedback."""
        return None if self.predicts_ratings else self.popularity

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score `items` [M, K] for the users `owner` [M]: [M, K]."""
        return self.score_catalog(users)[owner[:, None], items]


class FoldInModel(TwoTower):
    """Item factors, with a user's vector as the least squares solution over the history.

    Ratings: p = (Q_HᵀQ_H + λI)⁻¹ Q_Hᵀ(r - μ - b_i - b_u). Implicit feedback, with confidence α:
    p = (QᵀQ + α Q_HᵀQ_H + λI)⁻¹ (1 + α) Q_Hᵀ1 (Hu, Koren & Volinsky 2008).

    `prior_rhs` moves the prior mean of p away from 0, and `negative_terms` replaces the term QᵀQ
    of all items by a term per entry of the history; `idcf.inference.from_factors` sets both.
    `popularity_weight` · log(1 + n_i) is added to the scores of implicit feedback, for n_i users of
    the item. The last coordinate of a user vector is 1 for an empty history of implicit feedback,
    where the score is the item's popularity.
    """

    inductive: ClassVar[bool] = True
    factors: Tensor  # [I, D]: Q
    gram: Tensor  # [D, D]: the part of the left side that all users share
    prior_rhs: Tensor  # [D]: the part of the right side that all users share
    negative_terms: Tensor  # [D, D + 1]: added per entry of a history; the right side is last
    positive_target: Tensor  # []: the target score of an interaction of implicit feedback
    popularity: Tensor  # [I]

    def __init__(self, config: FoldInConfig, domain: Domain) -> None:
        super().__init__()
        size = config.embedding_size
        self.bias_model = BiasModel(BiasConfig(shrinkage=config.shrinkage), domain)
        self.predicts_ratings = self.bias_model.predicts_ratings
        self.counts_without_history = not self.predicts_ratings
        self.n_items = domain.n_items
        self.mean = self.bias_model.mean if self.predicts_ratings else 0.0
        self.alpha = 1.0 if self.predicts_ratings else config.alpha
        self.popularity_weight = 0.0 if self.predicts_ratings else config.popularity_weight
        self.head: Head = DotHead()
        self.register_buffer("factors", torch.zeros(domain.n_items, size))
        self.register_buffer("gram", torch.zeros(size, size).fill_diagonal_(1))
        self.register_buffer("prior_rhs", torch.zeros(size))
        self.register_buffer("negative_terms", torch.zeros(size, size + 1))
        self.register_buffer("positive_target", torch.tensor((1 + self.alpha) / self.alpha))
        self.register_buffer("popularity", torch.zeros(domain.n_items))

    def embed_users(self, users: Users) -> Embeddings:
        """Solve for the user vectors: [B, D + 1], the last coordinate marks empty histories."""
        history, n = users.history, users.history.lengths()[:, None]
        is_empty = (n == 0).to(self.factors.dtype)
        if self.predicts_ratings:
            bias, target = self.bias_model.user_bias_and_residuals(history)
            is_empty = is_empty * 0  # the item means are the scores; popularity is not needed
        else:
            bias = is_empty[:, 0] * 0
            target = self.positive_target - self.bias_model.item_bias[history.items]
        outer, rhs = normal_equations(self.factors, history, target)
        matrix = self.gram + self.alpha * outer + n[..., None] * self.negative_terms[:, :-1]
        rhs = self.prior_rhs + self.alpha * rhs + n * self.negative_terms[:, -1]
        vector = torch.linalg.solve(matrix, rhs) * (1 - is_empty)
        return Embeddings(torch.cat([vector, is_empty], -1), bias)

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return the factors with the popularity as last coordinate, and the item biases."""
        vector = torch.cat([self.factors[items], self.popularity[items][..., None]], -1)
        return Embeddings(vector, self.bias_model.item_bias[items] + self.popularity_bias(items))

    def popularity_bias(self, items: Tensor | slice = slice(None)) -> Tensor:
        """Return `popularity_weight` · log(1 + n) of items: [I]. Fold-in does not read it."""
        return self.popularity_weight * self.popularity[items].clamp(min=0).log1p()

    def item_similarities(self, item_row: int) -> Tensor:
        """Return the cosine of the factors of every item with those of one item: [I].

        Constant columns are left out, because they do not distinguish items.
        """
        factors = self.factors[:, self.factors.std(0) > 0]
        return F.cosine_similarity(factors, factors[item_row][None])

    def similarities_among(self, item_rows: Tensor) -> Tensor:
        """Return the cosines of the factors of some items [..., K] with one another."""
        factors = F.normalize(self.factors[item_rows][..., self.factors.std(0) > 0], dim=-1)
        return factors @ factors.mT

    def item_popularity(self) -> Tensor | None:
        """Return the number of users of every item, for implicit feedback.

        None: `from_factors` stores scores instead, which add up to 0.
        """
        is_count = not self.predicts_ratings and bool(self.popularity.sum() > 0)
        return self.popularity if is_count and bool((self.popularity >= 0).all()) else None
