"""GCMC as IDCF uses it: one message per rating level, from what a user rated and from who
rated an item (van den Berg et al. 2017, with the paper's product decoder)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Backbone
from idcf.models.layers.cache import Kept
from idcf.models.layers.edge_index import find, graph_of
from idcf.models.layers.embedding import Table
from idcf.models.layers.gcmc_conv import LevelConv
from idcf.models.layers.heads import Head, Products
from idcf.models.layers.ragged import Turned, per_level, pool, spread, turn
from idcf.types import Domain, Embedded, History, Users


@dataclass(frozen=True, kw_only=True)
class GCMCConfig:
    embedding_size: int = 32
    hidden: tuple[int, ...] = (32, 32)
    scale: float = 0.1  # of the first random latents; the head sees products of them
    center: bool = True
    shared_weights: bool = False  # one W for all rating levels, as in the published code
    mean: bool = True  # False: sum the messages, as in the published code
    edge_dropout: float = 0.0  # share of the edges a training step does not see, on either side
    hide_target: bool = True  # a pair's own rating never reaches its own prediction in training


class GCMC(Backbone):
    """User tower [p ‖ m_u], item tower [q ‖ n_i]; the graph is the training table."""

    reads_history: ClassVar[bool] = True
    levels: Tensor  # [L]
    raters: Tensor  # these four: nn.graph.Graph
    starts: Tensor
    edges: Tensor
    edge_level: Tensor

    def __init__(self, config: GCMCConfig, domain: Domain) -> None:
        super().__init__()
        size, n_levels = config.embedding_size, len(domain.levels)
        self.mean = domain.mean if config.center else 0.0
        self.n_items, self.n_users = domain.n_items, domain.n_users
        self.rates = not domain.implicit
        self.hides, self.edge_dropout = config.hide_target, config.edge_dropout
        self.users = Table(domain.n_users, size, config.scale)
        self.items = Table(domain.n_items, size, config.scale)
        options = {"shared": config.shared_weights, "mean": config.mean}
        self.from_items = LevelConv(n_levels, size, **options)
        self.from_users = LevelConv(n_levels, size, **options)
        self.head: Head = Products(size, config.hidden)
        levels = torch.tensor(domain.levels)
        self.register_buffer("levels", levels)
        for name, value in graph_of(domain, levels)._asdict().items():
            self.register_buffer(name, value)
        self._kept: tuple[tuple[int, int], tuple[Tensor, Tensor]] | None = None
        self._back: Kept[Turned] = Kept()

    def compose(self, own: Embedded, users: Users) -> Embedded:
        split = per_level(users.history, self.levels)
        shape = (len(users), len(self.levels))
        sums = pool(self.items.vector, split, self._drop(split)).view(*shape, -1)
        said = self.from_items(sums, split.lengths().view(shape))
        return Embedded(torch.cat([own.vector, said], -1), own.bias)

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        own: Embedded = self.items(items)
        sums, counts = self._heard()
        sums, counts = sums[items], counts[items]
        if without is not None:
            sums, counts = self._hide(sums, counts, items, without)
        heard = self.from_users(sums, counts)
        return Embedded(torch.cat([own.vector, heard], -1), own.bias)

    def _heard(self) -> tuple[Tensor, Tensor]:
        """Σ p_u over each item's raters at each level [I, L, D], and how many they are."""
        if self.training and self.edge_dropout:
            return self._listen()
        p = self.users.vector
        state = (p.data_ptr(), p._version)
        if self._kept is not None and self._kept[0] == state and not p.requires_grad:
            return self._kept[1]  # P is frozen from adaption on
        heard = self._listen()
        if not p.requires_grad:
            self._kept = state, heard
        return heard

    def _listen(self) -> tuple[Tensor, Tensor]:
        graph = History(self.raters, self.raters, self.starts)
        shape = (self.n_items, len(self.levels))
        p, kept = self.users.vector, self._drop(graph)
        if self.training and p.requires_grad:
            back, order = self._back.get(self.raters, lambda: turn(graph, self.n_users))
            sums = spread(p, graph, back, kept, None if kept is None else kept[order])
        else:
            sums = pool(p, graph, kept)
        return sums.view(*shape, -1), graph.lengths().view(shape)

    def _drop(self, graph: History) -> Tensor | None:
        """The weight of each edge in this step: 0, or 1 / (1 - dropout)."""
        if not (self.training and self.edge_dropout):
            return None
        return F.dropout(torch.ones_like(graph.items, dtype=torch.float32), self.edge_dropout)

    def _hide(
        self, sums: Tensor, counts: Tensor, items: Tensor, without: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take the edge (without[m], items[m, k]) out of the sums, where the graph has it."""
        found = find(self.edges, self.n_users, without, items)
        level = torch.arange(len(self.levels), device=items.device)
        mine = found.there[..., None] & (
            self.edge_level[found.at][..., None] == level
        )  # [M, K, L] or [M, L]
        latent = self.users.vector[found.user][..., None, :]
        return sums - mine[..., None] * latent, counts - mine.to(counts.dtype)
