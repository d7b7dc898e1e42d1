"""BPR factors of `implicit`, which know only the users they were trained on, meet new people.

    pip install "idcf[peers]"
    python examples/bring_your_own_factors.py [ml-100k | ml-1m]

A tenth of the users is held out whole. Of each, 1, 5 or 20 films they liked are shown, and the
first 20 recommendations are looked up among the films they liked beside these.
"""

from __future__ import annotations

import sys

import numpy as np
from implicit.bpr import BayesianPersonalizedRanking
from scipy.sparse import csr_matrix

from idcf import Recommender
from idcf.data.datasets.catalog import load

N = 20


def main(name: str = "ml-100k", seed: int = 1) -> dict[int, tuple[float, float]]:
    """Recall@20 of popularity and of brought factors, for each length of history."""
    table = load(name).interactions
    liked = table.where(table.rating >= 4)
    rng = np.random.default_rng(seed)
    new = rng.permutation(len(table.users))[: len(table.users) // 10]
    known = liked.where(~np.isin(liked.user, new))

    # somebody else's training
    _, row = np.unique(known.user, return_inverse=True)
    bpr = BayesianPersonalizedRanking(
        factors=64, learning_rate=0.05, iterations=100, random_state=0, num_threads=1
    )
    bpr.fit(csr_matrix((np.ones(len(row), np.float32), (row, known.item))), show_progress=False)

    # our new-user step: the users' vectors say what newcomers are like. Items that nobody had
    # are at the end of the catalogue, if anywhere
    ids = table.items.ids[: len(bpr.item_factors)]
    recommender = Recommender.from_factors(
        bpr.item_factors, bpr.user_factors, item_ids=ids, implicit=True
    )

    people = [rng.permutation(liked.item[liked.user == u]) for u in new]
    people = [x[x < len(ids)] for x in people]
    famous = np.argsort(-known.item_counts(), kind="stable")
    found = {}
    for n in (1, 5, 20):
        some = [(x[:n], set(x[n:].tolist())) for x in people if len(x) > n]
        lists = recommender.recommend([[ids[i] for i in shown] for shown, _ in some], n=N)
        pairs = zip(lists, some, strict=True)
        ours = [recall([ids.index(x.item_id) for x in a], b[1]) for a, b in pairs]
        usual = [recall([i for i in famous if i not in shown][:N], rest) for shown, rest in some]
        found[n] = float(np.mean(usual)), float(np.mean(ours))
        print(f"{n:3} shown: popularity {found[n][0]:.3f}, BPR with new users {found[n][1]:.3f}")
    return found


def recall(listed: list[int], rest: set[int]) -> float:
    """Of what could be found in a list of this length, the share that was."""
    return len(rest.intersection(listed)) / min(N, len(rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
