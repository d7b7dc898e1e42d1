"""Two small worlds after the paper's comparison of expressiveness, each as a split with new users.

Users of two kinds rate items of two kinds: users of kind n rate items of kind n 5, others 1. All
users have the same mean rating and all items too, so only what users have in common helps.
"""

from __future__ import annotations

import numpy as np

from idcf.data.interactions import Interactions, Ints, Mask, Vocab
from idcf.data.split import Split
from idcf.rng import random_stream

_HIGH, _LOW = 5.0, 1.0


def same_features_world(n_users: int = 120, n_items: int = 30, seed: int = 0) -> Split:
    """Return a split in which all users have the same features and differ by their ratings only.

    A third of the users are new. Everybody rates half of the items, as many of each kind; the other
    half of a new user's items are test rows.
    """
    rng = random_stream(seed, "same features")
    users = np.arange(n_users)
    rated = _half_of_each_kind(n_users, n_items, rng)
    is_new = users % 6 < 2  # as many of each kind
    table = _ratings(n_users, n_items, rated, np.ones((n_users, 1), np.float32))
    test = _ratings(n_users, n_items, ~rated & is_new[:, None], table.user_features)
    return _split(table, test, is_new)


def same_subgraphs_world(n_users: int = 180, n_items: int = 36, seed: int = 0) -> Split:
    """Return a split in which the subgraphs of a new user's test pairs do not depend on the kind
    of the user.

    The items are three blocks A, B and C, with as many items of each kind. A third of the users
    rates all of A and B, a third all of B and C. The others are new: they rate some of A, as many
    of each kind, and their test rows are C. Raters of C have no rating of A, so that the 1-hop
    subgraph of such a pair holds as many high as low edges on both sides and no edge between them.
    Only through B does A say which items of C a new user likes.
    """
    rng = random_stream(seed, "same subgraphs")
    block = np.arange(n_items) * 3 // n_items
    role = np.arange(n_users) * 3 // n_users
    rated = (block <= 1) & (role == 0)[:, None] | (block >= 1) & (role == 1)[:, None]
    some = _half_of_each_kind(n_users, n_items // 3, rng)
    rated[:, block == 0] |= some & (role == 2)[:, None]
    is_new = role == 2
    features = np.ones((n_users, 1), np.float32)
    table = _ratings(n_users, n_items, rated, features)
    test = _ratings(n_users, n_items, (block == 2) & is_new[:, None], features)
    return _split(table, test, is_new)


def likes(user: Ints, item: Ints) -> Mask:
    """Return whether users and items are of the same kind."""
    same_kind: Mask = user % 2 == item % 2
    return same_kind


def _half_of_each_kind(n_users: int, n_items: int, rng: np.random.Generator) -> Mask:
    """Return which items each user rates: a random half of the even and of the odd ones [U, I]."""
    rated = np.zeros((n_users, n_items), bool)
    for kind in (0, 1):
        items = np.arange(kind, n_items, 2)
        order = rng.random((n_users, len(items))).argsort(1)
        np.put_along_axis(rated[:, kind::2], order[:, : len(items) // 2], True, 1)
    return rated


def _ratings(
    n_users: int, n_items: int, rated: Mask, user_features: np.typing.NDArray[np.float32] | None
) -> Interactions:
    """Return the table of the pairs in a mask [U, I]."""
    user, item = np.nonzero(rated)
    rating = np.where(likes(user, item), _HIGH, _LOW).astype(np.float32)
    users = Vocab([f"u{n}" for n in range(n_users)])
    items = Vocab([f"i{n}" for n in range(n_items)])
    return Interactions(users, items, user, item, rating, user_features=user_features)


def _split(table: Interactions, test: Interactions, is_new: Mask) -> Split:
    """Return the split in which new users are query users."""
    return Split(table, test, np.flatnonzero(~is_new), np.flatnonzero(is_new))
