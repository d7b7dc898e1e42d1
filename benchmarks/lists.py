"""Lists for new users: the default order beside its two ends and beside other models.

Every model is trained on the key users of the standard split, without any option chosen for the
dataset. The lists are those of `Recommender.recommend`: the best 20 of the whole catalogue less the
history, for every new user with test rows. The metrics are those of `idcf evaluate`, except that
recall has the denominator `min`. A rating of 4 of 5 or more is *liked*.

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
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from idcf.data.history_reader import NewUser
from idcf.data.interactions import Ints, row_lookup
from idcf.data.split import Split
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.list_metrics import measure_lists
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.inference.ranking_query import RankingQuery
from idcf.inference.scoring import top_unseen_items
from idcf.metrics import PerUserMetric, ndcg_at, paired_difference
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
METRICS = {  # label in the rows -> metric of the package
    "recall": "recall@20",
    "liked": "liked-recall@20",
    "NDCG": "ndcg@10",
    "IPW": "ipw-liked-recall@20",
    "stars": "stars-of-hits",
}
Metrics = dict[str, PerUserMetric]


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
    evaluate = list_metrics(split)
    metrics = {label: evaluate(top) for label, (top, _) in lists.items()}
    rows = []
    for label, values in metrics.items():
        row: dict[str, object] = {
            "dataset": name,
            "split": split_name,
            "seed": seed,
            "order": label,
        }
        row |= {key: round(x.mean(), 4) for key, x in values.items()}
        row |= {"users": len(users), "fit_seconds": round(lists[label][1], 1)}
        for end in ("take-up end", "stars"):
            if label == "default":
                row[f"IPW - {end}"] = difference(values["IPW"], metrics[end]["IPW"], seed)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def difference(first: PerUserMetric, second: PerUserMetric, seed: int) -> list[float]:
    """Return the mean paired difference over users with its 95 % interval."""
    interval = paired_difference(first, second, rng=np.random.default_rng(seed))
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


def list_metrics(split: Split) -> Callable[[Ints], Metrics]:
    """Return a function that measures the lists [U, K] of the new users with test rows."""
    evaluation_set = replace(
        EvaluationSet.from_split(split, split.query_users), recall_denominator="min"
    )
    every_item = evaluation_set.relevant._replace(gains=None)

    def evaluate(top: Ints) -> Metrics:
        """Return each metric, by its short name."""
        values = measure_lists(evaluation_set, top, METRICS.values())
        metrics = {label: values[name] for label, name in METRICS.items()}
        return metrics | {"NDCG@20": PerUserMetric.from_values(ndcg_at(top, every_item))}

    return evaluate


if __name__ == "__main__":
    main()
