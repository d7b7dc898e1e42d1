"""Items that came after training: `Recommender.partial_fit_items`.

A new item is known by who rated it how, as a newcomer is known by what they rated. Nothing else
of the model moves, and the old model is left as it was.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from idcf.data.history_reader import Read, Reader, as_users, lookup, named
from idcf.data.interactions import Interactions, Ints, Vocab, group
from idcf.data.readers import read_interactions
from idcf.errors import ColdUserError, ConfigError, DataError
from idcf.inference.artifact import Artifact, settle
from idcf.models.bayes import Bayes, Moments, meet, with_items
from idcf.models.layers.ragged import segment_sum
from idcf.types import History, Users

_STRENGTH = 3.0  # ratings of "nothing unusual" that an item's own must outweigh
_RATERS = 10.0  # whose choice of an item is worth as much as what is expected of everybody


class Grown(NamedTuple):
    found: Artifact
    table: Interactions | None  # of training, with what its users have told since


def grow(
    found: Artifact,
    reader: Reader,
    table: Interactions | None,
    new: Any,
    *,
    histories: Any = None,
    columns: Mapping[str, str] | None = None,
    titles: Mapping[Any, str] | None = None,
) -> Grown:
    """A model that knows the items of `new` as well, or better than before."""
    model, old = found.model, found.items
    if not isinstance(model, Bayes):
        raise ConfigError(
            "partial_fit_items needs a model that keeps how sure it is of items, such as "
            f"idcf-bayes; this one is {found.manifest.model!r}: fit it again with the new items"
        )
    rows = read_interactions(new, columns=columns, implicit=False)
    _check(rows, reader)
    items, at = _placed(old, rows.items)
    raters = Raters(rows, at, table)
    people = as_users(raters.read(reader, histories)).to(model.device)
    order, start = group(rows.item, len(at))
    told = History(
        torch.from_numpy(rows.user[order]),
        torch.from_numpy(rows.rating[order]),
        torch.from_numpy(start),
    ).to(model.device)
    place = torch.from_numpy(at).to(model.device)
    known = torch.where(place < len(old), place, -1)
    with torch.no_grad():
        moments = meet(model, people, told, known)
        usual = _usual(model, people, told, known, moments)
        grown = with_items(model, moments, place, usual, told.lengths())
    called = named(items, titles)
    names = found.titles + (None,) * (len(items) - len(old))
    manifest = replace(found.manifest, domain=replace(found.manifest.domain, n_items=len(items)))
    both = tuple(x or y for x, y in zip(called, names, strict=True))
    return Grown(Artifact(manifest, settle(grown), items, both), raters.joined(items))


def _usual(model: Bayes, people: Users, told: History, known: Tensor, of: Moments) -> Tensor:
    """What those who rated an item add to it, for somebody without history."""
    bias, n = model.posterior(people).mean[..., -1].mean(1), told.lengths()
    left = segment_sum(told.values - model.mean - bias[told.items], told.owner(), len(n))
    gap = (left / (n + _STRENGTH) - of.means[..., -1].mean(1)) * n / (n + _RATERS)
    return torch.where(known >= 0, model.usual[known], gap)


class Raters:
    """Those who rated the items, and what else is known of them."""

    def __init__(self, rows: Interactions, at: Ints, table: Interactions | None) -> None:
        self.rows, self.table = rows, table
        self.item = at[rows.item]
        here = {} if table is None else lookup(table.users)
        self.user = np.array([here.get(x, -1) for x in rows.users.ids], np.int64)
        if table is not None:
            self._refuse_again(table)

    def read(self, reader: Reader, histories: Any) -> list[Read]:
        """The history of each, without the items that are now asked about."""
        passed = _passed(reader, histories)
        order, start = group(self.rows.user, len(self.rows.users))
        out = []
        for n, who in enumerate(self.rows.users.ids):
            read = passed.get(who, passed.get(str(who)))
            if read is None:
                read = self._trained(n)
            if read is None:
                raise ColdUserError(
                    f"nothing is known of the rater {who!r}; pass histories={{{who!r}: "
                    "{item_id: rating, ...}}, or {} if they rated nothing else"
                )
            asked = np.isin(read.rows, self.item[order[start[n] : start[n + 1]]])
            out.append(Read(read.rows[~asked], read.values[~asked]))
        return out

    def joined(self, items: Vocab) -> Interactions | None:
        """The training table with the new rows of its own users."""
        if self.table is None:
            return None
        user = self.user[self.rows.user]
        mine = np.flatnonzero(user >= 0)
        base = replace(self.table, items=items, item_features=None, time=None)
        more = replace(base, user=user[mine], item=self.item[mine], rating=self.rows.rating[mine])
        return base.plus(more)

    def _trained(self, n: int) -> Read | None:
        if self.table is None or self.user[n] < 0:
            return None
        history = self.table.history(self.user[n : n + 1])
        order = np.argsort(history.items.numpy())
        return Read(history.items.numpy()[order], history.values.numpy()[order])

    def _refuse_again(self, table: Interactions) -> None:
        """A rating that was trained on must not count twice."""
        wide = max(len(table.items), int(self.item.max()) + 1)
        pairs = self.user[self.rows.user] * wide + self.item
        again = np.flatnonzero(np.isin(pairs, table.user * wide + table.item) & (pairs >= 0))
        for n in again[:1]:
            who, what = self.rows.users.ids[self.rows.user[n]], self.rows.item[n]
            raise DataError(
                f"user {who!r} has rated item {self.rows.items.ids[what]!r} in training already "
                f"({len(again)} such rows); leave out what the model knows"
            )


def _passed(reader: Reader, histories: Any) -> dict[Hashable, Read]:
    """Histories by user, from a dict of them or a table with a column user_id."""
    if histories is None:
        return {}
    if isinstance(histories, Mapping):
        return {who: reader.one(told) for who, told in histories.items()}
    if isinstance(histories, list | tuple):
        raise DataError("histories must say whose they are: {user_id: history}, or a table")
    return dict(zip(*reader.many(histories), strict=True))


def _check(rows: Interactions, reader: Reader) -> None:
    low, high = reader.limits
    for n in np.flatnonzero((rows.rating < low) | (rows.rating > high))[:1]:
        what = rows.items.ids[rows.item[n]]
        raise DataError(f"rating {rows.rating[n]:g} of item {what!r} is far outside the scale")


def _placed(old: Vocab, new: Vocab) -> tuple[Vocab, Ints]:
    """New ids behind the known ones, whose rows stay; and the row of each of `new`."""
    known, ids, at = lookup(old), list(old.ids), []
    for x in new.ids:
        at.append(known.get(x, len(ids)))
        if x not in known:
            ids.append(_alike(x, old.ids[0]))
    return Vocab(ids), np.array(at, np.int64)


def _alike(x: Any, first: Any) -> Hashable:
    """A new id in the manner of the others: strings or integers."""
    if isinstance(first, str):
        return str(x)
    if not isinstance(x, str):
        return int(x)
    if x.lstrip("-").isdecimal() and str(int(x)) == x:
        return int(x)
    raise DataError(f"item id {x!r} is a string, but those of the model are integers; cast it")
