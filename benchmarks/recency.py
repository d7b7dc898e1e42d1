"""What it gains that later items of a history count more, for new users.

The lists are the best 20 of `Recommender.recommend` less the history, with the recency that the fit
chose ("fitted") and with fixed values. The splits:

    temporal  one point in time: users first seen after it are new, and the first half of their
              rows is the history (`idcf evaluate --split temporal`)
    last      users with fewer rows than a key user are new; the last half of their rows, at most
              ten, is to be found. The order is that of the times or, without any, of the file
              (of its training part, where there is an official split)

    python benchmarks/recency.py [--seeds 3] [--out FILE.jsonl] [--implicit] temporal ml-100k ml-1m
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from idcf.data.interactions import Interactions, Ints, row_lookup
from idcf.data.split import Split, rank_in_user, split_by_threshold, split_in_time
from idcf.evaluation.protocol import open_dataset
from idcf.inference.recency import Recency
from idcf.metrics import RelevantItems, ndcg_at, recall_at
from idcf.recommender import Recommender

K = 20
VALUES: tuple[Recency, ...] = (0.0, "fitted", 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


def main() -> None:
    """Print a row for each dataset, seed, quality and recency, and append them to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("split", choices=("temporal", "last"))
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--implicit", action="store_true", help="ignore ratings")
    parser.add_argument("--model", default="idcf-bayes")
    parser.add_argument("--max-users", type=int, help="measure on so many random new users")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.datasets:
        for seed in range(arguments.seeds):
            rows = measure(
                name,
                arguments.split,
                arguments.model,
                seed,
                arguments.implicit,
                arguments.max_users,
            )
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


def measure(
    name: str,
    split_name: str,
    model: str,
    seed: int,
    implicit: bool,
    max_users: int | None = None,
) -> list[dict[str, object]]:
    """Return one row for each quality and recency; print them."""
    dataset = open_dataset(name, progress=False)
    table = dataset.interactions
    if table.time is None:  # the rows of an official test part would be last, whenever they were
        table = dataset.train or table
        table = replace(table, time=np.arange(len(table)))
    table = table.as_implicit() if implicit else table
    split = split_in_time(table, 0.2) if split_name == "temporal" else split_last(table)
    users = np.unique(split.test.for_users(split.query_users).user)
    if max_users is not None:
        users = np.sort(np.random.default_rng(seed).permutation(users)[:max_users])
    recommender = Recommender(model, seed=seed, device="cpu")
    recommender.fit(split.train.for_users(split.key_users))
    relevant = split.test.history(users)
    targets = RelevantItems(relevant.items.numpy(), relevant.offsets.numpy())
    rows = []
    for quality in (None,) if table.implicit else (None, 0.0):
        baseline = None
        for recency in VALUES:
            top = recommend(recommender, split, users, quality, recency)
            ndcg, recall = ndcg_at(top, targets, k=K), recall_at(top, targets, k=K)
            baseline = ndcg if baseline is None else baseline
            gain = ndcg - baseline
            row: dict[str, object] = {"dataset": name, "split": split_name, "seed": seed}
            row |= {"model": recommender.manifest.model, "implicit": table.implicit}
            row |= {"quality": quality, "recency": recency, "users": len(users)}
            row |= {"fitted": recommender.manifest.fitted_recency}
            row |= {"ndcg@20": round(float(ndcg.mean()), 4)}
            row |= {"recall@20": round(float(recall.mean()), 4)}
            row |= {"ndcg gain": round(float(gain.mean()), 4)}
            row |= {"standard error": round(float(gain.std() / len(users) ** 0.5), 4)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def split_last(table: Interactions) -> Split:
    """Hold out the last rows of the users with fewer rows than the others."""
    threshold = int(min(30, np.median(table.user_counts()[table.user_counts() > 0])))
    split = split_by_threshold(table, table.where(table.item < 0), threshold)
    assert table.time is not None
    counts = table.user_counts()
    from_last = counts[table.user] - 1 - rank_in_user(table, table.time)
    is_target = from_last < np.minimum(10, counts // 2)[table.user]
    is_target &= table.user_mask(split.query_users)[table.user]
    return replace(split, train=table.where(~is_target), test=table.where(is_target))


def recommend(
    recommender: Recommender, split: Split, users: Ints, quality: float | None, recency: Recency
) -> Ints:
    """Return the served lists [U, K] of new users as item rows."""
    row_by_id, train = row_lookup(split.train.items), split.train
    order, start = train.rows_by_user
    histories = []
    for user in users.tolist():
        rows = order[start[user] : start[user + 1]]
        assert train.time is not None
        ids = [train.items.ids[x] for x in train.item[rows]]
        columns = ids, train.rating[rows].tolist(), train.time[rows].tolist()
        histories.append(list(zip(*columns, strict=True)))
    lists = recommender.recommend(histories, n=K, quality=quality, recency=recency)
    top = np.full((len(users), K), -1, np.int64)
    for position, recommendations in enumerate(lists):
        top[position, : len(recommendations)] = [row_by_id[x.item_id] for x in recommendations]
    return top


if __name__ == "__main__":
    main()
