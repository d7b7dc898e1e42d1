"""Lists for people who were in the training table, which only `fit` leaves in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from idcf.data.history_reader import lookup
from idcf.data.interactions import Interactions, Ints
from idcf.data.split import among
from idcf.errors import ColdUserError
from idcf.inference.artifact import Artifact
from idcf.inference.manifest import Manifest
from idcf.inference.predictor import Desk, Filters


def known(
    found: Artifact,
    desk: Desk,
    table: Interactions | None,
    users: Any,
    n: int,
    filters: Filters,
    std: bool,
) -> Any:
    """A list for one id, or one for each of several."""
    if table is None:
        raise ColdUserError("a loaded model keeps nobody's history; pass history= instead")
    one = isinstance(users, str | int)
    who, row = [users] if one else list(users), lookup(table.users)
    ids = np.array([row.get(x, -1) for x in who], np.int64)
    people, inductive = table.people(ids), found.model.inductive
    trained = people.history.lengths().numpy() > 0
    if not inductive:
        trained &= np.isin(ids, _key_users(table, found.manifest))
    for x in np.flatnonzero(~trained):
        raise ColdUserError(f"user {who[x]!r} was not trained on; pass their history= instead")
    lists = desk.of_users(people.anonymous() if inductive else people, n, filters, who, std)
    return lists[0] if one else lists


def _key_users(table: Interactions, about: Manifest) -> Ints:
    """Who was trained on: the choice that `fit` made, made again."""
    d, nothing = about.data, table.where(np.empty(0, np.int64))
    return among(table, nothing, d.key_threshold, d.chosen, about.seed).key_users
