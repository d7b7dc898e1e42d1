"""Probabilities of `idcf-takeup` for new users: expected against observed numbers of test rows.

The model is trained on the key users of the standard split, without ratings. All pairs of a new
user and an item outside the history are sorted by P and divided into ten groups, in two ways:
groups that expect equal numbers of test rows, and groups with equal numbers of pairs. P counts the
next N items (ten, or half of a light key user's); a test set has other numbers of items per user,
so that the expectation is 1 - (1 - P)^k with the k for which all expectations add up to the test
rows.

    python benchmarks/take_up_calibration.py [--seeds 1] [--out FILE.jsonl] ml-100k douban ml-1m
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from idcf.data.split import Split
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.models.base import Model
from idcf.training.train import TrainingJob, train

N_GROUPS, BLOCK = 10, 64  # groups of pairs, and users scored at once
Array = NDArray[np.float64]


def main() -> None:
    """Print a row for each dataset and seed, and append it to --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.datasets:
        for seed in range(arguments.seeds):
            line = json.dumps(measure(name, seed))
            print(line, flush=True)
            if arguments.out:
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


def measure(name: str, seed: int) -> dict[str, object]:
    """Return the ratios of observed to expected test rows of one dataset."""
    split, split_name = standard_split(open_dataset(name, progress=False), seed=seed)
    split = Split(
        split.train.as_implicit(), split.test.as_implicit(), split.key_users, split.query_users
    )
    model = train("idcf-takeup", TrainingJob(split, seed=seed)).model.eval()
    probability, is_hit = pairs(model, split)
    rate = -np.log1p(-probability)
    n_hits = int(is_hit.sum())
    scale = brentq(lambda k: -np.expm1(-k * rate).sum() - n_hits, 1e-4, 1e4)
    expected = -np.expm1(-scale * rate)
    order = np.argsort(-expected, kind="stable")
    expected, is_hit = expected[order], is_hit[order]
    by_expectation = np.cumsum(expected) / expected.sum() * N_GROUPS
    by_pairs = np.arange(len(expected)) / len(expected) * N_GROUPS
    row: dict[str, object] = {"dataset": name, "split": split_name, "seed": seed}
    row |= {"test_rows": n_hits, "pairs": len(expected), "scale": round(scale, 3)}
    for label, position in (("equal_expectation", by_expectation), ("equal_pairs", by_pairs)):
        group = np.minimum(position.astype(np.int64), N_GROUPS - 1)
        observed, total = (np.bincount(group, x, N_GROUPS) for x in (is_hit, expected))
        row[f"observed_to_expected, {label}"] = np.round(observed / total, 2).tolist()
        row[f"test_rows, {label}"] = observed.astype(int).tolist()
    return row


def pairs(model: Model, split: Split) -> tuple[Array, NDArray[np.bool_]]:
    """Return P of every new user with test rows and item outside the history, and whether it is a
    test row."""
    test = split.test.for_users(split.query_users)
    users, parts = np.unique(test.user), []
    for low in range(0, len(users), BLOCK):
        block = users[low : low + BLOCK]
        with torch.inference_mode():
            scores = model.score_catalog(split.train.build_users(block).anonymous())
        history = split.train.history(block)
        is_candidate = np.ones(scores.shape, bool)
        is_candidate[history.owner().numpy(), history.items.numpy()] = False
        is_hit = np.zeros(scores.shape, bool)
        rows = test.for_users(block)
        is_hit[np.searchsorted(block, rows.user), rows.item] = True
        probability = scores.numpy().astype(np.float64).clip(1e-12, 1 - 1e-12)
        parts.append((probability[is_candidate], is_hit[is_candidate]))
    probability, is_hit = (np.concatenate(column) for column in zip(*parts, strict=True))
    return probability, is_hit


if __name__ == "__main__":
    main()
