"""Matrix factorization backbones: PMF and NNMF, a user table, an item table and a head.

PMF: Salakhutdinov & Mnih 2007. NNMF with the head of the IDCF paper ("perceptron"), or with the
head of Dziugaite & Roy 2015 ("concat"). The latter trained network and latents in turn; here one
gradient step updates both. All variants have biases and μ.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from idcf.models.base import Backbone
from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.heads import ConcatHead, DotHead, Head, PerceptronHead
from idcf.models.options import MatrixFactorizationConfig
from idcf.types import Domain, Embeddings, Users


class MatrixFactorization(Backbone):
    """f(p, q) + b_u + b_i + μ."""

    reads_history: ClassVar[bool] = False

    def __init__(self, config: MatrixFactorizationConfig, domain: Domain) -> None:
        super().__init__()
        self.mean = domain.mean if config.center else 0.0
        self.n_items = domain.n_items
        self.predicts_ratings = not domain.implicit
        size = config.embedding_size
        if config.head == "concat":
            size += config.plain_size
        self.user_table = EmbeddingTable(domain.n_users, size)
        self.item_table = EmbeddingTable(domain.n_items, size)
        self.item_table.vector.requires_grad_(not config.random_items)
        self.head: Head = _build_head(config)

    def user_tower(self, latent: Embeddings, users: Users) -> Embeddings:
        """Return the latents: the history is not read."""
        return latent

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return the rows of the item table."""
        embeddings: Embeddings = self.item_table(items)
        return embeddings


def _build_head(config: MatrixFactorizationConfig) -> Head:
    """Return the head that `config.head` names."""
    size, hidden = config.embedding_size, config.hidden
    if config.head == "concat":
        return ConcatHead(config.plain_size, size, hidden)
    return DotHead() if config.head == "dot" else PerceptronHead(size, hidden)
