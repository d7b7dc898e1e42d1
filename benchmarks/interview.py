"""The value of asking new users well-chosen questions, measured on ML-1M.

A quarter of ML-1M's users are held out of training as test users, and 600 more to develop on. A
fifth of each user's ratings is predicted afterwards; the user can answer with the others. Each user
is asked five questions, one after the other: by `next_question`, by popularity, or at random.

- *anything*: any item may be asked about. A user who has not rated the item cannot answer, and the
  question is lost.
- *known*: only items that the user has rated are asked about (`next_question(candidates=...)`).

The result is the RMSE after the answers, with equal weight for each user and with equal weight for
each rating; differences are paired over users.

    python benchmarks/interview.py [--users develop|test] [--model FOLDER] [--out FILE.jsonl]

Prints the rows, two for each way to ask, and appends them to --out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from idcf.data.datasets.catalog import load_dataset
from idcf.data.history_reader import NewUser, as_users
from idcf.data.interactions import Interactions
from idcf.evaluation.source_commit import source_commit
from idcf.metrics import PerUserMetric, bootstrap_interval, paired_difference
from idcf.models.bayes import BayesModel
from idcf.recommender import Recommender
from idcf.training.presets import stage_config

N_QUESTIONS, BLOCK_SIZE, N_TEST_USERS, N_DEVELOP_USERS = 5, 25, 1500, 600
UserItemMatrix = NDArray[np.float32]  # [users, items]
QuestionScore = Callable[[slice, list[NewUser]], UserItemMatrix]
"""Maps some users, as a slice and with their answers so far, to the value of asking each item."""


class InterviewedUsers(NamedTuple):
    """Ratings of held-out users [users, items of the model]; 0 means not rated."""

    answers: UserItemMatrix  # ratings that the user can answer with
    hidden: UserItemMatrix  # ratings to predict


def main(user_group: str, folder: Path | None) -> list[dict[str, Any]]:
    """Train or load a model, interview a group of users, and return the results."""
    table = load_dataset("ml-1m", progress=False).interactions
    order = np.random.default_rng(0).permutation(len(table.users))
    boundaries = [N_TEST_USERS, N_TEST_USERS + N_DEVELOP_USERS]
    test, develop, train = np.split(order, boundaries)
    recommender = train_or_load(table.for_users(np.sort(train)), folder)
    held_out = np.sort(test if user_group == "test" else develop)
    users = split_ratings(table, held_out, recommender)
    print(f"{len(users.answers):,} users, {user_group}", file=sys.stderr)
    return compare(users, recommender)


def train_or_load(table: Interactions, folder: Path | None) -> Recommender:
    """Load a model from a folder, or train it and save it there."""
    if folder is not None and folder.exists():
        return Recommender.load(folder)
    options = stage_config("idcf-bayes", dataset="ml-1m").options
    recommender = Recommender("idcf-bayes", key_threshold=1, **options).fit(table)
    if folder is not None:
        recommender.save(folder)
    return recommender


def split_ratings(
    table: Interactions, users: NDArray[np.int64], recommender: Recommender
) -> InterviewedUsers:
    """Split the ratings of held-out users into answers and hidden ratings."""
    reader, rng = recommender.predictor.history_reader, np.random.default_rng(1)
    item_rows = np.array(
        [reader.item_row(x) if reader.knows_item(x) else -1 for x in table.items.ids]
    )
    order, start = table.rows_by_user
    shape = (len(users), len(recommender.predictor.item_ids))
    answers, hidden = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for n, user in enumerate(users):
        user_rows = order[start[user] : start[user + 1]]
        user_rows = rng.permutation(user_rows[item_rows[table.item[user_rows]] >= 0])
        n_hidden = max(1, len(user_rows) // 5)
        for matrix, rows in ((hidden, user_rows[:n_hidden]), (answers, user_rows[n_hidden:])):
            matrix[n, item_rows[table.item[rows]]] = table.rating[rows]
    return InterviewedUsers(answers, hidden)


def compare(users: InterviewedUsers, recommender: Recommender) -> list[dict[str, Any]]:
    """Interview users by each strategy and return its errors beside those of `next_question`."""
    model = recommender.predictor.ranker.model
    if not isinstance(model, BayesModel):
        raise TypeError(f"the model is a {type(model).__name__}, not a BayesModel")
    is_rated = users.answers > 0
    random_scores = np.random.default_rng(2).random(is_rated.shape, np.float32)
    popularity = model.n_raters.numpy()
    results = []
    for pool, allowed in (("anything", np.ones_like(is_rated)), ("known", is_rated)):

        def gains(
            block: slice, new_users: list[NewUser], is_known: bool = pool == "known"
        ) -> UserItemMatrix:
            scores: UserItemMatrix = model.question_gains(
                as_users(new_users), items_are_known=is_known
            ).numpy()
            return scores

        strategies: Mapping[str, QuestionScore] = {
            "next_question": gains,
            "popular": lambda block, new_users: np.broadcast_to(
                popularity, (len(new_users), len(popularity))
            ),
            "random": lambda block, new_users: random_scores[block],
        }
        answered = {name: interview(users, score, allowed) for name, score in strategies.items()}
        answered["nothing"] = np.zeros_like(is_rated)
        errors = {name: squared_errors(users, x, recommender) for name, x in answered.items()}
        for name, x in answered.items():
            way = {"pool": pool, "asked": name, "answers": round(float(x.sum(1).mean()), 3)}
            for row in _summarize(errors[name], errors["next_question"]):
                results.append(way | row | {"n_users": len(x), "commit": source_commit()})
                print(results[-1], file=sys.stderr)
    return results


def interview(
    users: InterviewedUsers, score: QuestionScore, allowed: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Ask each user about the allowed item of the highest score, `N_QUESTIONS` times.

    Returns which items each user answered, [users, items] as `allowed`.
    """
    askable, answered = allowed.copy(), np.zeros_like(allowed)
    for _ in range(N_QUESTIONS):
        for block, new_users in _blocks(users.answers * answered):
            best = np.where(askable[block], score(block, new_users), -np.inf).argmax(1)
            rows = np.arange(len(best))
            askable[block][rows, best] = False
            answered[block][rows, best] = users.answers[block][rows, best] > 0
    return answered


def squared_errors(
    users: InterviewedUsers, answered: NDArray[np.bool_], recommender: Recommender
) -> UserItemMatrix:
    """Return the sum of squared errors and the number of hidden ratings per user: [users, 2]."""
    ranker = recommender.predictor.ranker
    sums = []
    for block, new_users in _blocks(users.answers * answered):
        ratings = users.hidden[block]
        errors = (ranker.score_catalog(as_users(new_users)).numpy() - ratings) * (ratings > 0)
        sums.append(np.stack([(errors**2).sum(1), (ratings > 0).sum(1)], 1))
    return np.concatenate(sums)


def _blocks(ratings: UserItemMatrix) -> Iterator[tuple[slice, list[NewUser]]]:
    """Yield some users at a time, to bound memory."""
    for start in range(0, len(ratings), BLOCK_SIZE):
        block = slice(start, start + BLOCK_SIZE)
        yield block, [NewUser(np.flatnonzero(x), x[x > 0]) for x in ratings[block]]


def _summarize(sums: UserItemMatrix, reference: UserItemMatrix) -> Iterator[dict[str, Any]]:
    """Yield the RMSE of a strategy, and that of `next_question` (`reference`) minus it, with equal
    weight for users and for ratings."""
    for unit in ("users", "ratings"):
        (total, weight), (reference_total, _) = _weighted(sums, unit), _weighted(reference, unit)
        rng, ids = np.random.default_rng(0), np.arange(len(weight))
        rmse = bootstrap_interval(total, weight, statistic="rmse", rng=rng)
        difference = paired_difference(
            PerUserMetric(ids, reference_total, weight),
            PerUserMetric(ids, total, weight),
            statistic="rmse",
            rng=rng,
        )
        values = [round(float(x), 4) for x in (*rmse, *difference)]
        names = ("rmse", "low", "high", "difference", "difference_low", "difference_high")
        yield {"weight": unit, **dict(zip(names, values, strict=True))}


def _weighted(sums: UserItemMatrix, unit: str) -> tuple[Any, Any]:
    total, n = sums.astype(np.float64).T
    return (total / n, np.ones_like(n)) if unit == "users" else (total, n)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Ask new users five questions.")
    parser.add_argument("--users", choices=("develop", "test"), default="test")
    parser.add_argument("--model", type=Path, help="folder of the trained model, made if missing")
    parser.add_argument("--out", type=Path, help="file to append the rows to")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [
        {"dataset": "ml-1m", "users": options.users, **row}
        for row in main(options.users, options.model)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    print(lines, end="")
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(lines)
