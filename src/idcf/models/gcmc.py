"""GC-MC as the IDCF paper uses it, as a backbone.

Each tower joins an embedding with one message per rating level: from the items of a user's history
and from the raters of an item (van den Berg et al. 2017). The head is the product decoder of the
IDCF paper. The original decoder is in `idcf.paper.models.gcmc_softmax`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Backbone, UserData
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.edge_index import build_edge_index, edge_index_problem, find_edges
from idcf.models.layers.embedding import EmbeddingTable
from idcf.models.layers.gcmc_conv import LevelConv
from idcf.models.layers.heads import Head, ProductsHead
from idcf.models.layers.ragged import Transposed, split_by_level, sum_neighbors, sum_pool, transpose
from idcf.models.options import GCMCConfig
from idcf.types import Domain, Embeddings, Ragged, RaggedRows, Users


class RaterSums(NamedTuple):
    """The sums over the raters of each item and level, and what they are made of."""

    sums: Tensor  # [I, L, D]: Σ p_u, where edge dropout weights the edges
    counts: Tensor  # [I, L]: the number of raters, without dropout
    weights: Tensor | None  # [E]: the weight of each edge of `GCMC.edges`; None: 1


class GCMC(Backbone):
    """User tower [p ‖ m_u], item tower [q ‖ n_i]; the edges of the graph are `domain.raters`."""

    reads_history: ClassVar[bool] = True
    item_tower_reads_users: ClassVar[bool] = True
    user_data: ClassVar[UserData] = "rows"  # the training graph
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
        self._rater_sums_cache: TensorCache[RaterSums] = TensorCache()
        self._transposed_graph: TensorCache[Transposed[None]] = TensorCache()
        self._edge_order: TensorCache[Tensor] = TensorCache()

    def index_problem(self) -> str:
        """Return what is wrong with the training graph; "" if they can be used."""
        return edge_index_problem(self, self.n_items, self.n_users, len(self.levels))

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
        of_all = self._rater_sums()
        sums, counts = of_all.sums[items], of_all.counts[items]
        if exclude_users is not None:
            sums, counts = self._mask_target_edges(
                RaterSums(sums, counts, of_all.weights), items, exclude_users
            )
        message = self.from_users(sums, counts)
        return Embeddings(torch.cat([latent.vector, message], -1), latent.bias)

    def _rater_sums(self) -> RaterSums:
        """Return the sums of all items, which are cached while P is frozen, as it is from the
        adaption stage on."""
        p = self.user_table.vector
        if p.requires_grad or (self.training and self.edge_dropout):
            return self._compute_rater_sums()
        return self._rater_sums_cache.get(p, self._compute_rater_sums)

    def _compute_rater_sums(self) -> RaterSums:
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
        if weights is not None:
            weights = weights[self._edge_order.get(self.raters, self._order_of_edges)]
        return RaterSums(sums.view(*shape, -1), graph.lengths().view(shape), weights)

    def _order_of_edges(self) -> Tensor:
        """Return the position in `raters` of each edge of `edges`: int64 [E]."""
        item = Ragged(self.raters, None, self.starts).owner() // len(self.levels)
        return torch.argsort(item * self.n_users + self.raters)

    def _edge_dropout_weights(self, graph: RaggedRows) -> Tensor | None:
        """Draw the weight of each edge for this step: 0 or 1 / (1 - dropout)."""
        if not (self.training and self.edge_dropout):
            return None
        ones = torch.ones_like(graph.indices, dtype=self.user_table.vector.dtype)
        return F.dropout(ones, self.edge_dropout)

    def _mask_target_edges(
        self, of_items: RaterSums, items: Tensor, exclude_users: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return sums and numbers without the edge (exclude_users[m], items[m, k]), if it exists.

        The edge leaves the sums with the weight that it has in them, so the result does not depend
        on the rating of the pair, with edge dropout or without.
        """
        lookup = find_edges(self.edges, self.n_users, exclude_users, items)
        level = torch.arange(len(self.levels), device=items.device)
        edge_level = self.edge_level[lookup.position][..., None]
        is_target = lookup.exists[..., None] & (edge_level == level)  # [M, K, L] or [M, L]
        latent = self.user_table.vector[lookup.user][..., None, :]
        if of_items.weights is not None:
            latent = latent * of_items.weights[lookup.position][..., None, None]
        sums = of_items.sums - is_target[..., None] * latent
        return sums, of_items.counts - is_target.to(of_items.counts.dtype)
