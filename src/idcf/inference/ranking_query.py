"""A request for the best items of one user: the history as rows, filters and options."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from idcf.data.history_reader import NewUser
from idcf.data.interactions import Floats, Ints
from idcf.inference.recency import (
    Recency,
    recency_weights,
    require_order,
    stacked_recency_weights,
)
from idcf.inference.reranking import pool_size


class ListOptions(TypedDict, total=False):
    """Options of a recommendation list in item ids, see `Recommender.recommend`."""

    n: int
    filter_seen: bool
    candidates: Iterable[Any] | None
    exclude: Iterable[Any] | None
    return_std: bool
    quality: float | None
    diversity: float
    damping: float
    recency: Recency
    where: Mapping[str, Any] | None


class Filters(NamedTuple):
    """The items that may be recommended, as rows of the catalogue."""

    candidates: Ints | None = None  # None: all items
    excluded: Ints | None = None  # items never recommended; None: no items
    filter_seen: bool = True  # whether the items of the history are excluded
    n_unfiltered: int = 0  # candidates before the filter by attributes; 0: there is no such filter

    def excluded_rows(self, seen: Ints) -> Ints:
        """Return the rows of all items excluded for a user with these seen items."""
        if self.excluded is None:
            return seen if self.filter_seen else seen[:0]
        return np.concatenate([seen, self.excluded]) if self.filter_seen else self.excluded


class RankingQuery(NamedTuple):
    """A request for the n best items of one user."""

    new_user: NewUser
    n: int  # number of items
    filters: Filters = Filters()  # all items but those of the history by default
    return_std: bool = False  # add standard deviations, if the model has a posterior
    user_id: Hashable = None  # copied into the result
    quality: float | None = None  # see `idcf.inference.benefit`; None: the default
    diversity: float = 0.0  # see `idcf.inference.reranking`, as for damping
    damping: float = 0.0
    recency: float = 0.0  # see `idcf.inference.recency`

    def pool_size(self) -> int:
        """Return how many items must be ranked, so that n can be chosen from them."""
        n_matches = 0 if self.filters.candidates is None else len(self.filters.candidates)
        return pool_size(self.n, self.diversity, n_matches, self.filters.n_unfiltered)

    def recency_weights(self) -> Floats | None:
        """Return the weights of the items of the history; None: all are 1."""
        if not self.recency:
            return None
        return recency_weights(require_order(self.new_user.n_later), self.recency)


def block_size(queries: Sequence[RankingQuery]) -> int:
    """Return how many items of each user must be ranked."""
    return max(x.pool_size() for x in queries)


def damping_of(queries: Sequence[RankingQuery]) -> Tensor | None:
    """Return the damping of each query [B]; None: there is none."""
    return torch.tensor([x.damping for x in queries]) if any(x.damping for x in queries) else None


def recency_weights_of(queries: Sequence[RankingQuery]) -> Tensor | None:
    """Return the weights of the items of all histories, laid end to end; None: all are 1."""
    if not any(x.recency for x in queries):
        return None
    n_later = [
        require_order(x.new_user.n_later) if x.recency else np.zeros_like(x.new_user.item_rows)
        for x in queries
    ]
    lengths, recency = [len(x) for x in n_later], [x.recency for x in queries]
    return torch.from_numpy(stacked_recency_weights(np.concatenate(n_later), lengths, recency))


def shared_candidates(queries: Sequence[RankingQuery]) -> Ints | None:
    """Return the candidates of all queries if they are one array, else None."""
    first = queries[0].filters.candidates
    return first if all(x.filters.candidates is first for x in queries) else None
