"""PinSAGE: items described by themselves and by what short walks from them meet (Ying et al. 2018).

The original samples walks. Here the neighbours and their weights are what infinitely many walks
would give, computed once from the training table: an answer never depends on chance.

People are nodes as well, but not by number: a person's neighbours are the items of the history,
and what every person is made of besides is one shared vector. So newcomers are like anybody.

In training the item somebody is asked about must not be known as a neighbour of their history
because of them. Users are therefore dealt into `folds`; each user is trained on a graph made
without anybody of their fold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.cache import Kept
from idcf.models.layers.embedding import Table, popularity
from idcf.models.layers.gcmc_conv import ImportanceConv
from idcf.models.layers.heads import Dot, Head, mlp
from idcf.models.layers.item_matrix import Sparse
from idcf.models.layers.ragged import pool
from idcf.paper.layers.random_walks import incidence, visits
from idcf.types import Domain, Embedded, History, Users


@dataclass(frozen=True, kw_only=True)
class PinSageConfig:
    embedding_size: int = 64
    layers: int = 2
    neighbours: int = 20  # of each item, those most visited
    hops: int = 1  # of a walk, item to item
    restart: float = 0.5  # how likely a walk goes home before each further hop
    folds: int = 3  # 1: everybody is trained on one graph, their own rows in it
    dropout: float = 0.0  # of the item latents
    scale: float = 0.1  # of the first random ones


class _Nodes(NamedTuple):
    """Items on one graph, or on several laid end to end."""

    said: list[Tensor]  # what they tell at each layer [I, D] or [F · I, D]
    vector: Tensor  # [F · I, D]


class PinSage(TwoTower):
    """Score: G(ẑ_u) · G(ẑ_i) + b_i."""

    inductive: ClassVar[bool] = True
    hides: bool = True

    def __init__(self, config: PinSageConfig, domain: Domain) -> None:
        super().__init__()
        size = config.embedding_size
        self.n_items, self.rates, self.mean = domain.n_items, False, 0.0
        self.dropout, self.folds = config.dropout, max(1, config.folds)
        self.head: Head = Dot()
        self.items = Table(domain.n_items, size, config.scale)
        self.items.bias.data = popularity(domain.raters)
        self.person = nn.Parameter(torch.randn(size) * config.scale)
        self.convs = nn.ModuleList(ImportanceConv(size) for _ in range(config.layers))
        self.last = mlp((size, size, size), nn.ReLU)
        self.near = Sparse(domain.n_items)
        had = incidence(domain.raters, domain.n_users)
        self.near.fill(_walk(had, config))
        apart = _apart(had, config) if self.folds > 1 else self.near.rows()
        for name, part in zip(_APART, apart, strict=True):
            self.register_buffer(name, part, persistent=False)  # for training alone
        self._kept: Kept[_Nodes] = Kept()
        self._step: _Nodes | None = None  # of a training step, from its users to its items

    def embed_users(self, users: Users) -> Embedded:
        nodes = self._nodes()
        if self.training:
            self._step = nodes
        history, reader = users.history, users.history.owner()
        shifted = history.items + self._shift(users.ids)[reader]
        own = self.person.expand(len(users), -1)
        weights = 1 / history.lengths().clamp(min=1).to(own.dtype)[reader]
        for conv, said in zip(self.convs, nodes.said, strict=True):
            items = shifted if len(said) > self.n_items else history.items
            own = conv(own, pool(said, history._replace(items=items), weights))
        vector = self.last(own)
        return Embedded(vector, vector.new_zeros(len(users)))

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        nodes, self._step = self._step or self._nodes(), None
        places = items
        if without is not None:
            shift = self._shift(without)
            places = items + (shift if items.ndim == 1 else shift[:, None])
        vector = nodes.vector.index_select(0, places.flatten()).view(*items.shape, -1)
        bias = self.items.bias.index_select(0, items.flatten()).view(items.shape)
        return Embedded(vector, bias)

    def _shift(self, ids: Tensor) -> Tensor:
        """Where the items begin that this user is trained on."""
        return (ids % self.folds) * self.n_items if self.training else torch.zeros_like(ids)

    def _nodes(self) -> _Nodes:
        if self.training:
            self._kept.drop()
            graph = History(*(getattr(self, name) for name in _APART))
            return self._convolve(graph, self.folds)
        near = self.near.rows()
        return self._kept.get(self.items.vector, lambda: self._convolve(near, 1))

    def _convolve(self, graph: History, folds: int) -> _Nodes:
        own = F.dropout(self.items.vector, self.dropout, self.training)
        said: list[Tensor] = []
        for number, conv in enumerate(self.convs):
            assert isinstance(conv, ImportanceConv)
            said.append(conv.say(own))
            if number == 0 and folds > 1:  # a latent is the same on every graph
                own = own.repeat(folds, 1)
                heard = pool(
                    said[0], graph._replace(items=graph.items % self.n_items), graph.values
                )
            else:
                heard = pool(said[-1], graph, graph.values)
            own = conv(own, heard)
        return _Nodes(said, self.last(own))


_APART = ("apart_items", "apart_values", "apart_offsets")


def _walk(had: csr_array, config: PinSageConfig) -> csr_array:
    return visits(had, config.neighbours, config.hops, config.restart)


def _apart(had: csr_array, config: PinSageConfig) -> History:
    """Each fold's graph after the other: row and column f · I + i for item i."""
    fold, size = np.arange(had.shape[0]) % config.folds, had.shape[1]
    graphs = [_walk(csr_array(had[fold != f]), config) for f in range(config.folds)]
    rows = csr_array(vstack(graphs))
    shift = np.repeat(np.arange(config.folds) * size, [g.nnz for g in graphs])
    return History(
        torch.from_numpy(rows.indices + shift),
        torch.from_numpy(rows.data.astype(np.float32)),
        torch.from_numpy(rows.indptr.astype(np.int64)),
    )
