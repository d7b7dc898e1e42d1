"""Items that are added after training: `Recommender.partial_fit_items`.

`Model.with_item_ratings` infers a new item from its raters, as a new user is inferred from the
rated items. The rest of the model does not change, and the old predictor stays valid.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from idcf.data.history_reader import HistoryReader, NewUser, as_users
from idcf.data.interactions import (
    Interactions,
    Ints,
    Vocab,
    group_rows_by_key,
    row_lookup,
    titles_by_row,
)
from idcf.data.readers import column_names, read_interactions
from idcf.errors import ColdUserError, DataError
from idcf.inference.abilities import missing_ability
from idcf.inference.artifact import Artifact, make_contiguous
from idcf.inference.predictor import Predictor
from idcf.models.base import Model
from idcf.types import Ragged, Users


def add_items(
    predictor: Predictor,
    interactions: Any,
    *,
    histories: Any = None,
    columns: Mapping[str, str] | None = None,
    titles: Mapping[Any, str] | None = None,
) -> Predictor:
    """Return a predictor with new items, or with better moments of items that it has.

    The arguments and errors are those of `Recommender.partial_fit_items`.
    """
    old, reader = predictor.artifact, predictor.history_reader
    if not old.model.accepts_new_items:
        raise missing_ability("partial_fit_items", old)
    if columns is None:  # those of `fit` that the table has
        known, names = old.manifest.columns, column_names(interactions)
        columns = {role: name for role, name in known.items() if name in names}
    ratings = read_interactions(interactions, columns=columns, implicit=False)
    _check_rating_range(ratings, reader)
    items, item_rows = _extend_vocab(old.items, ratings.items)
    raters = _NewItemRaters(ratings, item_rows, predictor.training_table)
    users = as_users(raters.read_histories(reader, histories))
    model = _add_item_ratings(old.model, users, ratings, item_rows)
    domain = replace(old.manifest.domain, n_items=len(items))
    old_titles = old.titles + (None,) * (len(items) - len(old.items))
    new_titles = titles_by_row(items, titles)
    artifact = Artifact(
        replace(old.manifest, domain=domain, fit=None),
        make_contiguous(model),
        items,
        tuple(new or old_title for new, old_title in zip(new_titles, old_titles, strict=True)),
        old.take_up_model and old.take_up_model.with_n_items(len(items)),
        old.attributes,
    )
    return Predictor(artifact, raters.extended_training_table(items))


@torch.no_grad()
def _add_item_ratings(model: Model, users: Users, ratings: Interactions, item_rows: Ints) -> Model:
    """Return a model that knows the rated items, whose rows are `item_rows`."""
    order, offsets = group_rows_by_key(ratings.item, len(item_rows))
    arrays = ratings.user[order], ratings.rating[order], offsets, item_rows
    user_rows, values, bounds, rows = (torch.from_numpy(x).to(model.device) for x in arrays)
    raters = Ragged(user_rows, values, bounds)
    return model.with_item_ratings(users.to(model.device), raters, rows)


class _NewItemRaters:
    """The users who rated the items, and their rows in the training table."""

    def __init__(
        self, new_ratings: Interactions, item_rows: Ints, training_table: Interactions | None
    ) -> None:
        self.new_ratings, self.training_table = new_ratings, training_table
        self.item_rows = item_rows[new_ratings.item]
        self.training_rows = np.full(len(new_ratings.users), -1)  # of each rater; -1: none
        if training_table is not None:
            row_by_id = row_lookup(training_table.users)
            self.training_rows[:] = [row_by_id.get(x, -1) for x in new_ratings.users.ids]
            self._refuse_repeated_ratings(training_table)

    def read_histories(self, history_reader: HistoryReader, histories: Any) -> list[NewUser]:
        """Return the history of each rater: that in `histories`, else that of the training table.

        The items that this rater rates now are left out, so that no rating counts twice.
        """
        given = _read_histories_by_user(history_reader, histories)
        order, offsets = group_rows_by_key(self.new_ratings.user, len(self.new_ratings.users))
        users = []
        for row, user_id in enumerate(self.new_ratings.users.ids):
            user = given.get(user_id, given.get(str(user_id)))
            if user is None:
                user = self._training_history(row)
            if user is None:
                raise ColdUserError(
                    f"the history of user {user_id!r} is not known; pass histories={{{user_id!r}: "
                    "{item_id: rating, ...}}, or {} if there is none"
                )
            rated_rows = self.item_rows[order[offsets[row] : offsets[row + 1]]]
            is_rated = np.isin(user.item_rows, rated_rows)
            users.append(NewUser(user.item_rows[~is_rated], user.values[~is_rated]))
        return users

    def extended_training_table(self, items: Vocab) -> Interactions | None:
        """Return the training table with the new ratings of its users."""
        if self.training_table is None:
            return None
        user_rows = self.training_rows[self.new_ratings.user]
        rows = np.flatnonzero(user_rows >= 0)
        table = replace(self.training_table, items=items, item_features=None, time=None)
        new_rows = replace(
            table,
            user=user_rows[rows],
            item=self.item_rows[rows],
            rating=self.new_ratings.rating[rows],
        )
        return table.concat(new_rows)

    def _training_history(self, rater: int) -> NewUser | None:
        """Return the training history of a rater, in the order of item rows."""
        if self.training_table is None or self.training_rows[rater] < 0:
            return None
        history = self.training_table.history(self.training_rows[rater : rater + 1])
        order = np.argsort(history.items.numpy())
        return NewUser(history.items.numpy()[order], history.values.numpy()[order])

    def _refuse_repeated_ratings(self, training_table: Interactions) -> None:
        """Raise DataError if a rating of the training table is repeated: it would count twice."""
        n_columns = max(len(training_table.items), int(self.item_rows.max()) + 1)
        pairs = self.training_rows[self.new_ratings.user] * n_columns + self.item_rows
        training_pairs = training_table.user * n_columns + training_table.item
        repeated = np.flatnonzero(np.isin(pairs, training_pairs))  # pairs of other users are < 0
        for row in repeated[:1]:
            user_id = self.new_ratings.users.ids[self.new_ratings.user[row]]
            item_id = self.new_ratings.items.ids[self.new_ratings.item[row]]
            raise DataError(
                f"user {user_id!r} has rated item {item_id!r} in training already "
                f"({len(repeated)} such rows); leave out ratings that the model was trained on"
            )


def _read_histories_by_user(
    history_reader: HistoryReader, histories: Any
) -> dict[Hashable, NewUser]:
    """Return histories by user id, from a dict or from a table with a column user_id."""
    if histories is None:
        return {}
    if isinstance(histories, Mapping):
        return {user: history_reader.read_history(x) for user, x in histories.items()}
    if isinstance(histories, list | tuple):
        raise DataError("histories has no user ids; pass {user_id: history}, or a table")
    return dict(zip(*history_reader.read_histories(histories), strict=True))


def _check_rating_range(new_ratings: Interactions, history_reader: HistoryReader) -> None:
    """Raise DataError for a rating below or above `history_reader.rating_limits`."""
    low, high = history_reader.rating_limits
    for row in np.flatnonzero((new_ratings.rating < low) | (new_ratings.rating > high))[:1]:
        item_id = new_ratings.items.ids[new_ratings.item[row]]
        raise DataError(
            f"rating {new_ratings.rating[row]:g} of item {item_id!r} is outside "
            f"{history_reader.scale}; check the column"
        )


def _extend_vocab(old: Vocab, new: Vocab) -> tuple[Vocab, Ints]:
    """Return the old ids followed by the ids that are new, and the row of each of `new`."""
    row_by_id, ids, rows = row_lookup(old), list(old.ids), []
    for item_id in new.ids:
        rows.append(row_by_id.get(item_id, len(ids)))
        if item_id not in row_by_id:
            ids.append(_cast_item_id(item_id, old.ids[0]))
    return Vocab(ids), np.array(rows, np.int64)


def _cast_item_id(item_id: Any, example_id: Any) -> Hashable:
    """Return a new id as text or integer, as the ids of the model are."""
    if isinstance(example_id, str):
        return str(item_id)
    if not isinstance(item_id, str):
        return int(item_id)
    if len(item_id) < 20 and item_id.removeprefix("-").isdecimal() and str(int(item_id)) == item_id:
        return int(item_id)
    raise DataError(
        f"item id {item_id!r} is a string, but those of the model are integers; cast it"
    )
