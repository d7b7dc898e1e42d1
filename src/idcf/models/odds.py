"""IDCF for implicit feedback: the probability that an item is among a new user's next few.

A logit joins a description u of the history H and a description v of the item i and its relations
to H. It is fitted on held-out key users (`idcf.training.solvers.odds`):

    logit P(i | H) = uᵀMu + uᵀNv + v'ᵀOv'

u  1, the share of H that no key user interacted with, the mean log count of the items of H, and
   log(1 + n). The middle two are shrunk to their means, so that an empty history gets the prior.
v  is i unseen by the key users?, and v': log(1 + n_i), the recency of i, and two relations to H:
   spectral    log lift: how much more often than by chance i occurs with H, from a truncated SVD
   similarity  (Σ_{j ∈ H} K_ji^p)^(1/p), on a log scale. K is the mean of EASE and shrunk cosines;
               with p > 1 a few similar items count for more than many dissimilar ones.

An unseen item has no relations: its probability depends on u alone. The recency of an item comes
from the order of the key users' rows; the order of H is not read. All item statistics are sums
over users, so the model stores no user's row. The values of H, 1 by default, weigh its items in
both relations.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from idcf.models.base import Model
from idcf.models.layers.item_matrix import ItemMatrix
from idcf.models.layers.ragged import segment_sum, sum_pool
from idcf.models.options import OddsConfig
from idcf.types import Domain, History, Users

N_USER_FEATURES = 4  # length of u
N_RELATIONS = 4  # length of v'
_N_USER_PAIRS = N_USER_FEATURES * (N_USER_FEATURES + 1) // 2
_N_ITEM_PAIRS = N_RELATIONS * (N_RELATIONS + 1) // 2
_N_CROSS_PAIRS = N_USER_FEATURES * (1 + N_RELATIONS)


class HistorySummary(NamedTuple):
    """The parts of the logit that depend on the histories alone."""

    user_features: Tensor  # [B, N_USER_FEATURES]: u
    similarity: Tensor  # [B, I]: (Σ_{j ∈ H} K_ji^p)^(1/p)
    spectral_vector: Tensor  # [B, D]
    n_known_items: Tensor  # [B]: items of the history that a key user interacted with


class OddsModel(Model):
    """A calibrated logit of item counts, recency, spectral relation and similarity.

    Scores are probabilities: they are comparable between users.
    """

    inductive: ClassVar[bool] = True
    has_item_similarities: ClassVar[bool] = True
    has_item_weights: ClassVar[bool] = True
    weighs_history: ClassVar[bool] = True
    predicts_probabilities: ClassVar[bool] = True
    item_counts: Tensor  # [I]: n_i, the number of key users who interacted with the item
    recency: Tensor  # [I]: when in a history users interact with the item; 0 is the middle
    history_factors: Tensor  # [I, D]: summed over the history
    item_factors: Tensor  # [I, D]: multiplied with that sum
    prior_features: Tensor  # [2]: means of the two shrunk features of u
    exclude_self: Tensor  # []: 1 if query users have rows in the table, which must not count
    coefficients: Tensor  # [C]: M, N and O; of M and O the upper triangles

    def __init__(self, config: OddsConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items = domain.n_items
        self.predicts_ratings = False
        self.config = config
        self.similarity = ItemMatrix(domain.n_items)  # K^p
        # users per user of the table: during the fit, some are held out of the item statistics
        self.subsample_ratio = 1.0
        shapes = {
            "item_counts": (self.n_items,),
            "recency": (self.n_items,),
            "history_factors": (self.n_items, config.rank),
            "item_factors": (self.n_items, config.rank),
            "prior_features": (2,),
            "exclude_self": (),
            "coefficients": (_N_USER_PAIRS + _N_CROSS_PAIRS + _N_ITEM_PAIRS,),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    def score_catalog(self, users: Users) -> Tensor:
        """Return the probability of every item for every user: [B, I]."""
        return self.logits(users.history).sigmoid()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the probability of `items` [M, K] for the users `owner` [M]: [M, K]."""
        return self.logits(users.history, items, owner).sigmoid()

    def index_problem(self) -> str:
        """Return what is wrong with the similarities of pairs of items; "" if they can be used."""
        return self.similarity.index_problem()

    def item_similarities(self, item_row: int) -> Tensor:
        """Return row `item_row` of K^p: [I]."""
        return self.similarity.dense_row(item_row)

    def similarities_among(self, item_rows: Tensor) -> Tensor:
        """Return K^p of some items [..., K] to one another: [..., K, K]."""
        return self.similarity.block(item_rows, item_rows)

    def item_popularity(self) -> Tensor:
        """Return n."""
        return self.item_counts

    def logits(
        self, history: History, items: Tensor | None = None, owner: Tensor | None = None
    ) -> Tensor:
        """Return the logits of the whole catalogue [B, I], or of `items` for `owner`: [M, K]."""
        summary = self.summarize_history(history)
        if items is None or owner is None:
            return self.quadratic_logit(summary.user_features, *self.relation_features(summary))
        relations = self.relation_features(summary, items, owner)
        return self.quadratic_logit(summary.user_features[owner], *relations)

    def summarize_history(self, history: History) -> HistorySummary:
        """Return the summaries of B histories.

        With `exclude_self` a user's row in the table does not count in the user's features.
        """
        items, n = history.items, history.lengths().to(self.item_counts.dtype)
        owner = history.owner()
        counts = (self.item_counts[items] - self.exclude_self).clamp(min=0)
        is_known = (counts > 0).to(n.dtype)
        prior = self.config.prior * self.prior_features
        n_unseen = segment_sum(1 - is_known, owner, len(n))
        popularity = segment_sum(self.log_popularity(counts), owner, len(n))
        user_features = [
            torch.ones_like(n),
            (n_unseen + prior[0]) / (n + self.config.prior),
            (popularity + prior[1]) / (n + self.config.prior),
            n.log1p(),
        ]
        return HistorySummary(
            torch.stack(user_features, 1),
            self.similarity.sum_pool(history, history.values) ** (1 / self.config.power),
            sum_pool(self.history_factors, history, is_known * history.values),
            segment_sum(is_known, owner, len(n)),
        )

    def log_popularity(self, item_counts: Tensor) -> Tensor:
        """Return log(1 + n), with counts scaled up to the table without held-out users."""
        return (item_counts * self.subsample_ratio).log1p()

    def relation_features(
        self, summary: HistorySummary, items: Tensor | None = None, owner: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Return v: which items are unseen, and the four features of v'. Each is [I] or [B, I] for
        the whole catalogue, or [M, K] for `items` and `owner`."""
        similarity, n_known = summary.similarity, summary.n_known_items[:, None]
        counts, recency = self.item_counts, self.recency
        if items is None or owner is None:
            observed = summary.spectral_vector @ self.item_factors.T
        else:
            similarity, n_known = similarity[owner[:, None], items], n_known[owner]
            counts, recency = counts[items], recency[items]
            observed = torch.einsum(
                "md,mkd->mk", summary.spectral_vector[owner], self.item_factors[items]
            )
        expected = n_known * counts / self.item_counts.sum().clamp(min=1)
        has_lift = expected > 0
        lift = torch.where(has_lift, observed / torch.where(has_lift, expected, 1.0), 1.0)
        spectral = lift.clamp(min=self.config.min_lift).log()
        similarity = (similarity / self.config.similarity_scale).log1p()
        recency = recency * (n_known > 0)  # an empty history is ranked by popularity
        is_unseen = (counts == 0).to(similarity.dtype)
        return is_unseen, [self.log_popularity(counts), recency, spectral, similarity]

    def quadratic_logit(
        self, user_features: Tensor, is_unseen: Tensor, relations: list[Tensor]
    ) -> Tensor:
        """Return uᵀMu + uᵀNv + v'ᵀOv' [B, K] without building the matrix of `design_matrix`.

        `user_features` is u [B, N_USER_FEATURES]; `is_unseen` and `relations`, v of
        `relation_features`, broadcast to [B, K].
        """
        j, k = torch.triu_indices(N_USER_FEATURES, N_USER_FEATURES, device=user_features.device)
        ends = (_N_USER_PAIRS, _N_USER_PAIRS + _N_CROSS_PAIRS)
        of_user, of_cross, of_item = self.coefficients.tensor_split(ends)
        cross = user_features @ of_cross.view(N_USER_FEATURES, 1 + N_RELATIONS)
        cross = cross.T[..., None]  # [1 + N_RELATIONS, B, 1]
        user_term = ((user_features[:, j] * user_features[:, k]) @ of_user)[:, None]
        logit = user_term + cross[0] * is_unseen
        pair = 0
        for row, relation in enumerate(relations):
            factor = cross[row + 1]
            for partner in relations[row:]:
                factor = factor + of_item[pair] * partner
                pair += 1
            logit = logit + relation * factor
        return logit


def design_matrix(user_features: Tensor, is_unseen: Tensor, relations: list[Tensor]) -> Tensor:
    """Return the rows [M, C] whose product with `OddsModel.coefficients` is `quadratic_logit`: for
    u [M, N_USER_FEATURES] and v [M] each of M pairs."""
    j, k = torch.triu_indices(N_USER_FEATURES, N_USER_FEATURES)
    s, t = torch.triu_indices(N_RELATIONS, N_RELATIONS)
    item = torch.stack([is_unseen, *relations], 1)
    user_pairs = user_features[:, j] * user_features[:, k]
    cross_pairs = (user_features[:, :, None] * item[:, None]).flatten(1)
    related = item[:, 1:]
    return torch.cat([user_pairs, cross_pairs, related[:, s] * related[:, t]], 1)
