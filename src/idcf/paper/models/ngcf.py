"""NGCF: latents that travel along the graph (Wang et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Tabled
from idcf.models.layers.cache import Kept
from idcf.models.layers.embedding import Table, popularity
from idcf.paper.layers.bipartite import Bipartite
from idcf.types import Domain, Users


@dataclass(frozen=True, kw_only=True)
class NGCFConfig:
    embedding_size: int = 64
    layers: int = 3
    dropout: float = 0.1  # of messages
    scale: float = 0.1  # of the first random latents
    item_bias: bool = True  # popularity is said by a number, which begins at its own
    hide_target: bool = True  # a training pair is scored on the graph without its edge


class NGCF(Tabled):
    """E⁽ᵏ⁺¹⁾ = LReLU(L E W₁ + b₁) + LReLU((L E ⊙ E) W₂ + b₂) with L = D⁻¹(A + I), as in the
    authors' code; the score is the dot product of [E⁰ ‖ E¹/‖·‖ ‖ …].

    All pairs of a batch leave the graph for their own step, and degrees with them: an edge that
    is asked about must not answer. One propagation serves users and items.
    """

    reads_history: ClassVar[bool] = False

    def __init__(self, config: NGCFConfig, domain: Domain) -> None:
        super().__init__()
        size = config.embedding_size
        self.n_items, self.rates = domain.n_items, False
        self.dropout, self.hides = config.dropout, config.hide_target
        self.users = Table(domain.n_users, size, config.scale)
        self.items = Table(domain.n_items, size, config.scale)
        self.users.bias.requires_grad_(False)  # says nothing about the order of items
        self.items.bias.requires_grad_(config.item_bias)
        if config.item_bias:
            self.items.bias.data = popularity(domain.raters)
        self.sums = nn.ModuleList(nn.Linear(size, size) for _ in range(config.layers))
        self.products = nn.ModuleList(nn.Linear(size, size) for _ in range(config.layers))
        self.graph = Bipartite(domain.raters, domain.n_users)
        self._kept: Kept[Tensor] = Kept()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        self.require_known(users)
        who = users.ids[owner]
        hide = self.training and self.hides
        nodes = self._nodes(self.graph.without(who, items) if hide else None)
        vectors = nodes.index_select(0, items.flatten() + self.graph.n_users)
        own = nodes.index_select(0, who)
        score = torch.einsum("md,mkd->mk", own, vectors.view(*items.shape, -1))
        return score + self.items.bias[items]

    def rank(self, users: Users) -> Tensor:
        self.require_known(users)
        nodes = self._nodes()
        return nodes[users.ids] @ nodes[self.graph.n_users :].T + self.items.bias

    def _nodes(self, keep: Tensor | None = None) -> Tensor:
        if self.training:
            self._kept.drop()
            return self._propagate(keep)
        return self._kept.get(self.users.vector, lambda: self._propagate(None))

    def _propagate(self, keep: Tensor | None) -> Tensor:
        """[U + I, (layers + 1) · D]."""
        x = torch.cat([self.users.vector, self.items.vector])
        degree = self.graph.degree(keep)
        parts = [x]
        for one, two in zip(self.sums, self.products, strict=True):
            heard = (self.graph.spread(x, keep) + x) / (degree + 1)
            x = F.leaky_relu(one(heard), 0.2) + F.leaky_relu(two(heard * x), 0.2)
            x = F.dropout(x, self.dropout, self.training)
            parts.append(F.normalize(x, dim=-1))
        return torch.cat(parts, -1)
