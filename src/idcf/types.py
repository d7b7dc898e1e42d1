"""Data structures that several packages exchange: histories, users, batches, embeddings, domain.

A `History` is what users rated, a `Ragged` any other rows of different lengths, such as the raters
of each item. Functions that need neither ratings nor items accept both: `RaggedRows`.

Shape letters used in the whole package:
B users in a batch, M rows to score, K candidate items per row, D embedding size,
N stored entries of all histories together, U users, I items, L rating levels,
R rows of a ragged array.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

LossTerms = dict[str, Tensor]  # named scalars, whose sum a gradient step minimizes
Values = TypeVar("Values", Tensor, None)
_MIN_STD = 2.0**-30  # of ratings: squares of smaller numbers are soon 0 in single precision


@dataclass(frozen=True, slots=True)
class Ragged(Generic[Values]):
    """R rows of different lengths as a CSR array, without padding.

    The entries of row r are `indices[offsets[r]:offsets[r + 1]]` and the values at these positions.
    A `Ragged[Tensor]` has a value for each entry, a `Ragged[None]` has none.
    """

    indices: Tensor  # int64 or int32 [N]
    values: Values  # float [N], or None
    offsets: Tensor  # int64 [R + 1]

    @staticmethod
    def empty(n_rows: int) -> Ragged[Tensor]:
        """Rows without entries."""
        return History.empty(n_rows).as_ragged()

    def lengths(self) -> Tensor:
        """Number of entries of each row, int64 [R]."""
        return self.offsets.diff()

    def owner(self) -> Tensor:
        """Row that each stored entry belongs to, int64 [N]."""
        return _owner(self.offsets, len(self.indices))

    def to(self, device: torch.device) -> Ragged[Values]:
        """A copy on `device`."""
        indices, offsets = (x.to(device, non_blocking=True) for x in (self.indices, self.offsets))
        values = None if self.values is None else self.values.to(device, non_blocking=True)
        return Ragged(indices, values, offsets)


class History(NamedTuple):
    """Rated items of B users as a ragged (CSR) array, without padding.

    The entries of user b are `items[offsets[b]:offsets[b + 1]]` and the values at these positions.
    """

    items: Tensor  # int64 [N]
    values: Tensor  # float32 [N]: the rating, or 1 for implicit feedback
    offsets: Tensor  # int64 [B + 1]

    @classmethod
    def empty(cls, users: int, device: torch.device | None = None) -> Self:
        """Histories without entries for `users` users."""
        return cls(
            torch.empty(0, dtype=torch.int64, device=device),
            torch.empty(0, device=device),
            torch.zeros(users + 1, dtype=torch.int64, device=device),
        )

    def lengths(self) -> Tensor:
        """Number of entries of each user, int64 [B]."""
        return self.offsets.diff()

    def owner(self) -> Tensor:
        """Index b of the user that each stored entry belongs to, int64 [N]."""
        return _owner(self.offsets, len(self.items))

    def to(self, device: torch.device) -> History:
        """A copy on `device`."""
        return History(*(x.to(device, non_blocking=True) for x in self))

    @property
    def indices(self) -> Tensor:
        """The items: what the entries point at, as in every `RaggedRows`."""
        return self.items

    def as_ragged(self) -> Ragged[Tensor]:
        """The histories as B rows that point at items."""
        return Ragged(self.items, self.values, self.offsets)


RaggedRows = Ragged[Any] | History  # R rows that point at something


def _owner(offsets: Tensor, n_entries: int) -> Tensor:
    """Return the row that each of the entries [N] of a CSR array belongs to."""
    rows = torch.arange(len(offsets) - 1, device=offsets.device)
    return rows.repeat_interleave(offsets.diff(), output_size=n_entries)


class EncodedHistory(NamedTuple):
    """Inputs that IDCF derives from B histories; none of them depends on a trained weight."""

    query: Tensor  # [B, Q]: d_u'
    owner: Tensor  # int64 [N]: History.owner
    bias_scale: Tensor  # [B]: factor that turns a sum of residuals into a shrunken bias
    empty_history: Tensor | None  # bool [B, 1]; None if no user has an empty history


@dataclass(frozen=True, slots=True)
class Users:
    """B users to score: their rows in the training table, histories and features."""

    ids: Tensor  # int64 [B]; -1 for a user who was not in the training table
    history: History  # of B users
    features: Tensor | None = None  # float32 [B, F]

    def __len__(self) -> int:
        return len(self.ids)

    def anonymous(self) -> Self:
        """A copy with all ids set to -1, which is the input of an inductive model."""
        return type(self)(torch.full_like(self.ids, -1), self.history, self.features)

    def weighted(self, weights: Tensor | None) -> Users:
        """A copy whose history values are multiplied by weights [N]; None: the users themselves."""
        if weights is None:
            return self
        values = self.history.values * weights.to(self.history.values.device)
        return Users(self.ids, self.history._replace(values=values), self.features)

    def to(self, device: torch.device) -> Users:
        """A copy on `device`."""
        features = None if self.features is None else self.features.to(device)
        ids = self.ids.to(device, non_blocking=True)
        return Users(ids, self.history.to(device), features)


@dataclass(frozen=True, slots=True)
class Batch:
    """M rows to score. Each user is stored once, whatever the number of their rows."""

    users: Users  # B of them
    owner: Tensor  # int64 [M]: index into `users` of the user each row belongs to
    items: Tensor  # int64 [M, K]
    labels: Tensor  # float32 [M, K]
    # size of the whole batch where this is the share of one of several processes, else 0
    n_global_rows: int = 0
    n_global_users: int = 0

    def to(self, device: torch.device) -> Batch:
        """A copy on `device`, or the batch itself if it is there already."""
        if self.items.device == device:
            return self
        owner, items, labels = (
            x.to(device, non_blocking=True) for x in (self.owner, self.items, self.labels)
        )
        return Batch(
            self.users.to(device), owner, items, labels, self.n_global_rows, self.n_global_users
        )

    @property
    def n_rows(self) -> int:
        """Number of rows in the batch of all processes: the denominator of a mean loss."""
        return self.n_global_rows or len(self.items)

    @property
    def n_users(self) -> int:
        """Number of users in the batch of all processes."""
        return self.n_global_users or len(self.users)


class Embeddings(NamedTuple):
    """Vectors and biases of users or of items."""

    vector: Tensor  # [..., D]
    bias: Tensor  # [...]

    def view(self, shape: torch.Size) -> Embeddings:
        """The embeddings with leading dimensions `shape`."""
        return Embeddings(self.vector.view(*shape, -1), self.bias.view(shape))

    def take(self, rows: Tensor) -> Embeddings:
        """The embeddings of these rows."""
        return Embeddings(self.vector.index_select(0, rows), self.bias.index_select(0, rows))


class CohortWeights(NamedTuple):
    """How much each of C cohorts of key users resembles each of B users."""

    weights: Tensor  # [B, C]; rows sum to 1
    sizes: Tensor  # [C]: key users in the cohort; an empty cohort has 0
    item_rows: Tensor  # int64 [C, K]: items that describe the cohort


@dataclass(frozen=True, slots=True)
class Domain:
    """Description of a training table for the constructor of a model, from `Interactions.domain`.

    A saved model is loaded with one from its manifest, in which `raters` is empty.
    """

    n_users: int  # all users of the table
    n_items: int
    mean: float  # of the ratings; 0 for implicit feedback
    levels: tuple[float, ...]  # the rating values that occur; (1,) for implicit feedback
    implicit: bool  # whether the feedback is implicit
    raters: Ragged[Tensor]  # I rows: for each item the users who rated it, with their ratings
    n_user_features: int = 0  # F; 0: no features
    item_features: Tensor | None = None  # [I, G]
    user_features: Tensor | None = None  # [U, F]
    # how many features each column of the side table became; (): all belong together
    user_feature_widths: tuple[int, ...] = ()
    item_feature_widths: tuple[int, ...] = ()
    std: float = 1.0  # standard deviation of the ratings; 1 for implicit feedback

    @property
    def rating_unit(self) -> float:
        """By what solvers divide the ratings; see `rating_unit`."""
        return rating_unit(self.std)


def rating_unit(std: float) -> float:
    """Return the power of two nearest to a standard deviation; 1 if that is 0.

    The priors and penalties of solvers are made for ratings of about this spread. Divided by a
    power of two, numbers keep their digits.
    """
    return 2.0 ** round(math.log2(max(std, _MIN_STD))) if std > 0 else 1.0


def select_rows(ragged: Ragged[Values], rows: Tensor) -> Ragged[Values]:
    """Select some rows of a ragged array, in the order of `rows` int64 [R']."""
    entries, offsets = _entries_of_rows(ragged.offsets, rows, None)
    values = None if ragged.values is None else ragged.values[entries]
    return Ragged(ragged.indices[entries], values, offsets)


def select_histories(history: History, rows: Tensor, n_entries: int | None = None) -> History:
    """Select the histories of some users, in the order of `rows` int64 [B'].

    Pass their total number of entries if it is known; to count them waits for the GPU.
    """
    entries, offsets = _entries_of_rows(history.offsets, rows, n_entries)
    return History(history.items[entries], history.values[entries], offsets)


def _entries_of_rows(offsets: Tensor, rows: Tensor, n_entries: int | None) -> tuple[Tensor, Tensor]:
    """Return the positions of the entries of some rows of a CSR array, and their new offsets."""
    lengths = offsets.diff()[rows]
    new_offsets = torch.zeros(len(rows) + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(lengths, 0, out=new_offsets[1:])
    shift = offsets[rows] - new_offsets[:-1]
    n_entries = int(new_offsets[-1]) if n_entries is None else n_entries
    entries = torch.arange(n_entries, device=rows.device) + shift.repeat_interleave(
        lengths, output_size=n_entries
    )
    return entries, new_offsets
