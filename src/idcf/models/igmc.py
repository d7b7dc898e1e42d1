"""IGMC: a rating is read off the graph round it, and nobody has a latent (Zhang & Chen 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Penalised
from idcf.nn.rgcn import RGCN, Edges, powers
from idcf.nn.subgraph import Graph, Near, Subgraphs
from idcf.types import Domain, Users

_ROOM = 1 << 25  # cells of subgraphs laid out at a time; fewer where they should stay in the cache
_LABELS = 4  # target user, target item, other user, other item


@dataclass(frozen=True, kw_only=True)
class IGMCConfig:
    layers: int = 4
    size: int = 32
    bases: int = 4
    degree: int = 1  # W_level is a polynomial of the rating; 0: free, as in the paper
    hidden: int = 128
    cap: int = 31  # neighbours on each side of a subgraph
    dropout: float = 0.5  # of the hidden layer
    edge_dropout: float = 0.2
    smoothness: float = 0.001  # ARR: how alike neighbouring levels speak
    center: bool = True  # add the mean rating
    profiles: bool = True  # nodes come with how often each level occurs in all their ratings


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
    kinds: Tensor  # [F, L]

    def __init__(self, config: IGMCConfig, domain: Domain) -> None:
        super().__init__()
        self.config, self.n_items = config, domain.n_items
        self.rates = not domain.implicit
        self.mean = domain.mean if config.center else 0.0
        self.graph = Graph(domain.raters, domain.n_users, domain.levels)
        levels = len(domain.levels)
        given = powers(torch.tensor(domain.levels), config.degree) if config.degree else None
        kinds = torch.eye(levels) if given is None else given.T.contiguous()
        self.register_buffer("kinds", kinds)
        known = levels + len(kinds) + 2 if config.profiles else 0
        sizes = [_LABELS + known] + [config.size] * config.layers
        self.layers = nn.ModuleList(
            RGCN(levels, a, b, config.bases if given is None else given) for a, b in zip(sizes, sizes[1:], strict=False)
        )
        self.hidden = nn.Linear(2 * config.size * config.layers, config.hidden)
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
        own = self.graph.profile(users.history)
        hidden = users.ids if self.training else torch.full_like(users.ids, -1)
        order = self._order(near, items, owner)
        room = _ROOM if items.is_cuda else _ROOM >> 6
        parts = [
            self._score(near, own, hidden, items[some], owner[some])
            for some in order.split(max(1, room // (self.config.cap + 1) ** 2))
        ]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return torch.cat(parts)[back] if parts else self.out.bias[:0]

    def _order(self, near: Near, items: Tensor, owner: Tensor) -> Tensor:
        """Subgraphs of like size together, so that those at hand at a time are no larger than
        they need to be."""
        raters = self.graph.starts.diff()[items].clamp(max=self.config.cap)
        had = (near.level > 0).sum(1)[owner]
        return torch.argsort(raters // 16 * (self.config.cap + 1) + had, stable=True)

    def _score(
        self, near: Near, own: Tensor, hidden: Tensor, items: Tensor, owner: Tensor
    ) -> Tensor:
        config, without, dtype = self.config, hidden[owner], self.out.weight.dtype
        found = self.graph.around(near, owner, items, config.cap, without)
        level = found.level
        if self.training and config.edge_dropout:
            level = level * (torch.rand(level.shape, device=level.device) >= config.edge_dropout)
        edges = Edges.of(level, self.kinds)
        users, things = (_labels(side, level, dtype) for side in (0, 1))
        if config.profiles:
            mine, theirs = self._profiles(found, own[owner], items, without)
            users = torch.cat([users, mine, edges.users.log1p() / 5], -1)
            things = torch.cat([things, theirs, edges.items.log1p() / 5], -1)
        read = self.hidden(self._read(edges, users, things)).relu()
        return self.mean + self.out(F.dropout(read, config.dropout, self.training))[:, 0]

    def _profiles(
        self, found: Subgraphs, own: Tensor, items: Tensor, without: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of all users and all items of each subgraph; a target's is without their rating."""
        laid, graph = self.graph.laid(), self.graph
        each = torch.arange(1, own.shape[1] + 1, device=own.device)
        nobody = torch.full_like(without, graph.n_users)
        told = graph.lookup(torch.where(without < 0, nobody, without), items)
        item = laid.items[items] - (told[:, None] == each).to(own.dtype)
        mine = torch.cat([own[:, None], laid.users[found.raters]], 1)
        theirs = torch.cat([item[:, None], laid.items[found.items]], 1)
        table = F.pad(self.kinds, (1, 0)).T
        tie = [table[x.long()] for x in (found.level[:, :, 0], found.level[:, 0])]
        return torch.cat([_shares(mine), tie[0]], -1), torch.cat([_shares(theirs), tie[1]], -1)

    def _read(self, edges: Edges, users: Tensor, items: Tensor) -> Tensor:
        """What the targets heard in every layer; in the last one nobody else needs to listen."""
        heard = []
        for number, layer in enumerate(self.layers, 1):
            pair = layer(edges, users, items, first=number == len(self.layers))
            users, items = (x.tanh() for x in pair)
            heard += [users[:, 0], items[:, 0]]
        return torch.cat(heard, -1)


def _labels(side: int, block: Tensor, dtype: torch.dtype) -> Tensor:
    """One-hot: target user 0, target item 1, other user 2, other item 3."""
    label = torch.full((block.shape[1 + side],), 2 + side, device=block.device)
    label[0] = side
    return F.one_hot(label, _LABELS).to(dtype).expand(len(block), -1, -1)


def _shares(counts: Tensor) -> Tensor:
    """Shares of the levels, and how many ratings they are of."""
    n = counts.sum(-1, keepdim=True)
    return torch.cat([counts / n.clamp(min=1), n.log1p() / 5], -1)
