"""GC-MC as the IDCF paper uses it, as a backbone.

Each tower joins an embedding with one message per rating level: from the items of a user's history
and from the raters of an item (van den Berg et al. 2017). The head is the product decoder of the
IDCF paper. The original decoder is in `idcf.paper.models.gcmc_softmax`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Backbone
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.edge_index import build_edge_index, find_edges
from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.gcmc_conv import LevelConv
from idcf.models.layers.heads import Head, ProductsHead
from idcf.models.layers.ragged import Transposed, split_by_level, sum_neighbors, sum_pool, transpose
from idcf.types import Domain, Embeddings, Ragged, RaggedRows, Users


@dataclass(frozen=True, kw_only=True)
class GCMCConfig:
    """Options of GC-MC."""

    embedding_size: int = 32  # D
    hidden: tuple[int, ...] = (32, 32)  # layer sizes of the head
    init_std: float = 0.1  # of the initial latents
    center: bool = True  # add the mean rating
    shared_weights: bool = False  # one W for all rating levels, as in the published code
    average_messages: bool = True  # False: sum the messages, as in the published code
    edge_dropout: float = 0.0  # share of the edges that a training step leaves out
    hide_target: bool = True  # in training, hide a row's rating from the towers of that row
    random_items: bool = False  # keep the random initial Q, as a baseline without trained items


class GCMC(Backbone):
    """User tower [p ‖ m_u], item tower [q ‖ n_i]; the edges of the graph are `domain.raters`."""

    reads_history: ClassVar[bool] = True
    levels: Tensor  # [L]
    raters: Tensor  # this buffer and the next three are the fields of `EdgeIndex`
    starts: Tensor
    edges: Tensor
    edge_level: Tensor

    def __init__(self, config: GCMCConfig, domain: Domain) -> None:
        super().__init__()
        size, n_levels = config.embedding_size, len(domain.levels)
        self.mean = domain.mean if config.center else 0.0
        self.n_items, self.n_users = domain.n_items, domain.n_users
        self.predicts_ratings = not domain.implicit
        self.masks_target_edge = config.hide_target
        self.edge_dropout = config.edge_dropout
        self.user_table = EmbeddingTable(domain.n_users, size, config.init_std)
        self.item_table = EmbeddingTable(domain.n_items, size, config.init_std)
        self.item_table.vector.requires_grad_(not config.random_items)
        options = {"shared": config.shared_weights, "average": config.average_messages}
        self.from_items = LevelConv(n_levels, size, **options)
        self.from_users = LevelConv(n_levels, size, **options)
        self.head: Head = ProductsHead(size, config.hidden)
        levels = torch.tensor(domain.levels)
        self.register_buffer("levels", levels)
        for name, value in build_edge_index(domain, levels)._asdict().items():
            self.register_buffer(name, value)
        self._rater_sums_cache: TensorCache[tuple[Tensor, Tensor]] = TensorCache()
        self._transposed_graph: TensorCache[Transposed[None]] = TensorCache()

    def user_tower(self, latent: Embeddings, users: Users) -> Embeddings:
        """Return [p ‖ m_u], where m_u is the message of the items of the history."""
        by_level = split_by_level(users.history.as_ragged(), self.levels)
        shape = (len(users), len(self.levels))
        weights = self._edge_dropout_weights(by_level)
        sums = sum_pool(self.item_table.vector, by_level, weights).view(*shape, -1)
        message = self.from_items(sums, by_level.lengths().view(shape))
        return Embeddings(torch.cat([latent.vector, message], -1), latent.bias)

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Return [q ‖ n_i], where n_i is the message of the raters, except `exclude_users`."""
        latent: Embeddings = self.item_table(items)
        sums, counts = self._rater_sums()
        sums, counts = sums[items], counts[items]
        if exclude_users is not None:
            sums, counts = self._mask_target_edges(sums, counts, items, exclude_users)
        message = self.from_users(sums, counts)
        return Embeddings(torch.cat([latent.vector, message], -1), latent.bias)

    def _rater_sums(self) -> tuple[Tensor, Tensor]:
        """Return Σ p_u over the raters of each item and level [I, L, D], and their number [I, L].

        The sums are cached while P is frozen, as it is from the adaption stage on.
        """
        p = self.user_table.vector
        if p.requires_grad or (self.training and self.edge_dropout):
            return self._compute_rater_sums()
        return self._rater_sums_cache.get(p, self._compute_rater_sums)

    def _compute_rater_sums(self) -> tuple[Tensor, Tensor]:
        """Compute `_rater_sums`; in training, edge dropout weights the vectors, not the numbers."""
        graph = Ragged(self.raters, None, self.starts)
        shape = (self.n_items, len(self.levels))
        p, weights = self.user_table.vector, self._edge_dropout_weights(graph)
        if self.training and p.requires_grad:
            transposed, order = self._transposed_graph.get(
                self.raters, lambda: transpose(graph, self.n_users)
            )
            transposed_weights = None if weights is None else weights[order]
            sums = sum_neighbors(p, graph, transposed, weights, transposed_weights)
        else:
            sums = sum_pool(p, graph, weights)
        return sums.view(*shape, -1), graph.lengths().view(shape)

    def _edge_dropout_weights(self, graph: RaggedRows) -> Tensor | None:
        """Draw the weight of each edge for this step: 0 or 1 / (1 - dropout)."""
        if not (self.training and self.edge_dropout):
            return None
        return F.dropout(torch.ones_like(graph.indices, dtype=torch.float32), self.edge_dropout)

    def _mask_target_edges(
        self, sums: Tensor, counts: Tensor, items: Tensor, exclude_users: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Subtract the edge (exclude_users[m], items[m, k]), if it exists, from the sums."""
        lookup = find_edges(self.edges, self.n_users, exclude_users, items)
        level = torch.arange(len(self.levels), device=items.device)
        edge_level = self.edge_level[lookup.position][..., None]
        is_target = lookup.exists[..., None] & (edge_level == level)  # [M, K, L] or [M, L]
        latent = self.user_table.vector[lookup.user][..., None, :]
        return sums - is_target[..., None] * latent, counts - is_target.to(counts.dtype)
