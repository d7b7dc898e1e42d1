"""IGMC: a rating is read off the graph round it, and nobody has a latent (Zhang & Chen 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Penalised
from idcf.paper.layers.rgcn import RGCN, Edges
from idcf.paper.layers.subgraph import Graph, Near, Offsets, Subgraphs
from idcf.types import Domain, Users

_ROOM = 1 << 25  # cells of subgraphs laid out at a time; fewer where they should stay in the cache
_LABELS = 4  # target user, target item, other user, other item


@dataclass(frozen=True, kw_only=True)
class IGMCConfig:
    residual: bool = True  # edges say what offsets leave unexplained; False: levels, as published
    layers: int = 2
    size: int = 32
    bases: int = 4  # of the weights of levels
    hidden: int = 128
    cap: int = 255  # neighbours on each side of a subgraph
    train_cap: int = 63  # the same in training, drawn anew each time: quicker, and as good
    dropout: float = 0.1  # of the hidden layer
    edge_dropout: float = 0.0
    smoothness: float = 0.001  # ARR: how alike neighbouring levels speak
    center: bool = True  # add the mean rating; where edges are residuals it always is


class IGMC(Penalised):
    """Labelled nodes, R-GCN layers, and a perceptron on what the two targets heard.

    A user is what they rated, never a number: the subgraph is made of the history that is given
    and of the item's raters in training. In training a user's own row of the table is hidden from
    their pairs, for it holds the target. When somebody known is asked about an item of their
    history, the edge between the two is left out as for anybody, but their row still stands among
    the item's raters: nobody can tell whose it is.

    The published form knows nodes by their label and edges by their level. With `residual`, nodes
    come with their offset from the mean, how many ratings it stands on, and their edge to the
    target of the other side (which a mean over neighbours would dilute); edges say by how much a
    rating exceeds both offsets, and the answer begins at the targets' offsets. Two layers are then
    enough to weigh those who rated the item by how they agree with the user, and the items the
    user had by how they go with the item.
    """

    inductive: ClassVar[bool] = True
    lists: ClassVar[bool] = False  # a subgraph for every user and item

    def __init__(self, config: IGMCConfig, domain: Domain) -> None:
        super().__init__()
        self.config, self.n_items = config, domain.n_items
        self.rates = not domain.implicit
        self.mean = domain.mean if config.center or config.residual else 0.0
        self.graph = Graph(domain.raters, domain.n_users, domain.levels, domain.mean)
        kinds, bases, more = len(domain.levels), config.bases, 0
        if config.residual:
            kinds, bases, more = 2, 0, 5
        sizes = [_LABELS + more] + [config.size] * config.layers
        self.layers = nn.ModuleList(RGCN(kinds, a, b, bases) for a, b in pairwise(sizes))
        self.hidden = nn.Linear(2 * config.size * config.layers, config.hidden)
        self.out = nn.Linear(config.hidden, 1)

    @property
    def cap(self) -> int:
        return min(self.config.cap, self.config.train_cap) if self.training else self.config.cap

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        who = owner.repeat_interleave(items.shape[1])
        return self._pairs(users, items.flatten(), who).view(items.shape)

    def rank(self, users: Users) -> Tensor:
        every = torch.arange(self.n_items, device=self.device)
        who = torch.arange(len(users), device=self.device)
        return self.forward(users, every.expand(len(users), -1), who)

    def penalty(self) -> Tensor:
        if self.config.residual:  # there are no levels then
            return torch.zeros((), device=self.device)
        parts = [x.roughness() for x in self.layers if isinstance(x, RGCN)]
        return self.config.smoothness * torch.stack(parts).sum()

    def _pairs(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """[P], a few at a time."""
        near = self.graph.near(users.history, self.cap)
        own = self.graph.offsets(users.history)
        hidden = users.ids if self.training else torch.full_like(users.ids, -1)
        raters = self.graph.starts.diff()[items].clamp(max=self.cap)
        order = self._order(near, raters, owner)
        room = _ROOM if items.is_cuda else _ROOM >> 6
        widest = int(raters.max()) if len(raters) else 0
        step = max(1, room // ((widest + 1) * (near.items.shape[1] + 1)))
        parts = [
            self._score(near, own, hidden, items[some], owner[some])
            for some in (order[at : at + step] for at in range(0, len(order), step))
        ]
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return torch.cat(parts)[back] if parts else self.out.bias[:0]

    def _order(self, near: Near, raters: Tensor, owner: Tensor) -> Tensor:
        """Subgraphs of like size together, so that those at hand at a time are no larger than
        they need to be."""
        had = (near.level > 0).sum(1)[owner]
        return torch.argsort(raters // 16 * (self.cap + 1) + had, stable=True)

    def _score(
        self, near: Near, own: Offsets, hidden: Tensor, items: Tensor, owner: Tensor
    ) -> Tensor:
        config, without = self.config, hidden[owner]
        found = self.graph.around(near, owner, items, self.cap, without)
        level = found.level
        if self.training and config.edge_dropout:
            level = level * (torch.rand(level.shape, device=level.device) >= config.edge_dropout)
        users, things = (_labels(side, level, self.out.weight.dtype) for side in (0, 1))
        if not config.residual:
            each = ((level == x + 1).to(users.dtype) for x in range(len(self.graph.levels)))
            return self.mean + self._read(Edges.of(level, *each), users, things)
        mine, theirs = self._offsets(found, own, items, owner, without)
        edges = self._residuals(level, mine.value, theirs.value)
        users = _known(users, mine, edges.users, [x[:, :, 0] for x in edges.kinds])
        things = _known(things, theirs, edges.items, [x[:, 0] for x in edges.kinds])
        start = mine.value[:, 0] + theirs.value[:, 0]
        return self.mean + self.graph.spread * (start + self._read(edges, users, things))

    def _offsets(
        self, found: Subgraphs, own: Offsets, items: Tensor, owner: Tensor, without: Tensor
    ) -> tuple[Offsets, Offsets]:
        """Of all users and all items of each subgraph."""
        graph, known = self.graph, self.graph.laid().items
        item = graph.without(items, without)
        raters = graph.without_too(found.raters, item.value - known.value[items])
        return (
            _join(Offsets(own.value[owner], own.n[owner]), raters),
            _join(item, Offsets(known.value[found.items], known.n[found.items])),
        )

    def _residuals(self, level: Tensor, mine: Tensor, theirs: Tensor) -> Edges:
        """Edges of two kinds: that there is one, and how far it is above what both are used to."""
        there = (level > 0).to(mine.dtype)
        value = self.graph.scaled.index_select(0, level.flatten().int()).view(level.shape)
        return Edges.of(level, there, (value - mine[:, :, None] - theirs[:, None]) * there)

    def _read(self, edges: Edges, users: Tensor, items: Tensor) -> Tensor:
        """[P] from what the targets heard in every layer; in the last nobody else listens."""
        heard = []
        for number, layer in enumerate(self.layers, 1):
            pair = layer(edges, users, items, first=number == len(self.layers))
            users, items = (x.tanh() for x in pair)
            heard += [users[:, 0], items[:, 0]]
        read = self.hidden(torch.cat(heard, -1)).relu()
        out: Tensor = self.out(F.dropout(read, self.config.dropout, self.training))[:, 0]
        return out


def _labels(side: int, block: Tensor, dtype: torch.dtype) -> Tensor:
    """One-hot: target user 0, target item 1, other user 2, other item 3."""
    label = torch.full((block.shape[1 + side],), 2 + side, device=block.device)
    label[0] = side
    return F.one_hot(label, _LABELS).to(dtype).expand(len(block), -1, -1)


def _join(target: Offsets, others: Offsets) -> Offsets:
    """[P] and [P, R] -> [P, 1 + R]."""
    value, n = (torch.cat([x[:, None], y], 1) for x, y in zip(target, others, strict=True))
    return Offsets(value, n)


def _known(labels: Tensor, own: Offsets, edges: Tensor, tie: list[Tensor]) -> Tensor:
    """All that a node comes with: [P, R, 4 + 5]."""
    sure = own.n.log1p() / 5  # about as large as the rest
    more = torch.stack([own.value, sure, *tie], -1)
    return torch.cat([labels, more, edges.log1p() / 5], -1)
