"""Turn a table into batches, in which each user is stored once.

`row_batches` visits every row once and gives each user the whole history.
`episode_batches` simulates new users: a user comes with a short history and other rows of theirs
are the targets, so that a target is never in the history it is predicted from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from idcf.data.interactions import Interactions, Ints, offsets_from_lengths, slice_index
from idcf.types import Batch, History, Users, select_histories

# batches whose arrays are computed together: enough to share the cost, few enough to bound memory
_BATCHES_PER_BLOCK = 64


def row_batches(
    table: Interactions,
    history_table: Interactions | None,
    *,
    batch_size: int,
    rng: np.random.Generator | None = None,
    n_negatives: int = 0,
    device: torch.device | None = None,
) -> Iterator[Batch]:
    """Yield batches of `batch_size` rows to score, in random order if there is a generator.

    Users have their histories in `history_table`, or empty ones where it is None. To each row,
    `n_negatives` random items labelled 0 are added. With a device, all histories are copied to it
    once and selected there, which saves a transfer for each batch.
    """
    get_histories = _history_lookup(history_table, device)
    order = np.arange(len(table)) if rng is None else np.argsort(rng.random(len(table)))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        users, owner = np.unique(table.user[rows], return_inverse=True)
        yield _make_batch(
            torch.from_numpy(users),
            get_histories(users),
            torch.from_numpy(owner),
            torch.from_numpy(table.item[rows, None]),
            torch.from_numpy(table.rating[rows, None]),
            table,
            rng,
            n_negatives,
        )


def _history_lookup(
    history_table: Interactions | None, device: torch.device | None
) -> Callable[[Ints], History]:
    """Function from users to their histories (see `row_batches`)."""
    if history_table is None:
        return lambda users: History.empty(len(users))
    if device is None:
        return history_table.history
    counts = history_table.user_counts()
    histories = history_table.history(np.arange(len(counts))).to(device)
    return lambda users: select_histories(
        histories, torch.from_numpy(users).to(device, non_blocking=True), int(counts[users].sum())
    )


def episode_batches(
    table: Interactions,
    *,
    batch_size: int,
    history_lengths: tuple[int, int],
    rng: np.random.Generator,
    targets_per_episode: int = 8,
    max_target_share: float = 1.0,
    n_negatives: int = 0,
) -> Iterator[Batch]:
    """Yield batches of episodes: users with a short history and a few target rows each.

    In an epoch each row of the table is a target once. The rows of a user are shuffled on a ring
    and cut into groups of targets; the history of a group is the stretch of the ring that follows
    it. For a user with 7 rows and 3 targets per episode (t target, h history):

        ring       r0 r1 r2 r3 r4 r5 r6
        episode 1  t  t  t  h  h          a history of 2 rows
        episode 2  h  h     t  t  t  h    a history of 3 rows
        episode 3  h                 t    a history of 1 row

    A batch has about `batch_size` targets, since episodes are not cut. A history has a length
    between both `history_lengths`, or less where the user has too few rows. An episode has at most
    `targets_per_episode` targets and, beyond one, at most `max_target_share` of the user's rows. To
    each target, `n_negatives` random items labelled 0 are added.
    """
    episodes = _draw_episodes(table, history_lengths, targets_per_episode, max_target_share, rng)
    batch_index = np.cumsum(episodes.n_targets) // batch_size
    starts = np.flatnonzero(np.diff(batch_index)) + 1
    bounds = np.concatenate([[0], starts, [len(episodes.user)]])
    for first in range(0, len(bounds) - 1, _BATCHES_PER_BLOCK):
        block = bounds[first : first + _BATCHES_PER_BLOCK + 1]
        yield from _block_batches(table, episodes, block, rng, n_negatives)


class _Episodes(NamedTuple):
    """The E episodes of an epoch, in random order, and the rings of the U users."""

    ring: Ints  # [rows]: rows of the table, user by user, shuffled within each user
    ring_start: Ints  # [U + 1]: start of each user in `ring`
    user: Ints  # [E]
    first: Ints  # [E]: position of the first target on the ring of the user
    n_targets: Ints  # [E]
    history_length: Ints  # [E]


def _draw_episodes(
    table: Interactions,
    history_lengths: tuple[int, int],
    targets_per_episode: int,
    max_target_share: float,
    rng: np.random.Generator,
) -> _Episodes:
    """Draw the episodes of an epoch in random order: several for each user, so that each row is a
    target once, with a random history length each (see `episode_batches`)."""
    order, ring_start = table.rows_by_user
    shuffle_key = rng.integers(1 << 40, size=len(order))
    ring = order[np.argsort((table.user[order] << 40) | shuffle_key)]
    n_rows = np.diff(ring_start)
    group_size = np.clip((n_rows * max_target_share).astype(np.int64), 1, targets_per_episode)
    n_groups = -(-n_rows // group_size)  # rounded up
    user = np.repeat(np.arange(len(n_rows)), n_groups)
    group = np.arange(len(user)) - np.repeat(offsets_from_lengths(n_groups)[:-1], n_groups)
    first = group * group_size[user]
    n_targets = np.minimum(group_size[user], n_rows[user] - first)
    # lengths are drawn evenly over their logarithm: the first ratings of a new user matter most,
    # so short histories must be as frequent in training as long ones
    low, high = history_lengths
    scale = max(low, 1)
    lengths = np.floor(scale * ((high + 1) / scale) ** rng.random(len(user))).astype(np.int64)
    lengths = np.minimum(np.clip(lengths, low, high), n_rows[user] - n_targets)
    shuffled = np.argsort(rng.random(len(user)), kind="stable")
    return _Episodes(
        ring, ring_start, user[shuffled], first[shuffled], n_targets[shuffled], lengths[shuffled]
    )


def _block_batches(
    table: Interactions,
    episodes: _Episodes,
    bounds: Ints,
    rng: np.random.Generator,
    n_negatives: int,
) -> Iterator[Batch]:
    """Yield batches of the episodes bounds[k] : bounds[k + 1]; all arrays are computed at once."""
    ring, ring_start = episodes.ring, episodes.ring_start
    user, first, n_targets, history_length = (x[bounds[0] : bounds[-1]] for x in episodes[2:])
    bounds = bounds - bounds[0]
    n_episodes = np.diff(bounds)

    position, target_offsets = slice_index(first, n_targets)
    owner = np.repeat(np.arange(len(user)), n_targets)
    target_rows = ring[ring_start[user[owner]] + position]
    targets_per_batch = np.diff(target_offsets[bounds])
    owner_in_batch = owner - np.repeat(bounds[:-1], targets_per_batch)

    position, history_offsets = slice_index(first + n_targets, history_length)
    history_user = np.repeat(user, history_length)
    ring_length = ring_start[history_user + 1] - ring_start[history_user]
    history_rows = ring[ring_start[history_user] + position % ring_length]
    entries_per_batch = np.diff(history_offsets[bounds])
    ends_in_batch = history_offsets[1:] - np.repeat(history_offsets[bounds[:-1]], n_episodes)
    offsets_in_batch = np.insert(ends_in_batch, bounds[:-1], 0)

    parts = zip(
        _split_column(user, n_episodes),
        _split_column(table.item[history_rows], entries_per_batch),
        _split_column(table.rating[history_rows], entries_per_batch),
        _split_column(offsets_in_batch, n_episodes + 1),
        _split_column(owner_in_batch, targets_per_batch),
        _split_column(table.item[target_rows, None], targets_per_batch),
        _split_column(table.rating[target_rows, None], targets_per_batch),
        strict=True,
    )
    for users, history_items, history_values, offsets, owners, items, labels in parts:
        history = History(history_items, history_values, offsets)
        yield _make_batch(users, history, owners, items, labels, table, rng, n_negatives)


def _split_column(column: NDArray[Any], sizes: Ints) -> tuple[Tensor, ...]:
    """Split a column into consecutive tensors of these sizes, which share its memory."""
    return torch.from_numpy(column).split_with_sizes(sizes.tolist())


def _make_batch(
    users: Tensor,
    history: History,
    owner: Tensor,
    items: Tensor,
    labels: Tensor,
    table: Interactions,
    rng: np.random.Generator | None,
    n_negatives: int,
) -> Batch:
    """Build a batch; add features of the users and random negatives to the columns of items."""
    if n_negatives:
        # uniform over the vocabulary, so that the items of positives are drawn too
        rng = rng or np.random.default_rng(0)
        negatives = rng.integers(len(table.items), size=(len(items), n_negatives), dtype=np.int64)
        items = torch.hstack([items, torch.from_numpy(negatives)])
        labels = torch.hstack([labels, torch.zeros(len(labels), n_negatives)])
    return Batch(Users(users, history, table.features_of(users.numpy())), owner, items, labels)
