"""What a fit costs: its peak memory and, roughly, its seconds, from the size of the table.

The formulas count the largest arrays that are held at once. The constants were measured with
`benchmarks/fit_size.py` (peak resident memory, and processor seconds of one thread of a server
processor of 2024, from 0.4 to 18 million rows): memory is right within a factor of 2, seconds
within a factor of 3 on such a processor. Models without a formula are not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from idcf.data.interactions import Ints
from idcf.data.split import Split
from idcf.models.options import LARGE_CATALOG, BayesConfig, OddsConfig, TakeUpConfig
from idcf.models.registry import configure, model_entry, resolve_model
from idcf.training.presets import stage_configs
from idcf.training.size_limits import (
    FOLD_SWEEPS_SHARE,
    LARGE_TABLE,
    LARGE_TABLE_SWEEPS,
    MIN_SAMPLED_ROWS,
    SAMPLED_ROWS_PER_ITEM,
    spectral_rank,
)

_PROCESS = 0.28e9  # bytes of Python with PyTorch
_TABLE_ROW = 28  # bytes: two ids, rating, time
_ID = 170  # bytes of an id in a vocabulary
_KEY_USER_SHARE, _KEY_ROW_SHARE = 0.5, 0.85  # where only the numbers of rows and users are known
_GIB = 2**30


@dataclass(frozen=True)
class TableSize:
    """Numbers that the cost of a fit depends on."""

    rows: int
    users: int
    items: int
    key_rows: int
    key_users: int
    implicit: bool

    @classmethod
    def from_numbers(cls, rows: int, users: int, items: int, implicit: bool) -> TableSize:
        """Return the size of a table of which no more is known: half of the users are key users,
        with 85 % of the rows, as where lengths of histories are lognormal."""
        key_users, key_rows = round(_KEY_USER_SHARE * users), round(_KEY_ROW_SHARE * rows)
        return cls(rows, users, items, key_rows, key_users, implicit)

    @classmethod
    def from_user_counts(
        cls, counts: Ints, items: int, threshold: int, implicit: bool
    ) -> TableSize:
        """Return the size of a table whose users have so many rows."""
        key_counts = counts[counts >= threshold]
        rows, key_rows = int(counts.sum()), int(key_counts.sum())
        return cls(rows, len(counts), items, key_rows, len(key_counts), implicit)

    @classmethod
    def from_split(cls, split: Split) -> TableSize:
        """Return the size of the training table of a split."""
        table, counts = split.train, split.train.user_counts()
        return cls(
            rows=len(table),
            users=len(table.users),
            items=len(table.items),
            key_rows=int(counts[split.key_users].sum()),
            key_users=len(split.key_users),
            implicit=table.implicit,
        )


@dataclass(frozen=True)
class FitCost:
    """The cost of a fit of one model, or of several one after the other."""

    model: str
    size: TableSize
    memory: int  # bytes: the peak of the process
    seconds: float

    def __str__(self) -> str:
        size = self.size
        return (
            f"{self.model}: {size.rows:,} rows, {size.key_users:,} key users, {size.items:,} "
            f"items; needs about {self.memory / _GIB:.1f} GiB and {format_seconds(self.seconds)}"
        )


@dataclass(frozen=True)
class _Work:
    """Bytes of a solver beside the table, bytes of the model it leaves, and processor seconds."""

    memory: float
    model: float
    seconds: float


def estimate_fit(
    name: str,
    size: TableSize,
    options: Mapping[str, Any] | None = None,
    *,
    preset: str = "clean",
    threads: int = 1,
    card_metrics: bool = False,
) -> FitCost | None:
    """Return the cost of `Recommender(name, **options).fit`; None: the model has no formula.

    With ratings, that of the take-up model is added. `card_metrics` trains the model twice.
    """
    name = resolve_model(name, size.implicit)
    if name not in _FORMULAS:
        return None
    work = _model_work(name, size, options, preset)
    memory, seconds = work.memory + work.model, work.seconds
    if card_metrics:
        memory, seconds = memory + work.model, 2 * seconds
    model_bytes, list_model = work.model, model_entry(name).take_up_model
    if list_model in _FORMULAS:
        list_work = _model_work(str(list_model), replace(size, implicit=True), None, preset)
        memory = max(memory, work.model + list_work.memory + list_work.model)
        seconds, model_bytes = seconds + list_work.seconds, model_bytes + list_work.model
    memory = max(memory, 2 * model_bytes)  # a frozen model holds copies for single users
    memory += _PROCESS + _TABLE_ROW * (size.rows + size.key_rows) + _ID * (size.users + size.items)
    return FitCost(name, size, round(memory), seconds / (1 + 0.7 * (threads - 1)))


def _model_work(
    name: str, size: TableSize, options: Mapping[str, Any] | None, preset: str
) -> _Work:
    """Return the work of one solver with these options."""
    stage = stage_configs(name, options, preset=preset, dataset="", query_user_mode="new")[name]
    return _FORMULAS[name](configure(name, stage.options), size)


def _bayes_work(config: BayesConfig, size: TableSize) -> _Work:
    """Return the work of `solvers.bayes`."""
    d, blocks, items = config.embedding_size + 1, config.n_blocks(size.items), size.items
    rows, users, sweeps = size.key_rows, size.key_users, config.sweeps + config.burn_in
    is_large = rows > LARGE_TABLE or items >= LARGE_CATALOG
    if is_large:
        max_rows = max(MIN_SAMPLED_ROWS, SAMPLED_ROWS_PER_ITEM * items)
        share = min(1.0, max_rows / max(rows, 1))
        rows, users = round(share * rows), round(share * users)
        sweeps = round(LARGE_TABLE_SWEEPS * sweeps)
    # moments of the items, features and their basis
    model = 4 * items * (blocks * (d + d * (d + 1) / 2) + config.rank + 4)
    side = 4 * (6 * d + 6 * config.rank)  # bytes of a user or an item: latents, features, vectors
    memory: float = 136 * rows + side * (users + items)
    row_time, matrix_time = 0.27e-6, 3e-6 * (d / 21) ** 2
    if not is_large:
        memory += 4 * d * d * (3 * users + 5 * items)
        row_time, matrix_time = 0.5e-6, 15e-6 * (d / 21) ** 2
    sweeps += round(FOLD_SWEEPS_SHARE * sweeps)
    seconds = 2 + sweeps * (row_time * rows + matrix_time * (users + items))
    return _Work(memory, model, seconds + 3e-6 * rows + 30e-6 * items)


def _take_up_work(config: TakeUpConfig, size: TableSize) -> _Work:
    """Return the work of `solvers.take_up`."""
    items, rows = size.items, size.key_rows
    if items <= config.max_dense_items:
        weights = items * min(items, config.neighbors)
        dense = 8 * items**2 * 8 + 40 * rows + 16 * weights + 0.15e9
        return _Work(dense, 8 * weights, 2 + 45e-6 * rows + 1.4e-6 * items**2)
    width, pairs = min(config.local_neighbors, items), min(config.local_pairs, items)
    rank = spectral_rank(config, size.key_users, items)
    model = 8 * items * width + 8 * items * rank
    side = min(size.key_users, items)  # of the Lanczos vectors of the part of low rank
    memory = 8 * items * pairs + 48 * items * width + 40 * rows + 24 * side * rank + 0.5e9
    seconds = 2 + 7e-6 * rows + 200e-6 * items
    return _Work(memory, model, seconds + rank * (10e-9 * rows + 2e-6 * items))


def _odds_work(config: OddsConfig, size: TableSize) -> _Work:
    """Return the work of `solvers.odds`, which inverts a matrix of the smaller side."""
    side, items = min(size.key_users, size.items), size.items
    model = 16 * items * min(items, 1000)
    memory = 8 * side**2 * 5 + 2 * model + 60 * size.key_rows
    return _Work(memory, model, 2 + 60e-6 * size.key_rows + 1.3e-10 * side**3)


_FORMULAS: Mapping[str, Callable[[Any, TableSize], _Work]] = {
    "idcf-bayes": _bayes_work,
    "idcf-takeup": _take_up_work,
    "idcf-odds": _odds_work,
}


def format_seconds(seconds: float) -> str:
    """Return a duration in words, such as "40 s", "3 min" or "2.5 h"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
