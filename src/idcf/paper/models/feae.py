"""F-EAE: a factorised exchangeable autoencoder of the matrix of ratings (Hartford et al. 2018).

No row and no column has a number here, so a newcomer is one more row. Three things differ from the
paper, all so that an answer depends on nothing but the history: a newcomer hears what the columns
of the training matrix say and does not change it; the decoder's means are taken over ratings that
are there, never over what happens to be asked; and the ratings asked for in a training step are
hidden from everything that is read in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Graded
from idcf.models.layers.edge_index import find
from idcf.models.layers.ragged import nearest
from idcf.paper.layers.exchangeable import Axis, Exchangeable, Heard
from idcf.types import Domain, History, Users

_SLOPE = 0.01
_COUNT = 0.2  # what the logarithm of a count is multiplied by, to be of the size of a code
_ASKED = 1 << 26  # numbers of a hidden layer at a time, where the whole catalogue is asked for


@dataclass(frozen=True, kw_only=True)
class FEAEConfig:
    channels: int = 64  # the paper: 220
    code: int = 32  # of a row and of a column; the paper: 100
    encoder: int = 2  # layers before the one that is averaged into codes
    decoder: int = 2  # hidden layers; the paper: 4
    exchangeable_decoder: bool = False  # the paper: its layers hear rows and columns too
    counts: bool = True  # codes also say of how many ratings they are the mean; not in the paper
    standard: bool = True  # means are standardised before they are heard; not in the paper
    strength: float = 3.0  # means of few entries are drawn to the mean of all; the paper: 0
    dropout: float = 0.5  # of the decoder's channels
    episodic: bool = False  # in training, read the histories that are shown, not the matrix's rows


class Columns(NamedTuple):
    """What the training matrix says to a row."""

    heard: list[Heard]  # for each layer that hears columns
    code: Tensor  # [I, D]


class Rows(NamedTuple):
    """What was read of B rows."""

    code: Tensor  # [B, D]
    said: list[Tensor]  # for each layer of an exchangeable decoder: [B, C]

    def take(self, rows: Tensor) -> Rows:
        return Rows(self.code[rows], [x[rows] for x in self.said])


class Asked(NamedTuple):
    """Pairs of a row and a column: row owner[m] with items[m], or every row with every column."""

    owner: Tensor | None = None  # [M]
    items: Tensor | None = None  # [M, K]

    def rows(self, table: Tensor) -> Tensor:
        return (table if self.owner is None else table.index_select(0, self.owner))[:, None]

    def columns(self, table: Tensor) -> Tensor:
        return table[None] if self.items is None else F.embedding(self.items, table)


class FEAE(Graded):
    """Entries -> exchangeable layers -> a code per row and column -> logits of the levels."""

    inductive: ClassVar[bool] = True
    levels: Tensor  # [L]
    edges: Tensor  # int64 [E]: item * U + user of every entry of the training matrix, ascending
    starts: Tensor  # int64 [I + 1]: where the entries of each item begin
    edge_level: Tensor  # int64 [E]
    by_user: Tensor  # int64 [E]: the entries, user by user
    user_starts: Tensor  # int64 [U + 1]

    def __init__(self, config: FEAEConfig, domain: Domain) -> None:
        super().__init__()
        self.config, self.n_items, self.n_users = config, domain.n_items, domain.n_users
        n, hidden = len(domain.levels), config.channels
        layer = partial(Exchangeable, standard=config.standard)
        self.encoder = _layers(layer, n, *[hidden] * config.encoder, config.code)
        kind = layer if config.exchangeable_decoder else nn.Linear
        wide = config.code + config.counts
        self.decoder = _layers(kind, 2 * wide, *[hidden] * config.decoder, n)
        self.register_buffer("levels", torch.tensor(domain.levels))
        raters = domain.raters
        edges, order = torch.sort(raters.owner() * domain.n_users + raters.items)
        user = edges % domain.n_users
        counts = torch.bincount(user, minlength=domain.n_users)
        self.register_buffer("edges", edges)
        self.register_buffer("starts", raters.offsets)
        self.register_buffer("edge_level", nearest(raters.values[order], self.levels))
        self.register_buffer("by_user", torch.argsort(user, stable=True))
        self.register_buffer("user_starts", F.pad(counts.cumsum(0), (1, 0)))
        self._kept: Columns | None = None

    def logits(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        if self.training:  # everybody is somebody in the matrix
            rows, columns = self._matrix(users.ids.index_select(0, owner), items)
            if self.config.episodic:
                rows = self._rows(users.history, columns, owner, items)
            else:
                rows = rows.take(users.ids)
        else:
            columns = self._columns()
            rows = self._rows(users.history, columns)
        return _decode(self, rows, columns, Asked(owner, items))

    def rank(self, users: Users) -> Tensor:
        columns = self._columns()
        rows = self._rows(users.history, columns)
        step = max(1, _ASKED // (self.n_items * self.config.channels))
        parts = [
            _decode(self, rows.take(some), columns, Asked()).softmax(-1) @ self.levels
            for some in torch.split(torch.arange(len(users), device=self.device), step)
        ]
        return torch.cat(parts)

    def _columns(self) -> Columns:
        """The training matrix, read; once it is frozen, this is done once."""
        if self.frozen and self._kept is not None and self._kept.code.device == self.device:
            return self._kept
        columns = self._matrix()[1]
        if self.frozen:
            self._kept = columns
        return columns

    def _matrix(
        self, user: Tensor | None = None, items: Tensor | None = None
    ) -> tuple[Rows, Columns]:
        """The training matrix, as if these pairs were not in it."""
        keep = self.levels.new_ones(len(self.edges))
        if user is not None and items is not None:
            there, at, _ = find(self.edges, self.n_users, user, items)
            times = torch.zeros_like(keep).index_add(0, at.flatten(), there.flatten().to(keep))
            keep = (times == 0).to(keep)
        item, own = self.edges // self.n_users, self.edges % self.n_users
        order = torch.arange(len(keep), device=keep.device)
        strength = self.config.strength
        columns = Axis.build(item, order, self.starts, keep, strength)
        rows = Axis.build(own, self.by_user, self.user_starts, keep, strength)
        return self._read(rows, item, self.edge_level, columns)

    def _rows(
        self,
        history: History,
        columns: Columns,
        owner: Tensor | None = None,
        items: Tensor | None = None,
    ) -> Rows:
        """Histories, read; as if what is asked of their owner were not in them."""
        of, keep = history.owner(), torch.ones_like(history.values)
        if owner is not None and items is not None:
            asked = torch.sort((owner[:, None] * self.n_items + items).flatten()).values
            mine = of * self.n_items + history.items
            at = torch.searchsorted(asked, mine).clamp(max=len(asked) - 1)
            keep = (asked[at] != mine).to(keep)
        order = torch.arange(len(keep), device=keep.device)
        axis = Axis.build(of, order, history.offsets, keep, self.config.strength)
        return self._read(axis, history.items, nearest(history.values, self.levels), columns)[0]

    def _read(
        self, rows: Axis, column: Tensor, level: Tensor, columns: Axis | Columns
    ) -> tuple[Rows, Columns]:
        """Entries of some rows, which hear columns that were read before; or those of a whole
        matrix, whose columns are read as well."""
        heard: list[Heard] = []

        def hear(layer: Exchangeable, x: Tensor) -> Heard:
            if isinstance(columns, Columns):
                heard.append(columns.heard[len(heard)])
            else:
                heard.append(layer.hear(x, rows, columns))
            return heard[-1]

        x = F.one_hot(level, len(self.levels)).to(rows.keep.dtype)
        *first, last = _hearing(self.encoder)
        for layer in first:
            x = F.leaky_relu(layer(x, rows, column, hear(layer, x)), _SLOPE)
        code = last.of_rows(x, rows, column, hear(last, x))
        code = _counted(code, rows) if self.config.counts else code
        if isinstance(columns, Columns):
            known = columns.code
        else:
            known = last.of_columns(x, rows, columns, heard[-1])
            known = _counted(known, columns) if self.config.counts else known
        said, later = [], _hearing(self.decoder)
        if later:
            x = torch.cat([code.index_select(0, rows.of), known.index_select(0, column)], -1)
        for layer in later:
            now = hear(layer, x)
            said.append(layer.say(rows.mean(x, now.every), now))
            x = F.leaky_relu(layer(x, rows, column, now), _SLOPE)
        return Rows(code, said), Columns(heard, known)


def _decode(net: FEAE, rows: Rows, columns: Columns, asked: Asked) -> Tensor:
    """Logits of what is asked. The first layer is a sum of what the two codes say."""
    heard, x = columns.heard[len(net.encoder) :], torch.empty(0)
    for number, layer in enumerate(net.decoder):
        own = layer.own if isinstance(layer, Exchangeable) else layer
        assert isinstance(own, nn.Linear)
        if number:
            x = own(F.dropout(F.leaky_relu(x, _SLOPE), net.config.dropout, net.training))
        else:
            by_row, by_column = own.weight.chunk(2, 1)
            x = asked.rows(rows.code @ by_row.T) + asked.columns(columns.code @ by_column.T)
            x = x if own.bias is None else x + own.bias
        if heard:
            x = x + asked.rows(rows.said[number]) + asked.columns(heard[number].columns)
    return x


def _counted(code: Tensor, axis: Axis) -> Tensor:
    return torch.cat([code, axis.read.log1p()[:, None] * _COUNT], -1)


def _layers(kind: Callable[[int, int], nn.Module], *sizes: int) -> nn.ModuleList:
    return nn.ModuleList(kind(a, b) for a, b in pairwise(sizes))


def _hearing(layers: nn.ModuleList) -> list[Exchangeable]:
    return [x for x in layers if isinstance(x, Exchangeable)]
