"""The few shapes that travel between rooms.

Shape letters used in the whole package:
B users in a batch, M rows to score, K candidate items per row, D embedding size,
N stored entries of all histories together, U users, I items, L rating levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor


class History(NamedTuple):
    """Ragged rated items of B users, CSR style: no padding, so no padding to mask."""

    items: Tensor  # int64 [N]
    values: Tensor  # float32 [N]: the rating, or 1 where there are no ratings
    offsets: Tensor  # int64 [B + 1]

    @classmethod
    def empty(cls, users: int, device: torch.device | None = None) -> Self:
        return cls(
            torch.empty(0, dtype=torch.int64, device=device),
            torch.empty(0, device=device),
            torch.zeros(users + 1, dtype=torch.int64, device=device),
        )

    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def owner(self) -> Tensor:
        """Row of each stored entry, int64 [N]."""
        rows = torch.arange(len(self.offsets) - 1, device=self.offsets.device)
        return rows.repeat_interleave(self.lengths(), output_size=len(self.items))

    def to(self, device: torch.device) -> History:
        return History(*(x.to(device, non_blocking=True) for x in self))


class Read(NamedTuple):
    """What a model takes from B histories that no weight in training can change."""

    query: Tensor  # [B, Q]
    owner: Tensor  # int64 [N]: History.owner
    share: Tensor  # [B]: what a sum of residuals is multiplied by to be a bias
    silent: Tensor | None  # bool [B, 1], where anybody has no history


@dataclass(frozen=True, slots=True)
class Users:
    """What is known of B users when they are scored."""

    ids: Tensor  # int64 [B]; -1 for a user never seen in training
    history: History
    features: Tensor | None = None  # float32 [B, F]

    def __len__(self) -> int:
        return len(self.ids)

    def anonymous(self) -> Self:
        """The same people, known only by what they did: how an inductive model must see them."""
        return type(self)(torch.full_like(self.ids, -1), self.history, self.features)

    def to(self, device: torch.device) -> Users:
        features = None if self.features is None else self.features.to(device)
        ids = self.ids.to(device, non_blocking=True)
        return Users(ids, self.history.to(device), features)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to score. A user stands here once, however many of the rows are theirs."""

    users: Users  # B of them
    owner: Tensor  # int64 [M]: which of the users each row belongs to
    items: Tensor  # int64 [M, K]
    labels: Tensor  # float32 [M, K]
    of_rows: int = 0  # rows of the whole batch, where this is one process's share of it
    of_users: int = 0

    def to(self, device: torch.device) -> Batch:
        if self.items.device == device:
            return self
        owner, items, labels = (
            x.to(device, non_blocking=True) for x in (self.owner, self.items, self.labels)
        )
        return Batch(self.users.to(device), owner, items, labels, self.of_rows, self.of_users)

    @property
    def n_rows(self) -> int:
        return self.of_rows or len(self.items)

    @property
    def n_users(self) -> int:
        return self.of_users or len(self.users)


class Embedded(NamedTuple):
    vector: Tensor  # [..., D]
    bias: Tensor  # [...]

    def view(self, shape: torch.Size) -> Embedded:
        return Embedded(self.vector.view(*shape, -1), self.bias.view(shape))

    def take(self, rows: Tensor) -> Embedded:
        return Embedded(self.vector.index_select(0, rows), self.bias.index_select(0, rows))


@dataclass(frozen=True, slots=True)
class Domain:
    """All a model may know of the training data when it is built."""

    n_users: int
    n_items: int
    mean: float  # of the ratings; 0 for implicit feedback
    levels: tuple[float, ...]  # the rating values that occur; (1,) for implicit feedback
    implicit: bool
    raters: History  # for each item, the users who rated it: I rows
    n_user_features: int = 0
    item_features: Tensor | None = None  # [I, F]


def pick(history: History, rows: Tensor, total: int | None = None) -> History:
    """The histories of some of the users, in the order asked for. Who knows how many entries they
    have together says so: then nobody waits for a GPU to count them."""
    lengths = history.lengths()[rows]
    offsets = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    shift = history.offsets[rows] - offsets[:-1]
    total = int(offsets[-1]) if total is None else total
    index = torch.arange(total, device=rows.device) + shift.repeat_interleave(
        lengths, output_size=total
    )
    return History(history.items[index], history.values[index], offsets)
