"""Turn a table into batches. A user stands in a batch once, however many rows are theirs.

`rows`      visits every row once in random order and shows each user's whole history.
`episodes`  plays the newcomer: a user comes with a short history and is asked about the rest,
            so the target is never in the history and lengths are those met at deployment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idcf.data.interactions import Interactions, Ints, ragged
from idcf.types import Batch, History, Users, pick

_BLOCK = 64  # batches laid out at a time: enough to share the cost, few enough to bound memory


def rows(
    table: Interactions,
    seen: Interactions | None,
    *,
    size: int,
    rng: np.random.Generator | None = None,
    negatives: int = 0,
    device: torch.device | None = None,
) -> Iterator[Batch]:
    """Batches of `size` rows, in table order where there is no `rng`.

    Without `seen` the histories are empty (for models that do not read them). With
    `negatives`, each row carries that many random items labelled 0. With a `device`, all that is
    seen is laid there first and histories are picked there: to send them with every batch was 4 of
    the 11 ms that a step of `gcmc` took on ML-1M.
    """
    histories = _histories(seen, device)
    order = np.arange(len(table)) if rng is None else np.argsort(rng.random(len(table)))
    for start in range(0, len(order), size):
        some = order[start : start + size]
        users, owner = np.unique(table.user[some], return_inverse=True)
        columns = (users, owner, table.item[some, None], table.rating[some, None])
        ids, mine, items, labels = map(torch.from_numpy, columns)
        yield _batch(ids, histories(users), mine, items, labels, table, rng, negatives)


def _histories(seen: Interactions | None, device: torch.device | None) -> Callable[[Ints], History]:
    """How the histories of a batch are come by."""
    if seen is None:
        return lambda users: History.empty(len(users))
    if device is None:
        return seen.history
    counts = seen.counts()
    whole = seen.history(np.arange(len(counts))).to(device)
    return lambda users: pick(
        whole, torch.from_numpy(users).to(device, non_blocking=True), int(counts[users].sum())
    )


def episodes(
    table: Interactions,
    *,
    size: int,
    lengths: tuple[int, int],
    rng: np.random.Generator,
    targets: int = 8,
    share: float = 1.0,
    negatives: int = 0,
) -> Iterator[Batch]:
    """Batches of about `size` rows: each row of the table is asked for once an epoch.

    A user's rows are shuffled on a ring and cut into groups of `targets`, or of a `share` of
    their own where that is less; the history of a group is the stretch of the ring that follows
    it, of a random length within `lengths`.
    """
    order, start = table.by_user
    drawn = rng.integers(1 << 40, size=len(order))
    ring = order[np.argsort((table.user[order] << 40) | drawn)]  # shuffled, user by user
    count = np.diff(start)
    most = np.clip((count * share).astype(np.int64), 1, targets)
    groups = -(-count // most)  # rounded up
    user = np.repeat(np.arange(len(count)), groups)
    first = (np.arange(len(user)) - np.repeat(np.cumsum(groups) - groups, groups)) * most[user]
    asked = np.minimum(most[user], count[user] - first)
    read = np.minimum(_lengths(lengths, len(user), rng), count[user] - asked)
    shuffled = np.argsort(rng.random(len(user)), kind="stable")
    ends = np.cumsum(asked[shuffled]) // size
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(ends)) + 1, [len(shuffled)]])
    for block in range(0, len(cuts) - 1, _BLOCK):
        bounds = cuts[block : block + _BLOCK + 1]
        units = shuffled[bounds[0] : bounds[-1]]
        who = user[units]
        # everything of a block at once; its batches are slices
        places, rows_at = ragged(first[units], asked[units])
        owner = np.repeat(np.arange(len(units)), asked[units])
        pick = ring[start[who[owner]] + places]
        after, read_at = ragged(first[units] + asked[units], read[units])
        reader = np.repeat(who, read[units])
        kept = ring[start[reader] + after % count[reader]]
        bounds = bounds - bounds[0]
        people = np.diff(bounds)
        reads, asks = np.diff(read_at[bounds]), np.diff(rows_at[bounds])
        ends = read_at[1:] - np.repeat(read_at[bounds[:-1]], people)
        offsets = np.insert(ends, bounds[:-1], 0)  # from 0 in every batch
        parts = zip(
            _split(who, people),
            _split(offsets, people + 1),
            _split(table.item[kept], reads),
            _split(table.rating[kept], reads),
            _split(owner - np.repeat(bounds[:-1], asks), asks),
            _split(table.item[pick, None], asks),
            _split(table.rating[pick, None], asks),
            strict=True,
        )
        for ids, at, seen, values, mine, items, labels in parts:
            history = History(seen, values, at)
            yield _batch(ids, history, mine, items, labels, table, rng, negatives)


def _split(column: NDArray[Any], sizes: Ints) -> tuple[Tensor, ...]:
    return torch.from_numpy(column).split_with_sizes(sizes.tolist())


def _lengths(bounds: tuple[int, int], n: int, rng: np.random.Generator) -> Ints:
    """Evenly over the logarithm: the first ratings of a newcomer tell most, so a model must have
    met short histories as often as long ones."""
    low, high = bounds
    least = max(low, 1)
    drawn = np.floor(least * ((high + 1) / least) ** rng.random(n)).astype(np.int64)
    return np.clip(drawn, low, high)


def _batch(
    users: Tensor,
    history: History,
    owner: Tensor,
    items: Tensor,
    labels: Tensor,
    table: Interactions,
    rng: np.random.Generator | None,
    negatives: int,
) -> Batch:
    if negatives:
        drawn, zero = _negatives(table, len(items), negatives, rng or np.random.default_rng(0))
        items, labels = torch.hstack([items, drawn]), torch.hstack([labels, zero])
    return Batch(Users(users, history, table.features_of(users.numpy())), owner, items, labels)


def _negatives(
    table: Interactions, n: int, each: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    drawn = rng.integers(len(table.items), size=(n, each), dtype=np.int64)
    return torch.from_numpy(drawn), torch.zeros(n, each)
