"""F-EAE: a factorized exchangeable autoencoder of the rating matrix (Hartford et al. 2018).

Rows and columns have no identity, so a new user is one more row. Unlike in the paper, a score
depends on the history alone: a new row is encoded with the column statistics of the training
matrix, the decoder's means are over observed ratings, and a training step hides its targets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Model, UserData
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.edge_index import find_edges
from idcf.models.layers.ragged import nearest_level
from idcf.paper.layers.exchangeable import ColumnStatistics, ExchangeableLayer, MatrixAxis
from idcf.paper.layers.rating_levels import expected_rating, level_cross_entropy
from idcf.paper.model_options import FEAEConfig
from idcf.types import Batch, Domain, History, LossTerms, Users

_SLOPE = 0.01  # of the leaky ReLU
_COUNT_SCALE = 0.2  # brings the logarithm of a count to the size of a code
_MAX_HIDDEN_CELLS = 1 << 26  # numbers in a hidden layer at a time when a catalogue is scored


class ColumnCodes(NamedTuple):
    """The training matrix, encoded: all that is needed to encode and decode a row."""

    statistics: list[ColumnStatistics]  # for each exchangeable layer, the encoder's first
    code: Tensor  # [I, D]


class RowCodes(NamedTuple):
    """B encoded rows."""

    code: Tensor  # [B, D]
    decoder_terms: list[Tensor]  # for each layer of an exchangeable decoder: [B, C]

    def take(self, rows: Tensor) -> RowCodes:
        """Select some of the rows."""
        return RowCodes(self.code[rows], [x[rows] for x in self.decoder_terms])


class MatrixCells(NamedTuple):
    """The cells to decode: row owner[m] with items[m], or every row with every column."""

    owner: Tensor | None = None  # [M]
    items: Tensor | None = None  # [M, K]

    def gather_rows(self, table: Tensor) -> Tensor:
        """Return the row values [B, C] of the cells, to be broadcast over items: [M, 1, C]."""
        return (table if self.owner is None else table.index_select(0, self.owner))[:, None]

    def gather_columns(self, table: Tensor) -> Tensor:
        """Return the column values [I, C] of the cells: [M, K, C], or [1, I, C]."""
        return table[None] if self.items is None else F.embedding(self.items, table)


class FEAE(Model):
    """Entries → exchangeable layers → a code per row and per column → logits of the levels."""

    inductive: ClassVar[bool] = True
    user_data: ClassVar[UserData] = "rows"  # the training matrix
    levels: Tensor  # [L]
    edges: Tensor  # int64 [E]: item * U + user of every entry of the training matrix, ascending
    starts: Tensor  # int64 [I + 1]: where the entries of each item begin
    edge_level: Tensor  # int64 [E]
    user_entry_order: Tensor  # int64 [E]: the entries, user by user
    user_starts: Tensor  # int64 [U + 1]: where the entries of each user begin

    def __init__(self, config: FEAEConfig, domain: Domain) -> None:
        super().__init__()
        self.config, self.n_items, self.n_users = config, domain.n_items, domain.n_users
        n_levels, hidden = len(domain.levels), config.channels
        layer = partial(ExchangeableLayer, standardize=config.standardize)
        self.encoder = _make_layers(layer, n_levels, *[hidden] * config.encoder, config.code)
        decoder_layer = layer if config.exchangeable_decoder else nn.Linear
        code_size = config.code + config.counts
        self.decoder = _make_layers(
            decoder_layer, 2 * code_size, *[hidden] * config.decoder, n_levels
        )
        self.register_buffer("levels", torch.tensor(domain.levels))
        raters = domain.raters
        edges, order = torch.sort(raters.owner() * domain.n_users + raters.indices)
        user = edges % domain.n_users
        counts = torch.bincount(user, minlength=domain.n_users)
        self.register_buffer("edges", edges)
        self.register_buffer("starts", raters.offsets)
        self.register_buffer("edge_level", nearest_level(raters.values[order], self.levels))
        self.register_buffer("user_entry_order", torch.argsort(user, stable=True))
        self.register_buffer("user_starts", F.pad(counts.cumsum(0), (1, 0)))
        self._column_cache: TensorCache[ColumnCodes] = TensorCache()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the expected rating of items [M, K] for users owner [M]: [M, K]."""
        return expected_rating(self.level_logits(users, items, owner), self.levels)

    def loss_terms(self, batch: Batch) -> LossTerms:
        """Return the cross-entropy of the rating levels."""
        return level_cross_entropy(self.level_logits, self.levels, batch)

    def level_logits(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the logits of the levels for items [M, K] of users owner [M]: [M, K, L]. In
        training every user must be a row of the training matrix."""
        if self.training:
            rows, columns = self._training_codes(users.ids.index_select(0, owner), items)
            rows = rows.take(users.ids)
        else:
            columns = self._column_codes()
            rows = self._row_codes(users.history, columns)
        return self._decode(rows, columns, MatrixCells(owner, items))

    def score_catalog(self, users: Users) -> Tensor:
        """Score the whole catalogue, a few users at a time: [B, I]."""
        columns = self._column_codes()
        rows = self._row_codes(users.history, columns)
        step = max(1, _MAX_HIDDEN_CELLS // (self.n_items * self.config.channels))
        scores = [
            expected_rating(self._decode(rows.take(chunk), columns, MatrixCells()), self.levels)
            for chunk in torch.split(torch.arange(len(users), device=self.device), step)
        ]
        return torch.cat(scores)

    def _column_codes(self) -> ColumnCodes:
        """Return the encoded training matrix; a model without gradients computes it once."""
        if any(x.requires_grad for x in self.parameters()):
            return self._training_codes()[1]
        return self._column_cache.get(self.levels, lambda: self._training_codes()[1])

    def _training_codes(
        self, hidden_users: Tensor | None = None, hidden_items: Tensor | None = None
    ) -> tuple[RowCodes, ColumnCodes]:
        """Encode the training matrix without the cells of users [M] and items [M, K]."""
        visible = self.levels.new_ones(len(self.edges))
        if hidden_users is not None and hidden_items is not None:
            edge = find_edges(self.edges, self.n_users, hidden_users, hidden_items)
            n_hidden = torch.zeros_like(visible).index_add(
                0, edge.position.flatten(), edge.exists.flatten().to(visible)
            )
            visible = (n_hidden == 0).to(visible)
        item, user = self.edges // self.n_users, self.edges % self.n_users
        order = torch.arange(len(visible), device=visible.device)
        shrinkage = self.config.shrinkage
        columns = MatrixAxis(item, order, self.starts, visible, shrinkage)
        rows = MatrixAxis(user, self.user_entry_order, self.user_starts, visible, shrinkage)
        return self._encode(self.edge_level, rows, item, columns)

    def _row_codes(self, history: History, columns: ColumnCodes) -> RowCodes:
        """Encode histories as rows."""
        owner, visible = history.owner(), torch.ones_like(history.values)
        order = torch.arange(len(visible), device=visible.device)
        rows = MatrixAxis(owner, order, history.offsets, visible, self.config.shrinkage)
        level = nearest_level(history.values, self.levels)
        return self._encode(level, rows, history.items, columns)[0]

    def _encode(
        self,
        level: Tensor,
        rows: MatrixAxis,
        column_index: Tensor,
        columns: MatrixAxis | ColumnCodes,
    ) -> tuple[RowCodes, ColumnCodes]:
        """Encode the rows of entries with these levels [N] and columns [N]. With the axis of the
        columns, the entries are a whole matrix, whose columns are encoded too. With `ColumnCodes`,
        they are further rows of an encoded matrix."""
        statistics: list[ColumnStatistics] = []

        def next_statistics(layer: ExchangeableLayer) -> ColumnStatistics:
            """Return and store the statistics of one layer: those given, or computed ones."""
            if isinstance(columns, ColumnCodes):
                statistics.append(columns.statistics[len(statistics)])
            else:
                statistics.append(layer.column_statistics(x, rows, columns))
            return statistics[-1]

        x = F.one_hot(level, len(self.levels)).to(rows.visible.dtype)
        *hidden_layers, code_layer = _exchangeable_layers(self.encoder)
        for layer in hidden_layers:
            x = F.leaky_relu(layer(x, rows, column_index, next_statistics(layer)), _SLOPE)
        code_statistics = next_statistics(code_layer)
        row_code = code_layer.row_means(x, rows, column_index, code_statistics)
        row_code = self._append_log_counts(row_code, rows)
        if isinstance(columns, ColumnCodes):
            column_code = columns.code
        else:
            column_code = code_layer.column_means(x, rows, columns, code_statistics)
            column_code = self._append_log_counts(column_code, columns)
        decoder_terms: list[Tensor] = []
        decoder_layers = _exchangeable_layers(self.decoder)
        if decoder_layers:
            x = torch.cat(
                [row_code.index_select(0, rows.group), column_code.index_select(0, column_index)],
                -1,
            )
        for layer in decoder_layers:
            layer_statistics = next_statistics(layer)
            row_means = rows.mean(x, layer_statistics.overall_mean)
            decoder_terms.append(layer.row_terms(row_means, layer_statistics))
            x = F.leaky_relu(layer(x, rows, column_index, layer_statistics), _SLOPE)
        return RowCodes(row_code, decoder_terms), ColumnCodes(statistics, column_code)

    def _append_log_counts(self, code: Tensor, axis: MatrixAxis) -> Tensor:
        """Append 0.2 · log(1 + number of visible ratings) to each code if the option `counts` is
        on."""
        if not self.config.counts:
            return code
        return torch.cat([code, axis.n_visible.log1p()[:, None] * _COUNT_SCALE], -1)

    def _decode(self, rows: RowCodes, columns: ColumnCodes, cells: MatrixCells) -> Tensor:
        """Return the logits of the cells. The first layer is split into a row and a column part,
        so that the codes of a pair are never concatenated."""
        decoder_statistics = columns.statistics[len(self.encoder) :]
        x = torch.empty(0)
        for number, layer in enumerate(self.decoder):
            linear = _entry_linear(layer)
            if number:
                x = F.dropout(F.leaky_relu(x, _SLOPE), self.config.dropout, self.training)
                x = linear(x)
            else:
                row_weight, column_weight = linear.weight.chunk(2, 1)
                row_part = cells.gather_rows(rows.code @ row_weight.T)
                x = row_part + cells.gather_columns(columns.code @ column_weight.T)
                x = x if linear.bias is None else x + linear.bias
            if decoder_statistics:
                row_terms = cells.gather_rows(rows.decoder_terms[number])
                column_terms = cells.gather_columns(decoder_statistics[number].column_terms)
                x = x + row_terms + column_terms
        return x


def _entry_linear(layer: nn.Module) -> nn.Linear:
    """Return the linear map that a decoder layer applies to single entries."""
    return layer.entry_linear if isinstance(layer, ExchangeableLayer) else cast(nn.Linear, layer)


def _make_layers(layer_class: Callable[[int, int], nn.Module], *sizes: int) -> nn.ModuleList:
    """Return a layer for each pair of consecutive sizes."""
    return nn.ModuleList(layer_class(a, b) for a, b in pairwise(sizes))


def _exchangeable_layers(layers: nn.ModuleList) -> list[ExchangeableLayer]:
    """Return those of the layers that are exchangeable, in order."""
    return [x for x in layers if isinstance(x, ExchangeableLayer)]
