"""Users of the training table, whose lists are made of their training histories."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

import numpy as np

from idcf.data.history_reader import NewUser, count_later
from idcf.data.interactions import Interactions, Ints, row_lookup
from idcf.data.split import split_by_key_users
from idcf.errors import ColdUserError, DataError
from idcf.inference.manifest import Manifest
from idcf.inference.ranking_query import RankingQuery
from idcf.types import Users


class TrainingUsers:
    """The users of the table that a model was trained on; `manifest` says who were key users."""

    def __init__(self, table: Interactions, manifest: Manifest) -> None:
        self._table, self._manifest = table, manifest

    def are_known(self, user_ids: Sequence[Hashable], *, inductive: bool) -> list[bool]:
        """Return which users are in the table.

        ColdUserError: a model that is not `inductive` was not trained on a user.
        """
        rows = self._rows(user_ids)
        is_known = rows >= 0
        is_known[is_known] = self._table.user_counts()[rows[is_known]] > 0
        if not inductive:
            is_known &= np.isin(rows, self._key_users)
            for position in np.flatnonzero(~is_known)[:1]:
                raise ColdUserError(
                    f"user {user_ids[position]!r} was not trained on, and this model scores no "
                    "other users; fit an idcf-* model or 'als'"
                )
        known: list[bool] = is_known.tolist()
        return known

    def queries(
        self, user_ids: Sequence[Hashable], query: RankingQuery, *, inductive: bool
    ) -> tuple[Users, list[RankingQuery]]:
        """Return known users with their histories, and a query of each with the options of
        `query`."""
        rows = self._rows(user_ids)
        users = self._table.build_users(rows)
        ends = users.history.offsets[1:-1].numpy()
        item_rows = np.split(users.history.items.numpy(), ends)
        values = np.split(users.history.values.numpy(), ends)
        order = self._order(rows) if query.recency else [None] * len(rows)
        queries = [
            query._replace(new_user=NewUser(items, ratings, n_later=n_later), user_id=user_id)
            for items, ratings, n_later, user_id in zip(
                item_rows, values, order, user_ids, strict=True
            )
        ]
        return users.anonymous() if inductive else users, queries

    def _order(self, rows: Ints) -> list[Ints]:
        """Return how many items of each user are later than each of them."""
        times = self._table.times_of(rows)
        if times is None:
            raise DataError(
                "recency of users= needs the times of their rows, and the table of fit has no "
                "column timestamp; pass history= instead, oldest item first"
            )
        return [count_later(x) for x in times]

    def _rows(self, user_ids: Sequence[Hashable]) -> Ints:
        """Return the row of each user; -1: not in the table."""
        return np.array([self._row_by_id.get(x, -1) for x in user_ids], np.int64)

    @cached_property
    def _row_by_id(self) -> dict[Hashable, int]:
        """Row of every user id of the table."""
        return row_lookup(self._table.users)

    @cached_property
    def _key_users(self) -> Ints:
        """Rows of the key users: the choice of `fit`, repeated from the manifest."""
        data, no_rows = self._manifest.training_data, self._table.where(np.empty(0, np.int64))
        return split_by_key_users(
            self._table, no_rows, data.key_threshold, data.key_user_rule, self._manifest.seed
        ).key_users
