"""FISM: a user is the sum of the items of the history (Kabbur, Ning & Karypis 2013)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import DotHead, Head
from idcf.models.layers.ragged import DEFAULT_USER_SHRINKAGE
from idcf.paper.layers.history_encoder import (
    HistoryEncoder,
    OffsetEmbedding,
    item_log_popularity,
    item_ridge_biases,
)
from idcf.types import Domain, Embeddings, Users


@dataclass(frozen=True, kw_only=True)
class FISMConfig:
    """Options of FISM."""

    embedding_size: int = 16  # D
    init_std: float = 0.1  # of the initial vectors; items without interactions keep theirs
    alpha: float = 0.5  # a history of n items is multiplied by n^-α
    shrinkage: float = DEFAULT_USER_SHRINKAGE  # pseudo-count of zero residuals in a user's bias
    use_item_identity: bool = True  # with ratings: which items were rated counts, not only how
    dropout: float = 0.0  # share of a history that a training step does not see
    binary: bool = False  # train on interactions as 1, whatever the rating; see the class


class FISM(TwoTower):
    """b_u + b_i + n^-α Σ_j∈history (e_j x_j + y_j)ᵀ q_i; the target is never in the history.

    Without ratings e_j is 0 and the score is a logit. The original ignores ratings; the form with
    ratings is asymmetric SVD (Koren 2008), and b_u is computed from the history.

    `binary` is the likely setting behind the paper's RMSE of 1.9 to 2.3: every rating is a
    positive example, random items are negative ones, and the logit that separates the two is
    compared with ratings from 1 to 5, on which it was never trained.

    Parameters
    ----------
    config : FISMConfig
        Options.
    domain : Domain
        The training data, from which the initial item biases are computed.
    """

    inductive: ClassVar[bool] = True

    def __init__(self, config: FISMConfig, domain: Domain) -> None:
        super().__init__()
        size, uses_ratings = config.embedding_size, not (domain.implicit or config.binary)
        self.n_items, self.predicts_ratings = domain.n_items, not domain.implicit
        self.trains_on_binary, self.mean = config.binary, domain.mean if uses_ratings else 0.0
        self.head: Head = DotHead()
        if uses_ratings:
            bias_offset = item_ridge_biases(domain, config.shrinkage)
        else:
            bias_offset = item_log_popularity(domain)
        self.items = OffsetEmbedding(bias_offset, size, config.init_std)
        self.history_encoder = HistoryEncoder(
            domain.n_items,
            size,
            mean=self.mean,
            has_ratings=uses_ratings,
            alpha=config.alpha,
            shrinkage=config.shrinkage,
            dropout=config.dropout,
            use_item_identity=config.use_item_identity,
            init_std=config.init_std,
        )
        self.global_bias = None if uses_ratings else nn.Parameter(torch.zeros(()))

    def embed_users(self, users: Users) -> Embeddings:
        """Embed users from their histories.

        If the model is trained on interactions instead of rating values (implicit feedback, or the
        option `binary`), all users have one learned bias. Else the bias of a user is computed from
        the ratings of the history.
        """
        encoded: Embeddings = self.history_encoder(users.history, self.items.bias)
        if self.global_bias is None:
            return encoded
        return Embeddings(encoded.vector, encoded.bias + self.global_bias)

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Look up the vectors q_i and the biases b_i; `exclude_users` is ignored."""
        embeddings: Embeddings = self.items(items)
        return embeddings
