"""Search the tensors of a model for rows of the table that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from idcf.data.interactions import Interactions, group_rows_by_key

MIN_MATCHES = 3  # users, or items, whose rows are in a tensor: fewer may be chance


def _groups(key: np.ndarray, value: np.ndarray, n: int) -> list[tuple[int, ...]]:
    """Return the sorted values of each key that has at least five."""
    order, offsets = group_rows_by_key(key, n)
    parts = np.split(value[order], offsets[1:-1])
    return [tuple(sorted(map(int, x))) for x in parts if len(x) >= 5]


def _holds_group(values: np.ndarray, group: tuple[int, ...]) -> bool:
    """Return whether a run of the values is the group, in any order."""
    if len(values) < len(group):
        return False
    runs = np.sort(np.lib.stride_tricks.sliding_window_view(values, len(group)), axis=1)
    return bool((runs == group).all(1).any())


def training_rows_in(tensors: Mapping[str, Tensor], rows: Interactions) -> Iterator[str]:
    """Yield what each tensor holds of the rows: by its length, its runs, its keys, its pattern."""
    n_users, n_items = len(rows.users), len(rows.items)
    by_user = _groups(rows.user, rows.item, n_users)
    compact = np.unique(rows.user, return_inverse=True)[1]  # key users, numbered among themselves
    by_item = [*_groups(rows.item, rows.user, n_items), *_groups(rows.item, compact, n_items)]
    keys = [rows.item * n + user for n, user in ((n_users, rows.user), (len(by_user), compact))]
    keys += [user * n_items + rows.item for user in (rows.user, compact)]
    for name, tensor in tensors.items():
        values = tensor.detach().cpu().numpy()
        if len(rows) in values.shape or 2 * len(rows) in values.shape:
            yield f"{name}: one entry for each row"
        if not np.issubdtype(values.dtype, np.floating):
            flat = values.flatten().astype(np.int64)
            for kind, sought in (("histories", by_user), ("raters", by_item)):
                if sum(_holds_group(flat, x) for x in sought) >= MIN_MATCHES:
                    yield f"{name}: {kind}"
            if any(np.isin(x, flat).mean() > 0.9 for x in keys):
                yield f"{name}: pairs of user and item"
        if values.ndim == 2 and n_items in values.shape:
            matrix = values if values.shape[1] == n_items else values.T
            patterns = {tuple(np.flatnonzero(x).tolist()) for x in matrix}
            if len(patterns & {*by_user}) >= MIN_MATCHES:
                yield f"{name}: histories as a pattern"
        features = rows.user_features
        if features is not None and values.ndim == 2 and values.shape[1] == features.shape[1]:
            known = {tuple(x) for x in features[np.unique(rows.user)].round(4).tolist()}
            if len(known & {tuple(x) for x in values.round(4).tolist()}) >= MIN_MATCHES:
                yield f"{name}: features of users"
