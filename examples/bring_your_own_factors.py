"""Recommend to new users with BPR factors of `implicit`, which know only their training users.

    pip install "idcf[peers]"
    python examples/bring_your_own_factors.py [ml-100k | ml-1m]

A tenth of the users is held out whole. The model reads 1, 5 or 20 films that each of them liked;
its first 20 recommendations are compared with the other films that the user liked.
"""

from __future__ import annotations

import sys

import numpy as np
from implicit.bpr import BayesianPersonalizedRanking
from scipy.sparse import csr_matrix

from idcf import Recommender
from idcf.data.datasets.catalog import load_dataset

N = 20


def main(name: str = "ml-100k", seed: int = 1) -> dict[int, tuple[float, float]]:
    """Return Recall@20 of popularity and of the BPR factors, for each length of history."""
    table = load_dataset(name).interactions
    liked = table.where(table.rating >= 4)
    rng = np.random.default_rng(seed)
    new_users = rng.permutation(len(table.users))[: len(table.users) // 10]
    train = liked.where(~np.isin(liked.user, new_users))

    # Training, by another library.
    _, user_row = np.unique(train.user, return_inverse=True)
    bpr = BayesianPersonalizedRanking(
        factors=64, learning_rate=0.05, iterations=100, random_state=0, num_threads=1
    )
    values = np.ones(len(user_row), np.float32)
    bpr.fit(csr_matrix((values, (user_row, train.item))), show_progress=False)

    # New users, by this package: the user factors give the prior of a new user's vector. Items at
    # the end of the catalogue that no training user liked have no factors.
    ids = table.items.ids[: len(bpr.item_factors)]
    recommender = Recommender.from_factors(
        bpr.item_factors, bpr.user_factors, item_ids=ids, implicit=True
    )

    liked_items = [rng.permutation(liked.item[liked.user == u]) for u in new_users]
    liked_items = [x[x < len(ids)] for x in liked_items]
    by_popularity = np.argsort(-train.item_counts(), kind="stable")
    recalls = {}
    for n in (1, 5, 20):
        tasks = [(x[:n], set(x[n:].tolist())) for x in liked_items if len(x) > n]
        lists = recommender.recommend([[ids[i] for i in history] for history, _ in tasks], n=N)
        ours, popularity = [], []
        for recommendations, (history, relevant) in zip(lists, tasks, strict=True):
            ours.append(recall([ids.index(x.item_id) for x in recommendations], relevant))
            popularity.append(recall([i for i in by_popularity if i not in history][:N], relevant))
        recalls[n] = float(np.mean(popularity)), float(np.mean(ours))
        print(f"history of {n:2}: popularity {recalls[n][0]:.3f}, BPR {recalls[n][1]:.3f}")
    return recalls


def recall(recommended: list[int], relevant: set[int]) -> float:
    """Return the share of relevant items that are recommended, of at most `N`."""
    return len(relevant.intersection(recommended)) / min(N, len(relevant))


if __name__ == "__main__":
    main(*sys.argv[1:])
