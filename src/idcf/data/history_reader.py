"""Read the histories and features of new users, in every form that a caller may pass.

Translates external item ids into rows. Does not know any model.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import compress, islice, pairwise
from math import inf, isfinite
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch

from idcf.data.column_names import resolve_columns
from idcf.data.columns import ColumnOrigin, to_dataframe, to_seconds, warn_about_data
from idcf.data.features import FeatureEncoder
from idcf.data.interactions import Floats, Ints, Vocab, offsets_from_lengths, row_lookup
from idcf.errors import DataError, unknown_name_message
from idcf.types import History, Users

ItemRatingPairs = Collection[tuple[Any, Any]]  # (item id, rating)
_ACCEPTED_FORMS = (
    "a history is a dict {item_id: rating}, a list of (item_id, rating) or of (item_id, rating, "
    "timestamp), a list of item ids (implicit feedback), or a table with columns item_id and rating"
)
_MAX_NAMED_USERS = 5  # in a message
_MAX_COMPARED_NAMES = 20_000  # ids and titles, each, that are compared with an unknown id


class NewUser(NamedTuple):
    """The parsed history and features of one new user. Item rows are sorted and distinct, so the
    order of the history does not matter; `n_later` tells it to those who want to know."""

    item_rows: Ints  # [n]: rows of the catalogue
    values: Floats  # rating of each item, or 1 for implicit feedback
    unknown_items: tuple[Hashable, ...] = ()  # external ids that the model does not know
    features: Floats | None = None  # [F]
    n_later: Ints | None = None  # [n]: items of the history that are later; None: no order is known
    ignored_ratings: bool = False  # different ratings, which implicit feedback does not read

    @property
    def has_data(self) -> bool:
        """Whether there is a known item, or a feature that differs from the average."""
        return len(self.item_rows) > 0 or (self.features is not None and bool(self.features.any()))


_EMPTY_NEW_USER = NewUser(
    np.empty(0, np.int64), np.empty(0, np.float32), n_later=np.empty(0, np.int64)
)


def has_many_users(history: Any, columns: Mapping[str, str] | None = None) -> bool:
    """Whether an input holds several histories: a list of histories, or a table with `user_id` (see
    `resolve_columns`). A list of tuples is one history: a tuple is an (item, rating) pair."""
    if hasattr(history, "collect"):
        raise DataError(f"a history cannot be a {type(history).__name__}; collect() it first")
    if hasattr(history, "tocsr"):
        return True
    if isinstance(history, list):
        return bool(history) and isinstance(history[0], Mapping | list)
    names: Any = getattr(history, "column_names", None)  # `columns` of an Arrow table are its data
    names = list(getattr(history, "columns", ()) if names is None else names)
    return "user_id" in resolve_columns(names, "table", columns, ["user_id"])


def count_users(histories: Any, columns: Mapping[str, str] | None = None) -> int:
    """Number of users of an input that `has_many_users`."""
    if hasattr(histories, "tocsr"):
        return int(histories.shape[0])
    if isinstance(histories, list):
        return len(histories)
    frame = to_dataframe(histories, f"cannot read {type(histories).__name__} as a table")
    name = resolve_columns(frame.columns, "history", columns, ["user_id"])["user_id"]
    return int(frame[name].n_unique())


def require_one_user(history: Any, columns: Mapping[str, str] | None = None) -> None:
    """Raise DataError for the histories of several users, which would be read as those of one."""
    if not has_many_users(history, columns):
        return
    is_list = isinstance(history, list)
    n_users = count_users(history, columns)
    if n_users > 1 or is_list:
        users = "1 user" if n_users == 1 else f"{n_users:,} users"
        one = "one history" if is_list else "the rows of one user"
        raise DataError(
            f"the {'list' if is_list else 'table'} holds histories of {users}, and this method "
            f"takes one user at a time; pass {one}, or call recommend or embed"
        )


class HistoryReader:
    """Parser of histories for the items that a model knows and the rating scale of its data.
    Ratings off the scale of the `levels` are rejected; `titles`, by row, are hints in errors;
    `columns` are the names that tables had for roles in `fit`."""

    def __init__(
        self,
        items: Vocab,
        *,
        implicit: bool,
        levels: Sequence[float] = (),
        titles: Sequence[str | None] = (),
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.item_ids, self.titles, self.implicit = items.ids, titles, implicit
        self.columns = columns or {}
        self._row_by_id = row_lookup(items)
        self.rating_limits = (0.0, inf)  # lowest and highest rating that is accepted
        self.scale = "counts from 0"  # for messages
        if not implicit:
            self.rating_limits = _rating_limits(levels)
            if levels:
                self.scale = f"the scale of the model, {min(levels):g} to {max(levels):g}"

    def read_history(self, history: Any) -> NewUser:
        """Parse the history of one new user, in one of the `_ACCEPTED_FORMS`, or None if empty. If
        an item occurs twice, its last rating counts; unknown items are listed apart. Raises
        DataError if the history has another form or a rating cannot be used. The order is that of
        the timestamps or, without any, the one given, oldest first; a set has none."""
        if history is None:
            return _EMPTY_NEW_USER
        if isinstance(history, Mapping):
            return self.read_pairs(history.items())
        if isinstance(history, np.ndarray):
            history = history.tolist()
        if isinstance(history, set | frozenset):
            return self.read_pairs(*self._pairs_from_list(list(history)))._replace(n_later=None)
        if isinstance(history, list | tuple | range):
            return self.read_pairs(*self._pairs_from_list(list(history)))
        return self.read_pairs(*self._pairs_from_table(history))

    def read_histories(self, histories: Any) -> tuple[list[Hashable], list[NewUser]]:
        """Parse a list of histories (see `read_history`), a sparse matrix with a history in each
        row, or a table with a column user_id. Returns the user ids in order of appearance, None for
        each history of a list or matrix; and the users."""
        if hasattr(histories, "tocsr"):
            histories = _rows_of_matrix(histories)
        if isinstance(histories, list | tuple):
            return [None] * len(histories), [self.read_history(x) for x in histories]
        frame = self._history_frame(histories)
        if "user_id" not in frame.columns:
            raise DataError(f"table: {unknown_name_message('column', 'user_id', frame.columns)}")
        pairs, times = self._pairs_from_table(frame)
        rows_by_user: dict[Hashable, list[int]] = {}
        for row, user in enumerate(frame["user_id"].to_list()):
            rows_by_user.setdefault(user, []).append(row)
        new_users = [
            self.read_pairs([pairs[x] for x in rows], None if times is None else times[rows])
            for rows in rows_by_user.values()
        ]
        return list(rows_by_user), new_users

    def item_rows(self, ids: Iterable[Any], label: str, *, strict: bool = True) -> Ints:
        """Sorted distinct rows of the known items among `ids`, the argument named `label`. Raises
        DataError if `ids` is no list of ids or, where `strict`, if none of them is known."""
        if hasattr(ids, "columns"):
            raise DataError(
                f"{label} must be a list of item ids, got a table; pass its item_id column"
            )
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise DataError(f"{label} must be a list of item ids, got {ids!r}")
        ids = list(ids)
        try:
            rows = {self._row_by_id.get(x, -1) for x in ids} - {-1}
        except TypeError:
            raise DataError(f"{label} must be a list of item ids, got {ids!r:.200}") from None
        if strict and ids and not rows:
            self._raise_unknown_items(ids, label)
        return np.array(sorted(rows), np.int64)

    def rows_of(self, ids: Iterable[Hashable]) -> Ints:
        """Row of each item; -1 for one that is unknown."""
        get = self._row_by_id.get
        return np.array([get(x, -1) for x in ids], np.int64)

    def knows_item(self, item: Any) -> bool:
        """Whether an external id is in the vocabulary."""
        return isinstance(item, Hashable) and item in self._row_by_id

    def item_row(self, item: Any) -> int:
        """Row of one item; raise DataError with the nearest names if it is unknown."""
        if not self.knows_item(item):
            self._raise_unknown_items([item], "item")
        return self._row_by_id[item]

    def read_pairs(self, pairs: ItemRatingPairs, times: Ints | None = None) -> NewUser:
        """Parse the history of one new user from (item id, rating) pairs, see `read_history`; the
        order is that of `times` or, without any, of the pairs."""
        get = self._row_by_id.get
        unknown_items: tuple[Hashable, ...] = ()
        try:
            rating_by_row = {get(x, -1): float(v) for x, v in pairs}
        except (TypeError, ValueError, OverflowError):
            self._raise_bad_entry(pairs)
        if -1 in rating_by_row:
            unknown_items = tuple(dict.fromkeys(x for x, _ in pairs if x not in self._row_by_id))
            del rating_by_row[-1]
        if not rating_by_row:
            return _EMPTY_NEW_USER._replace(unknown_items=unknown_items)
        ratings, (low, high) = rating_by_row.values(), self.rating_limits
        if not self.implicit and (1.0 in ratings or 0.0 in ratings):
            _refuse_booleans(pairs)
        if not (low <= min(ratings) and max(ratings) <= high and isfinite(sum(ratings))):
            self._raise_bad_entry(pairs)
        ignored_ratings = self.implicit and len({*ratings} - {0.0}) > 1
        if self.implicit:
            rating_by_row = {row: 1.0 for row, rating in rating_by_row.items() if rating}
        rows = np.array(list(rating_by_row), np.int64)
        position: Ints = rows.argsort()  # in the history, of each of the sorted rows
        values = np.array(list(rating_by_row.values()), np.float32)[position]
        rows = rows[position]
        if times is None and len(rows) == len(pairs):
            n_later = len(rows) - 1 - position
            return NewUser(rows, values, unknown_items, None, n_later, ignored_ratings)
        last_position = {get(x, -1): k for k, (x, _) in enumerate(pairs)}  # of equal items
        position = np.array([last_position[row] for row in rows.tolist()], np.int64)
        n_later = count_later(position if times is None else times[position])
        return NewUser(rows, values, unknown_items, None, n_later, ignored_ratings)

    def _pairs_from_list(self, entries: list[Any]) -> tuple[ItemRatingPairs, Ints | None]:
        """Pairs and times, if there are any, of a list of pairs, of triples or, for implicit
        feedback, of item ids."""
        lengths = {len(x) if isinstance(x, tuple | list) else 1 for x in entries}
        if lengths <= {2}:
            return entries, None
        if lengths == {3}:
            return [x[:2] for x in entries], read_times([x[2] for x in entries])
        if lengths & {2, 3}:
            raise DataError(
                f"the history mixes ids, pairs and triples ({entries!r:.80}); {_ACCEPTED_FORMS}"
            )
        if not self.implicit:
            raise DataError(
                f"the model was trained on ratings, so ratings are needed with the items "
                f"{entries!r:.80}: pass {{item_id: rating}}"
            )
        return [(x, 1.0) for x in entries], None

    def _pairs_from_table(self, table: Any) -> tuple[list[tuple[Any, Any]], Ints | None]:
        """Pairs and times of a table with the columns item_id and perhaps rating and timestamp."""
        frame = self._history_frame(table)
        required = ("item_id",) if self.implicit else ("item_id", "rating")
        for name in required:
            if name not in frame.columns:
                raise DataError(f"history: {unknown_name_message('column', name, frame.columns)}")
        items = frame["item_id"].to_list()
        has_ratings = "rating" in frame.columns
        values = frame["rating"].to_list() if has_ratings else [1.0] * len(items)
        times = read_times(frame["timestamp"].to_list()) if "timestamp" in frame.columns else None
        return list(zip(items, values, strict=True)), times

    def _history_frame(self, table: Any) -> Any:
        """Return a table as a dataframe whose columns are named like their roles; raise DataError
        naming the accepted forms if it is none."""
        way_out = _ACCEPTED_FORMS
        if hasattr(table, "to_list") and hasattr(table, "dtype"):
            way_out = "pass .to_dict() of a Series of ratings by item id, .to_list() of one of ids"
        frame = to_dataframe(table, f"cannot read {type(table).__name__} as a history; {way_out}")
        name_by_role = resolve_columns(frame.columns, "history", self.columns)
        others = [x for x in frame.columns if x not in (*name_by_role, *name_by_role.values())]
        columns = {role: frame[name] for role, name in name_by_role.items()}
        return frame.select(
            *(x.alias(role) for role, x in columns.items()), *(frame[x] for x in others)
        )

    def _raise_bad_entry(self, pairs: ItemRatingPairs) -> NoReturn:
        """Raise DataError for the first pair that cannot be used."""
        for x, value in pairs:
            if not isinstance(x, Hashable):
                raise DataError(
                    f"item id {x!r:.80} is of type {type(x).__name__}; {_ACCEPTED_FORMS}"
                )
            if value is None:
                raise DataError(f"item {x!r:.80} has no rating; the model was trained on ratings")
            try:
                number = float(value)
            except (TypeError, ValueError, OverflowError):
                raise DataError(f"rating {value!r:.80} of item {x!r} is not a number") from None
            if not isfinite(number):
                raise DataError(f"rating {value!r} of item {x!r} is not finite; leave the item out")
            if not self.rating_limits[0] <= number <= self.rating_limits[1]:
                raise DataError(f"rating {value!r} of item {x!r} is outside {self.scale}")
        raise DataError(f"{pairs!r:.80} cannot be read; {_ACCEPTED_FORMS}")

    def _raise_unknown_items(self, ids: Sequence[Any], label: str) -> NoReturn:
        """Raise DataError for ids that are all unknown, with the names nearest to the first."""
        first = str(ids[0])
        if first in self.titles:
            item_id = self.item_ids[list(self.titles).index(first)]
            raise DataError(f"{label}: {first!r:.80} is a title; pass its id, {item_id!r}")
        names = self.nearest_names(first)
        hint = f"; nearest known: {', '.join(names)}" if names else ""
        verb = "is" if len(ids) == 1 else f"and the {len(ids) - 1} others are"
        raise DataError(f"{label}: {first!r:.80} {verb} not known to the model{hint}")

    def nearest_names(self, text: str, n: int = 3) -> list[str]:
        """Up to n titles and ids that resemble a text or contain it, for a hint."""
        names = [str(x) for x in islice(self.item_ids, _MAX_COMPARED_NAMES)]
        names += [x for x in islice(self.titles, _MAX_COMPARED_NAMES) if x]
        name_by_folded = {x.casefold(): x for x in names}
        folded = text.casefold()
        similar = [name_by_folded[x] for x in get_close_matches(folded, name_by_folded, n=n)]
        containing = (x for low, x in name_by_folded.items() if len(text) > 2 and folded in low)
        return list(dict.fromkeys([*similar, *islice(containing, n)]))[:n]


def _refuse_booleans(pairs: ItemRatingPairs) -> None:
    """Raise DataError for the first rating that is True or False, which are no numbers of stars."""
    for x, value in pairs:
        if isinstance(value, bool | np.bool_):
            raise DataError(
                f"rating {bool(value)} of item {x!r:.80} is no number; the model was trained on "
                "ratings: pass the rating itself"
            )


def _rating_limits(levels: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest rating that is on the scale of some levels.

    The outermost level may be missing from the training data, so one more step is accepted.
    """
    if not levels:
        return -inf, inf
    low, high = min(levels), max(levels)
    step = max(np.diff(np.unique(levels)).max(initial=0.0), 0.1 * (high - low)) or 1.0
    return float(low - step), float(high + step)


def read_times(times: Sequence[Any]) -> Ints:
    """Seconds since 1970 of the times of a history: numbers, dates or ISO texts. Raises DataError
    for the first that is none, or is missing."""
    return to_seconds(times, ColumnOrigin("history"))


def count_later(times: Ints) -> Ints:
    """Number of entries that are later than each one; entries of one time are not later."""
    n_later: Ints = len(times) - np.searchsorted(np.sort(times), times, side="right")
    return n_later


def read_new_user(
    reader: HistoryReader, encoder: FeatureEncoder | None, history: Any, features: Any
) -> NewUser:
    """Parse a history (see `HistoryReader.read_history`) and features {name: value}, or None. The
    encoder is None if the model was trained without user features."""
    new_user = reader.read_history(history)
    return new_user if features is None else with_features(new_user, encoder, features)


def with_features(new_user: NewUser, encoder: FeatureEncoder | None, features: Any) -> NewUser:
    """A copy of a new user with encoded features; raise DataError if there is no encoder."""
    if encoder is None:
        raise DataError(
            "features: the model was trained without any; fit idcf-bayes with users= on a table "
            "with ratings, or leave them out"
        )
    return new_user._replace(features=encoder.transform_one(features))


def read_new_users(
    reader: HistoryReader, encoder: FeatureEncoder | None, histories: Any, features: Any
) -> tuple[list[Hashable], list[NewUser]]:
    """Parse several histories (see `HistoryReader.read_histories`) and their features, or None.
    Features are a list with {name: value} or None for each history of a list. Returns the user ids
    (None for each history of a list), and the new users."""
    if features is None:
        return reader.read_histories(histories)
    if not isinstance(histories, list) or not isinstance(features, Sequence):
        raise DataError("features of many go with a list of histories: a list of dicts")
    if len(features) != len(histories):
        raise DataError(f"features are {len(features)}, but there are {len(histories)} people")
    pairs = zip(histories, features, strict=True)
    return [None] * len(histories), [read_new_user(reader, encoder, *pair) for pair in pairs]


def warn_unknown_histories(
    reader: HistoryReader, new_users: Sequence[NewUser], user_ids: Sequence[Hashable] = ()
) -> None:
    """Issue a DataWarning if no item of a history is known, so that it counts as empty. It names
    the users by their ids or, where there are none, by their positions."""
    is_unknown = [bool(x.unknown_items) and not len(x.item_rows) for x in new_users]
    if not any(is_unknown):
        return
    first = new_users[is_unknown.index(True)].unknown_items[0]
    names = reader.nearest_names(str(first))
    hint = f" (nearest known: {', '.join(names)})" if names else ""
    owners = "the history"
    if user_ids:
        ids = [n if x is None else x for n, x in enumerate(user_ids)]
        owners = name_users(list(compress(ids, is_unknown)), verb=False)
    warn_about_data(
        f"no item of {owners} is known to the model, such as {first!r:.80}{hint}; "
        "taken as empty, for which popular items are recommended"
    )


def warn_ignored_ratings(new_users: Sequence[NewUser]) -> None:
    """Issue a DataWarning if histories have ratings, which a model of clicks does not read."""
    if any(x.ignored_ratings for x in new_users):
        warn_about_data(
            "the ratings of the history are ignored, low ones too: the model was fitted on clicks; "
            "fit idcf-bayes on a table with ratings, or leave out what the user did not like"
        )


def name_users(user_ids: Sequence[Hashable], *, verb: bool = True) -> str:
    """The first few ids of users, such as "users 'a', 'b' and 3 others are", for a message."""
    names = ", ".join(repr(x) for x in user_ids[:_MAX_NAMED_USERS])
    n_others = len(user_ids) - _MAX_NAMED_USERS
    others = f" and {n_others:,} more" if n_others > 0 else ""
    is_one = len(user_ids) == 1
    text = f"user{'' if is_one else 's'} {names}{others}"
    return f"{text} {'is' if is_one else 'are'}" if verb else text


def warn_unknown_items(new_users: Sequence[NewUser]) -> None:
    """Issue a DataWarning if a history has unknown items, for results that cannot list them."""
    unknown_items = [x for new_user in new_users for x in new_user.unknown_items]
    if unknown_items:
        warn_about_data(
            f"{len(unknown_items)} items of the history are unknown to the model, "
            f"such as {unknown_items[0]!r}"
        )


def history_from_item_rows(item_rows: Sequence[Ints]) -> History:
    """Histories of B users from the item rows of each, with all values 1."""
    offsets = offsets_from_lengths([len(x) for x in item_rows])
    items = torch.from_numpy(np.concatenate(item_rows) if item_rows else np.empty(0, np.int64))
    return History(items, torch.ones(len(items)), torch.from_numpy(offsets))


def as_users(new_users: Sequence[NewUser]) -> Users:
    """New users as models expect them: ids -1, and features 0 for one without features."""
    if not new_users:
        return Users(torch.empty(0, dtype=torch.int64), History.empty(0))
    history = history_from_item_rows([x.item_rows for x in new_users])._replace(
        values=torch.from_numpy(np.concatenate([x.values for x in new_users]))
    )
    features = None
    if given := [x.features for x in new_users if x.features is not None]:
        average = np.zeros_like(given[0])
        rows = [average if x.features is None else x.features for x in new_users]
        features = torch.from_numpy(np.stack(rows))
    return Users(torch.full((len(new_users),), -1), history, features)


def _rows_of_matrix(matrix: Any) -> list[dict[int, float]]:
    """Return {column: value} of each row of a sparse matrix, whose order says nothing of times."""
    rows = matrix.tocsr()
    starts = rows.indptr.tolist()
    items, values = rows.indices.tolist(), rows.data.astype(np.float64).tolist()
    return [
        dict(zip(items[low:high], values[low:high], strict=True)) for low, high in pairwise(starts)
    ]
