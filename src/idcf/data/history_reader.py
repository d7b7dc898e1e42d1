"""What newcomers did, in whatever form it comes, becomes rows and values.

The border for the ids of people who are met after training: a dict, a list or a table goes in.
Knows no model.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from math import inf, isfinite
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from idcf.data.columns import warn
from idcf.data.interactions import Floats, Ints, Vocab
from idcf.errors import DataError, unknown
from idcf.types import History, Users

Pairs = Collection[tuple[Any, Any]]  # (item id, rating)
_FORMS = (
    "a history is a dict {item_id: rating}, a list of (item_id, rating), a list of item ids "
    "(implicit feedback), or a table with columns item_id and rating"
)
_LOOKED_AT = 20_000  # names compared with one that is unknown


class Read(NamedTuple):
    """One history inside: known items in ascending order, each once, so order cannot matter."""

    rows: Ints
    values: Floats
    unknown: tuple[Hashable, ...] = ()
    features: Floats | None = None  # what else is known of them [F]

    @property
    def told(self) -> bool:
        """Is anything known at all?"""
        return bool(len(self.rows)) or (self.features is not None and bool(self.features.any()))


_NOTHING = Read(np.empty(0, np.int64), np.empty(0, np.float32))


def lookup(vocab: Vocab) -> dict[Hashable, int]:
    """Row of every id, whether it comes as text or as a number."""
    rows: dict[Hashable, int] = {x: n for n, x in enumerate(vocab.ids)}
    for n, x in enumerate(vocab.ids):
        if not isinstance(x, str):
            rows.setdefault(str(x), n)
        elif len(x) < 20 and x.lstrip("-").isdecimal() and str(int(x)) == x:  # "007" is a name
            rows.setdefault(int(x), n)
    return rows


def named(items: Vocab, titles: Mapping[Any, str] | None) -> tuple[str | None, ...]:
    """The title of each item, where there is one."""
    out: list[str | None] = [None] * len(items)
    rows = lookup(items) if titles else {}
    for x, title in (titles or {}).items():
        if x in rows:
            out[rows[x]] = str(title)
    return tuple(out)


def is_many(history: Any) -> bool:
    """A list of histories, or a table of several users? In a list, a pair is a tuple."""
    if isinstance(history, list):
        return bool(history) and isinstance(history[0], Mapping | list)
    names: Any = getattr(history, "column_names", None)  # Arrow: its `columns` are the data
    return "user_id" in (getattr(history, "columns", ()) if names is None else names)


class Reader:
    """Reads histories over one vocabulary of items, of one scale of ratings."""

    def __init__(
        self,
        items: Vocab,
        *,
        implicit: bool,
        levels: Sequence[float] = (),
        titles: Sequence[str | None] = (),
    ) -> None:
        self.ids, self.titles, self.implicit = items.ids, titles, implicit
        self._row = lookup(items)
        low, high = (min(levels), max(levels)) if levels else (-inf, inf)
        room = max(
            high - low, 1.0
        )  # rare ratings may never have occurred; another scale is refused
        self._low, self._high = (0.0, inf) if implicit else (low - room, high + room)

    @property
    def limits(self) -> tuple[float, float]:
        """Ratings beyond these are of another scale."""
        return self._low, self._high

    def one(self, history: Any) -> Read:
        """The history of one newcomer. Of an item that is named twice the last rating counts."""
        if history is None:
            return _NOTHING
        if isinstance(history, Mapping):
            return self.pairs(history.items())
        if isinstance(history, np.ndarray):
            history = history.tolist()
        if isinstance(history, list | tuple | set | frozenset | range):
            return self.pairs(self._listed(list(history)))
        return self.pairs(self._columns(history))

    def many(self, histories: Any) -> tuple[list[Hashable], list[Read]]:
        """The histories of a list, or of a table with a column user_id, in order of appearance."""
        if isinstance(histories, list | tuple):
            return [None] * len(histories), [self.one(x) for x in histories]
        frame = _frame(histories)
        if "user_id" not in frame.columns:
            raise DataError(f"table: {unknown('column', 'user_id', frame.columns)}")
        each: dict[Hashable, list[tuple[Any, Any]]] = {}
        for user, pair in zip(frame["user_id"].to_list(), self._columns(frame), strict=True):
            each.setdefault(user, []).append(pair)
        return list(each), [self.pairs(pairs) for pairs in each.values()]

    def rows(self, ids: Iterable[Any], what: str, *, strict: bool = True) -> Ints:
        """Rows of the known among the ids; with `strict`, an error where none of them is."""
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise DataError(f"{what} must be a list of item ids, got {ids!r}")
        asked = list(ids)
        try:
            found = {self._row.get(x, -1) for x in asked} - {-1}
        except TypeError:
            raise DataError(f"{what} must be a list of item ids, got {asked!r:.200}") from None
        if strict and asked and not found:
            self._refuse_unknown(asked, what)
        return np.array(sorted(found), np.int64)

    def knows(self, item: Any) -> bool:
        """Is this an id of the vocabulary? Costs nothing, unlike the hint of an error."""
        return isinstance(item, Hashable) and item in self._row

    def row(self, item: Any) -> int:
        found = self._row.get(item, -1) if isinstance(item, Hashable) else -1
        if found < 0:
            self._refuse_unknown([item], "item")
        return found

    def pairs(self, pairs: Pairs) -> Read:
        """The history of one newcomer as (item id, rating), without further ado."""
        get, strange = self._row.get, ()
        try:
            told = {get(x, -1): float(v) for x, v in pairs}
        except (TypeError, ValueError, OverflowError):
            self._refuse(pairs)
        if -1 in told:
            strange = tuple(dict.fromkeys(x for x, _ in pairs if x not in self._row))
            del told[-1]
            if not told:
                self._refuse_unknown(strange, "history")
        if not told:
            return _NOTHING
        values = told.values()
        fits = self._low <= min(values) and max(values) <= self._high and isfinite(sum(values))
        if not fits:
            self._refuse(pairs)
        if self.implicit:
            told = {row: 1.0 for row, value in told.items() if value}
        rows = sorted(told)
        return Read(
            np.array(rows, np.int64), np.array([told[r] for r in rows], np.float32), strange
        )

    def _listed(self, entries: list[Any]) -> Pairs:
        paired = [isinstance(x, tuple | list) and len(x) == 2 for x in entries]
        if all(paired):
            return entries
        if any(paired):
            raise DataError(f"the history mixes ids and pairs ({entries!r:.80}); {_FORMS}")
        if not self.implicit:
            raise DataError(
                f"the model was trained on ratings, so ratings are needed with the items "
                f"{entries!r:.80}: pass {{item_id: rating}}"
            )
        return [(x, 1.0) for x in entries]

    def _columns(self, table: Any) -> Pairs:
        frame = _frame(table)
        needed = ("item_id",) if self.implicit else ("item_id", "rating")
        for name in needed:
            if name not in frame.columns:
                raise DataError(f"history: {unknown('column', name, frame.columns)}")
        items = frame["item_id"].to_list()
        rated = "rating" in frame.columns
        values = frame["rating"].to_list() if rated else [1.0] * len(items)
        return list(zip(items, values, strict=True))

    def _refuse(self, pairs: Pairs) -> NoReturn:
        """Name the first entry that cannot be read."""
        for x, value in pairs:
            if not isinstance(x, Hashable):
                raise DataError(f"item id {x!r:.80} is of type {type(x).__name__}; {_FORMS}")
            if value is None:
                raise DataError(f"item {x!r:.80} has no rating; the model was trained on ratings")
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise DataError(f"rating {value!r:.80} of item {x!r} is not a number") from None
            if not isfinite(number):
                raise DataError(f"rating {value!r} of item {x!r} is not finite; leave the item out")
            if not self._low <= number <= self._high:
                scale = "counts from 0" if self.implicit else "the scale it was trained on"
                raise DataError(f"rating {value!r} of item {x!r} is far outside {scale}")
        raise DataError(f"{pairs!r:.80} cannot be read; {_FORMS}")

    def _refuse_unknown(self, ids: Sequence[Any], what: str) -> NoReturn:
        first = str(ids[0])
        near = self.nearest(first)
        hint = f"; nearest known: {', '.join(near)}" if near else ""
        are = "is" if len(ids) == 1 else f"and the {len(ids) - 1} others are"
        raise DataError(f"{what}: {first!r:.80} {are} not known to the model{hint}")

    def nearest(self, text: str, n: int = 3) -> list[str]:
        """Known titles and ids that look like this text, for a hint."""
        names = [str(x) for x in islice(self.ids, _LOOKED_AT)]
        names += [x for x in islice(self.titles, _LOOKED_AT) if x]
        folded = {x.casefold(): x for x in names}
        near = get_close_matches(text.casefold(), folded, n=n)
        inside = (x for low, x in folded.items() if len(text) > 2 and text.casefold() in low)
        return list(dict.fromkeys([*(folded[x] for x in near), *islice(inside, n)]))[:n]


def report(reads: Sequence[Read]) -> None:
    """Where an answer has no place for it, what was unknown is said as a warning."""
    strange = [x for read in reads for x in read.unknown]
    if strange:
        warn(
            f"{len(strange)} items of the history are unknown to the model, such as {strange[0]!r}"
        )


def ragged(lists: Sequence[Ints]) -> History:
    """Rows of items of some people, without ratings."""
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(x) for x in lists], out=offsets[1:])
    items = torch.from_numpy(np.concatenate(lists) if lists else np.empty(0, np.int64))
    return History(items, torch.ones(len(items)), torch.from_numpy(offsets))


def as_users(reads: Sequence[Read]) -> Users:
    """Newcomers as the models see them: no identity, ragged histories."""
    offsets = np.zeros(len(reads) + 1, np.int64)
    np.cumsum([len(x.rows) for x in reads], out=offsets[1:])
    if not reads:
        return Users(torch.empty(0, dtype=torch.int64), History.empty(0))
    history = History(
        torch.from_numpy(np.concatenate([x.rows for x in reads])),
        torch.from_numpy(np.concatenate([x.values for x in reads])),
        torch.from_numpy(offsets),
    )
    return Users(torch.full((len(reads),), -1), history, _features(reads))


def _features(reads: Sequence[Read]) -> Tensor | None:
    """[B, F], 0 for those of whom nothing is told."""
    told = [x.features for x in reads if x.features is not None]
    if not told:
        return None
    none = np.zeros_like(told[0])
    rows = [none if x.features is None else x.features for x in reads]
    return torch.from_numpy(np.stack(rows))


def _frame(table: Any) -> Any:
    import narwhals as nw

    try:
        return nw.from_native(table, eager_only=True)
    except TypeError:
        raise DataError(f"cannot read {type(table).__name__} as a history; {_FORMS}") from None
