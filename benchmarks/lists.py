"""Lists for new users: the default order beside its two ends and beside other models.

Every model is trained on the key users of the standard split, without any option chosen for the
dataset. The lists are those of `Recommender.recommend`: the best 20 of the whole catalogue less the
history, for every new user with test rows. A rating of 4 of 5 or more is *liked*.

    recall  hits among the first 20 / test rows, at most 20
    liked   liked hits among the first 20 / liked test rows, at most 20
    NDCG    NDCG@10 with gain 2^rating - 1, and 0 for an item without a test row
    IPW     liked hits, each weighted by 1 / √(share of the key users with the item), over all liked
    stars   mean rating of the hits

    python benchmarks/lists.py [--seeds 3] [--out FILE.jsonl] ml-100k douban ml-1m
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from idcf.data.history_reader import NewUser
from idcf.data.interactions import Ints, row_lookup
from idcf.data.split import Split
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.inference.predictor import RankingQuery
from idcf.inference.scoring import top_unseen_items
from idcf.metrics import PerUserMetric, RelevantItems, ndcg_at, paired_difference, recall_at
from idcf.recommender import Recommender
from idcf.training.train import TrainingJob, train

K = 20
BASELINES = ("popularity", "ease", "idcf-odds")
QUALITIES = {
    "take-up end": 0.0,
    "quality 0.2": 0.2,
    "default": None,
    "quality 0.5": 0.5,
    "stars": 1.0,
}
Metrics = dict[str, np.ndarray]  # one value per user


def main() -> None:
    """Print a table and paired differences for each dataset, and append rows to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.datasets:
        for seed in range(arguments.seeds):
            rows = measure(name, seed)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


def measure(name: str, seed: int) -> list[dict[str, object]]:
    """Return one row for each order of one dataset; print them."""
    dataset = open_dataset(name, progress=False)
    split, split_name = standard_split(dataset, seed=seed)
    test = split.test.for_users(split.query_users)
    users = np.unique(test.user)
    lists: dict[str, tuple[Ints, float]] = {}
    start = time.perf_counter()
    recommender = Recommender(key_threshold=dataset.key_threshold, seed=seed, device="cpu")
    recommender.fit(split.train)
    seconds = time.perf_counter() - start
    for label, quality in QUALITIES.items():
        lists[label] = recommend(recommender, split, users, quality), seconds
    for model in BASELINES:
        lists[model] = rank_with(model, split, users, seed)
    evaluate = list_metrics(split, users)
    metrics = {label: evaluate(top) for label, (top, _) in lists.items()}
    rows = []
    for label, values in metrics.items():
        row: dict[str, object] = {
            "dataset": name,
            "split": split_name,
            "seed": seed,
            "order": label,
        }
        row |= {key: round(float(np.nanmean(x)), 4) for key, x in values.items()}
        row |= {"users": len(users), "fit_seconds": round(lists[label][1], 1)}
        for end in ("take-up end", "stars"):
            if label == "default":
                row[f"IPW - {end}"] = difference(values["IPW"], metrics[end]["IPW"], seed)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def difference(first: np.ndarray, second: np.ndarray, seed: int) -> list[float]:
    """Return the mean paired difference over users with its 95 % interval."""
    known = ~np.isnan(first)
    a, b = (PerUserMetric.from_values(x[known]) for x in (first, second))
    interval = paired_difference(a, b, rng=np.random.default_rng(seed))
    return [round(float(x), 4) for x in (interval.value, interval.low, interval.high)]


def recommend(recommender: Recommender, split: Split, users: Ints, quality: float | None) -> Ints:
    """Return the served lists [U, K] of new users as item rows."""
    predictor = recommender.predictor
    row_by_id = row_lookup(recommender.artifact.items)
    history = split.train.history(users)
    ends = history.offsets[1:-1].numpy()
    queries = [
        RankingQuery(NewUser(items, values), K, quality=quality)
        for items, values in zip(
            np.split(history.items.numpy(), ends),
            np.split(history.values.numpy(), ends),
            strict=True,
        )
    ]
    top = np.full((len(users), K), -1, np.int64)
    for position, recommendations in enumerate(predictor.recommend(queries, min_batch=1)):
        top[position, : len(recommendations)] = [row_by_id[x.item_id] for x in recommendations]
    return top


def rank_with(model: str, split: Split, users: Ints, seed: int) -> tuple[Ints, float]:
    """Return the lists [U, K] of a model of implicit feedback, and the seconds of its training."""
    implicit = Split(
        split.train.as_implicit(), split.test.as_implicit(), split.key_users, split.query_users
    )
    start = time.perf_counter()
    trained = train(model, TrainingJob(implicit, seed=seed)).model
    seconds = time.perf_counter() - start
    return top_unseen_items(trained, users, implicit.train, K, anonymous=True), seconds


def list_metrics(split: Split, users: Ints) -> Callable[[Ints], Metrics]:
    """Return a function that measures lists [U, K] against the test rows of the users."""
    test = split.test
    order, start = test.rows_by_user
    item, rating = test.item[order], test.rating[order]
    counts = split.train.for_users(split.key_users).item_counts()
    weight = 1 / np.sqrt((counts + 1) / len(split.key_users))
    levels = np.unique(split.train.rating)
    liked = rating >= levels[0] + 0.75 * (levels[-1] - levels[0])

    def relevant(chosen: np.ndarray, gains: np.ndarray | None) -> RelevantItems:
        """Return the chosen test rows of each user."""
        rows = [np.flatnonzero(chosen[start[u] : start[u + 1]]) + start[u] for u in users]
        index = np.concatenate(rows)
        offsets = np.concatenate([[0], np.cumsum([len(x) for x in rows])])
        return RelevantItems(item[index], offsets, None if gains is None else gains[index])

    every = relevant(np.ones(len(item), bool), None)
    liked_items = relevant(liked, None)
    rated = relevant(np.ones(len(item), bool), 2.0**rating - 1)
    rating_of = {(u, i): r for u, i, r in zip(test.user, test.item, test.rating, strict=True)}

    def evaluate(top: Ints) -> Metrics:
        """Return one value per user of each metric."""
        hits = [
            [(u, i) for i in row if (u, i) in rating_of] for u, row in zip(users, top, strict=True)
        ]
        stars = [rating_of[x] for row in hits for x in row]
        total = np.add.reduceat(np.append(weight[liked_items.items], 0), liked_items.offsets[:-1])
        total[liked_items.lengths() == 0] = np.nan
        threshold = levels[0] + 0.75 * (levels[-1] - levels[0])
        hit_weight = [
            sum(weight[i] for u, i in row if rating_of[u, i] >= threshold) for row in hits
        ]
        return {
            "recall": recall_at(top, every, denominator="min"),
            "liked": recall_at(top, liked_items, denominator="min"),
            "NDCG": ndcg_at(top, rated, 10),
            "NDCG@20": ndcg_at(top, every),
            "IPW": np.array(hit_weight) / total,
            "stars": np.array(stars or [np.nan]),
        }

    return evaluate


if __name__ == "__main__":
    main()
