"""Ranked items of one user or of many, as rows of the catalogue, with what is known of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from idcf.inference.topk import RankedItems


class RankedList(NamedTuple):
    """The best items of one user, best first, as rows of the catalogue."""

    item_rows: list[int]
    scores: list[float]
    std: list[float] | None = None
    probability: list[float] | None = None
    rating: list[float] | None = None
    rating_if_shown: list[float] | None = None

    def first(self, n: int) -> RankedList:
        """Return the first n items, of which there may be more."""
        return RankedList(*(None if x is None else x[:n] for x in self))  # type: ignore[arg-type]


class RankedBlock(NamedTuple):
    """The k best items of B users, and what is known of them; None: unknown."""

    ranked: RankedItems
    probability: Tensor | None  # [B, k], as the next ones
    rating: Tensor | None
    std: Tensor | None = None
    rating_if_shown: Tensor | None = None

    def take(self, positions: Tensor) -> RankedBlock:
        """Return the items at some positions [B, n] of the lists."""
        scores, item_rows = (x.gather(1, positions) for x in self.ranked)
        others = (None if x is None else x.gather(1, positions) for x in self[1:])
        return RankedBlock(RankedItems(scores, item_rows), *others)

    def lists(self) -> Iterator[RankedList]:
        """Yield the list of each user."""
        scores, item_rows = (x.tolist() for x in self.ranked)
        nothing: list[None] = [None] * len(item_rows)
        others = [nothing if x is None else x.tolist() for x in self[1:]]
        probability, rating, std, if_shown = others
        for columns in zip(item_rows, scores, std, probability, rating, if_shown, strict=True):
            yield RankedList(*columns)
