"""IGMC: a rating is read off the graph round it, and nobody has a latent (Zhang & Chen 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Penalised
from idcf.nn.rgcn import RGCN, Edges
from idcf.nn.subgraph import Graph, Near
from idcf.types import Domain, Users

_CELLS = 1 << 22  # of the matrices of subgraphs that are held at a time
_LABELS = 4  # target user, target item, other user, other item


@dataclass(frozen=True, kw_only=True)
class IGMCConfig:
    layers: int = 4
    size: int = 32
    bases: int = 4
    hidden: int = 128
    cap: int = 31  # neighbours on each side of a subgraph
    dropout: float = 0.5  # of the hidden layer
    edge_dropout: float = 0.2
    smoothness: float = 0.001  # ARR: how alike neighbouring levels speak
    center: bool = True  # add the mean rating
    counts: bool = False  # read how many items and raters there are: means alone cannot tell


class IGMC(Penalised):
    """Four kinds of node, R-GCN layers, and a perceptron on what the two targets heard.

    A user is what they rated, never a number: the subgraph is made of the history that is given
    and of the item's raters in training. In training a user's own row of the table is hidden from
    their pairs, for it holds the target. When somebody known is asked about an item of their
    history, that rating is not read, but their row still stands among the item's raters: nobody
    can tell whose it is.
    """

    inductive: ClassVar[bool] = True
    lists: ClassVar[bool] = False

    def __init__(self, config: IGMCConfig, domain: Domain) -> None:
        super().__init__()
        self.config, self.n_items = config, domain.n_items
        self.rates = not domain.implicit
        self.mean = domain.mean if config.center else 0.0
        self.graph = Graph(domain.raters, domain.n_users, domain.levels)
        sizes = [_LABELS] + [config.size] * config.layers
        levels = len(domain.levels)
        self.layers = nn.ModuleList(
            RGCN(levels, a, b, config.bases) for a, b in zip(sizes, sizes[1:], strict=False)
        )
        read = 2 * config.size * config.layers + 2 * config.counts
        self.hidden = nn.Linear(read, config.hidden)
        self.out = nn.Linear(config.hidden, 1)

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        who = owner.repeat_interleave(items.shape[1])
        return self._pairs(users, items.flatten(), who).view(items.shape)

    def rank(self, users: Users) -> Tensor:
        every = torch.arange(self.n_items, device=self.device)
        who = torch.arange(len(users), device=self.device)
        return self.forward(users, every.expand(len(users), -1), who)

    def penalty(self) -> Tensor:
        parts = [x.roughness() for x in self.layers if isinstance(x, RGCN)]
        return self.config.smoothness * torch.stack(parts).sum()

    def _pairs(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """[P]"""
        near = self.graph.near(users.history, self.config.cap)
        counts = users.history.lengths()
        hidden = users.ids if self.training else torch.full_like(users.ids, -1)
        cells = len(self.graph.levels) * (self.config.cap + 1) * (near.items.shape[1] + 1)
        step = max(1, _CELLS // cells)
        parts = [
            self._score(near, counts, hidden, items[at : at + step], owner[at : at + step])
            for at in range(0, len(items), step)
        ]
        return torch.cat(parts) if parts else self.out.bias[:0]

    def _score(
        self, near: Near, counts: Tensor, hidden: Tensor, items: Tensor, owner: Tensor
    ) -> Tensor:
        block = self.graph.blocks(near, owner, items, self.config.cap, hidden[owner])
        if self.training and self.config.edge_dropout:
            block = block * (torch.rand(block.shape, device=block.device) >= self.config.edge_dropout)
        read = self._read(block)
        if self.config.counts:
            n = torch.stack([counts[owner], self.graph.starts.diff()[items]], -1)
            read = torch.cat([read, n.to(read.dtype).log1p()], -1)
        read = F.dropout(self.hidden(read).relu(), self.config.dropout, self.training)
        return self.mean + self.out(read)[:, 0]

    def _read(self, block: Tensor) -> Tensor:
        """What the targets heard in every layer; in the last one nobody else needs to listen."""
        levels = len(self.graph.levels)
        edges = Edges.of(block, levels, self.out.weight.dtype)
        users, items = (_labels(side, block, edges.there.dtype) for side in (0, 1))
        row, column = edges.targets(levels)
        heard = []
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, RGCN)
            if number + 1 < len(self.layers):
                pair = layer.to_users(edges, users, items), layer.to_items(edges, users, items)
            else:
                pair = (
                    layer.to_users(row, users[:, :1], items),
                    layer.to_items(column, users, items[:, :1]),
                )
            users, items = (x.tanh() for x in pair)
            heard += [users[:, 0], items[:, 0]]
        return torch.cat(heard, -1)


def _labels(side: int, block: Tensor, dtype: torch.dtype) -> Tensor:
    """One-hot: target user 0, target item 1, other user 2, other item 3."""
    label = torch.full((block.shape[1 + side],), 2 + side, device=block.device)
    label[0] = side
    return F.one_hot(label, _LABELS).to(dtype).expand(len(block), -1, -1)
