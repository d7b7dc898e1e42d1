"""What diversity and damping cost and gain, for new users.

The lists are the best 20 of `Recommender.recommend`, as in `lists.py`. Beside recall@20 and the
recall of liked items (a rating of 4 of 5 or more):

    similarity  mean cosine of two items of a list, over the key users who have them
    genres      number of different genres in a list (MovieLens)
    popularity  mean number of key users with an item of a list
    coverage    share of the catalogue that is in a list of some user
    gini        inequality of how often the items are shown: 0 equally often, 1 only one item

    python benchmarks/list_options.py [--seeds 3] [--out FILE.jsonl] [--implicit] ml-100k douban
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lists import K, list_metrics
from scipy.sparse import csr_array

from idcf.data.datasets.catalog import Dataset, fetch_dataset
from idcf.data.datasets.formats import read_side_columns
from idcf.data.history_reader import NewUser
from idcf.data.interactions import Ints, row_lookup
from idcf.data.split import Split
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.recommender import Recommender

VALUES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0)


def main() -> None:
    """Print a row for each dataset, seed, option and value, and append them to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--implicit", action="store_true", help="ignore ratings")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.datasets:
        for seed in range(arguments.seeds):
            rows = measure(name, seed, arguments.implicit)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows)


def measure(name: str, seed: int, implicit: bool) -> list[dict[str, object]]:
    """Return one row for each option and value; print them."""
    dataset = open_dataset(name, progress=False)
    split, split_name = standard_split(dataset, seed=seed)
    users = np.unique(split.test.for_users(split.query_users).user)
    recommender = Recommender(key_threshold=dataset.key_threshold, seed=seed, device="cpu")
    recommender.fit(split.train.as_implicit() if implicit else split.train)
    evaluate, describe = list_metrics(split), list_description(dataset, split)
    rows = []
    for option in ("diversity", "damping"):
        for value in VALUES:
            top = recommend(recommender, split, users, {option: value})
            metrics = {k: x.mean() for k, x in evaluate(top).items()} | describe(top)
            row: dict[str, object] = {"dataset": name, "split": split_name, "seed": seed}
            row |= {"model": recommender.predictor.artifact.manifest.model, "implicit": implicit}
            row |= {option: value, "users": len(users)}
            row |= {key: round(x, 4) for key, x in metrics.items()}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def recommend(recommender: Recommender, split: Split, users: Ints, options: dict[str, Any]) -> Ints:
    """Return the served lists [U, K] of new users as item rows."""
    predictor, row_by_id = recommender.predictor, row_lookup(recommender.artifact.items)
    history = split.train.history(users)
    ends = history.offsets[1:-1].numpy()
    columns = (np.split(x.numpy(), ends) for x in (history.items, history.values))
    query = predictor.list_query(n=K, **options)
    queries = [
        query._replace(new_user=NewUser(items, values))
        for items, values in zip(*columns, strict=True)
    ]
    top = np.full((len(users), K), -1, np.int64)
    for position, recommendations in enumerate(predictor.recommend(queries, min_batch=1)):
        top[position, : len(recommendations)] = [row_by_id[x.item_id] for x in recommendations]
    return top


def list_description(dataset: Dataset, split: Split) -> Any:
    """Return a function that describes lists [U, K] by similarity, genres and popularity."""
    key = split.train.for_users(split.key_users)
    shape = len(key.users), len(key.items)
    x = csr_array((np.ones(len(key)), (key.user, key.item)), shape=shape)
    counts = key.item_counts()
    norm = np.sqrt(np.maximum(counts, 1))
    cosine = (x.T @ x).toarray() / norm / norm[:, None]
    np.fill_diagonal(cosine, 0)
    genres = item_genres(dataset)

    def describe(top: Ints) -> dict[str, float]:
        """Return one number per description."""
        shown = np.sort(np.bincount(top[top >= 0], minlength=len(counts)))
        similarity = [cosine[np.ix_(row, row)].sum() / (K * (K - 1)) for row in top]
        out = {
            "similarity": float(np.mean(similarity)),
            "popularity": float(np.mean([counts[row].mean() for row in top])),
            "coverage": float(np.mean(shown > 0)),
            "gini": float(1 - 2 * (np.cumsum(shown) / shown.sum()).mean() + 1 / len(shown)),
        }
        if genres is not None:
            out["genres"] = float(np.mean([genres[row].any(0).sum() for row in top]))
        return out

    return describe


def item_genres(dataset: Dataset) -> np.ndarray | None:
    """Return which genres the items of MovieLens-100K have [I, G]; None: another dataset."""
    if dataset.name != "ml-100k":
        return None
    columns = read_side_columns(fetch_dataset(dataset.name, progress=False) / "u.item")
    names = [x for x in columns if x.startswith("genre_")]
    table = np.array([[int(x) for x in columns[name]] for name in names], bool).T
    row_by_id = {int(x): row for row, x in enumerate(columns["item_id"])}
    return table[[row_by_id[x] for x in dataset.interactions.items.ids]]


if __name__ == "__main__":
    main()
