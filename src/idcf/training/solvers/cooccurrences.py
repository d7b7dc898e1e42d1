"""What `ItemRelation` reads of the rows of users: sums over users, and samples of rows.

A source is a matrix x [U, I] of zeros and ones, whose rows are users. It may be in memory
(`MatrixSource`) or in shards (`idcf.training.sharded.cooccurrences`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from torch import Tensor

from idcf.data.interactions import Ints
from idcf.rng import random_stream
from idcf.training.solvers.nearest_items import (
    MAX_PAIRED_ITEMS,
    NearestItems,
    find_nearest_items,
    sample_long_rows,
)

Array = NDArray[np.float64]
LengthWeight = Callable[[Array], Array]  # weights of users, by their numbers of items


class CooccurrenceSource(Protocol):
    """Rows x [U, I] of zeros and ones, or of zeros and weights, none of which is empty."""

    n_users: int
    n_items: int
    n_entries: int
    item_counts: Ints  # [I]: users who have the item

    def length_counts(self) -> tuple[Ints, Ints]:
        """Return the different numbers of items of a user, and how many users have each."""
        ...

    def weighted_gram(self, weight: LengthWeight) -> Tensor:
        """Return Σ_u weight(|x_u|) x_uᵀ x_u [I, I] in float64."""
        ...

    def nearest_items(self, n_nearest: int) -> NearestItems:
        """Return the nearest items of each item; of very long rows a part is read."""
        ...

    def sampled_rows(self, max_entries: int) -> csr_array:
        """Return random rows with about `max_entries` entries, all if there are no more."""
        ...


class MatrixSource:
    """Rows in memory."""

    def __init__(self, x: csr_array) -> None:
        self.x = x
        self.n_users, self.n_items = x.shape
        self.n_entries = x.nnz
        self.item_counts: Ints = np.bincount(x.indices, minlength=self.n_items)

    def length_counts(self) -> tuple[Ints, Ints]:
        """Return the different lengths of rows, and how many rows have each."""
        lengths, counts = np.unique(np.diff(self.x.indptr), return_counts=True)
        return lengths.astype(np.int64), counts

    def weighted_gram(self, weight: LengthWeight) -> Tensor:
        """Return Σ_u weight(|x_u|) x_uᵀ x_u [I, I]."""
        lengths = np.maximum(np.diff(self.x.indptr), 1).astype(np.float64)
        rows = diags_array(weight(lengths)) @ self.x.astype(np.float64)
        return torch.from_numpy((self.x.T @ rows).toarray())

    def nearest_items(self, n_nearest: int) -> NearestItems:
        """Return the nearest items of each item."""
        rng = random_stream(0, "long histories")
        return find_nearest_items(sample_long_rows(self.x, MAX_PAIRED_ITEMS, rng), n_nearest)

    def sampled_rows(self, max_entries: int) -> csr_array:
        """Return random rows."""
        if self.x.nnz <= max_entries:
            return self.x
        n_rows = round(self.n_users * max_entries / self.x.nnz)
        rows = random_stream(0, "spectral rows").permutation(self.n_users)[:n_rows]
        return csr_array(self.x[np.sort(rows)])
