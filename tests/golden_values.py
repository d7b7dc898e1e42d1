"""Golden values of every model on two fixed datasets: computed, written, read and compared.

Everything goes through the public API, imported below. The small dataset is drawn from NumPy here;
MovieLens-100K is read from its files.

A record holds, for one model and one kind of data:

- for new users with short histories: `scores` of 12 items, their `std` if the model has a
  posterior, `embeddings` if the model has vectors, and `lists` of the best items;
- for three users of the training table: `known_scores` and `known_lists`, the only entries of a
  model that cannot serve new users;
- or `refused`, the name of the error, if the model does not take this kind of data.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from idcf import ColdUserError, ConfigError, Recommender, all_models

MODELS = all_models()

FOLDER = Path(__file__).with_name("golden")
TOLERANCE = 1e-6
LENGTH = 5  # of the compared lists
TOP_RATING = 5.0
DIGITS = 9

SMALL, MOVIELENS = "small", "ml-100k"
DATASETS = (SMALL, MOVIELENS)
KINDS = RATINGS, IMPLICIT, FEATURES = "ratings", "implicit", "features"

# trained by a solver: there is no number of epochs to set
SOLVED = {"popularity", "item-mean", "bias", "item-knn", "ease", "slim", "als", "als-popularity"}
SOLVED |= {"idcf-bayes", "idcf-odds", "idcf-takeup", "bomic"}
READS_FEATURES = {"idcf-bayes", "nimc"}

Record = dict[str, Any]


@dataclass(frozen=True)
class GoldenData:
    """A table of ratings, and the requests that are made to every model."""

    ratings: pd.DataFrame
    implicit: pd.DataFrame
    users: pd.DataFrame  # user features
    features: Mapping[str, Any]  # features of the new users
    items: Sequence[Any]  # the items that are scored
    histories: Sequence[Mapping[Any, float]]  # of new users
    known_users: Sequence[Any]  # users of the table
    key_threshold: int


@cache
def small() -> GoldenData:
    """90 users and 40 items: rounded ratings of a product of three factors and two biases."""
    rng = np.random.default_rng(20240607)
    n_users, n_items, rank = 90, 40, 3
    user_bias, item_bias = rng.normal(0, 0.4, n_users), rng.normal(0, 0.5, n_items)
    user_factors, item_factors = rng.normal(0, 0.8, (2, max(n_users, n_items), rank))
    counts = np.where(np.arange(n_users) % 3 == 0, 6, 20) + rng.integers(0, 5, n_users)
    weight = np.exp(item_bias)
    rows = []
    for user, count in enumerate(counts):
        for item in rng.choice(n_items, count, replace=False, p=weight / weight.sum()):
            truth = 3.5 + user_bias[user] + item_bias[item]
            truth += user_factors[user] @ item_factors[item] + rng.normal(0, 0.3)
            rows.append((f"u{user}", f"i{item}", float(np.clip(np.rint(truth), 1, 5))))
    ratings = pd.DataFrame(rows, columns=["user_id", "item_id", "rating"])
    users = pd.DataFrame(
        {
            "user_id": [f"u{n}" for n in range(n_users)],
            "age": rng.integers(16, 70, n_users),
            "work": np.where(user_factors[:n_users, 0] > 0, "teacher", "farmer"),
        }
    )
    return GoldenData(
        ratings,
        ratings[ratings.rating >= 3][["user_id", "item_id"]],
        users,
        {"age": 34, "work": "teacher"},
        [f"i{n}" for n in range(0, 36, 3)],
        [
            {"i1": 5.0, "i4": 2.0},
            {"i0": 4.0, "i9": 1.0, "i22": 5.0, "i31": 3.0},
            {"i2": 3.0, "i5": 5.0, "i7": 1.0, "i11": 4.0, "i18": 2.0, "i27": 5.0, "i38": 4.0},
        ],
        ["u8", "u52", "u71"],
        key_threshold=12,
    )


@cache
def movielens() -> GoldenData:
    """All of MovieLens-100K, read from IDCF_DATA."""
    folder = movielens_folder()
    assert folder is not None, "IDCF_DATA names no folder with ml-100k/u.data"
    columns = ["user_id", "item_id", "rating", "timestamp"]
    ratings = pd.read_csv(folder / "u.data", sep="\t", names=columns)[columns[:3]]
    columns = ["user_id", "age", "sex", "occupation", "zip"]
    users = pd.read_csv(folder / "u.user", sep="|", names=columns)[columns[:4]]
    return GoldenData(
        ratings,
        ratings[["user_id", "item_id"]],
        users,
        {"age": 34, "sex": "F", "occupation": "librarian"},
        [1, 7, 12, 50, 98, 117, 121, 174, 204, 258, 288, 300],
        [
            {56: 5.0, 294: 2.0},
            {100: 4.0, 181: 1.0, 127: 5.0, 237: 3.0},
            {172: 5.0, 168: 5.0, 222: 2.0, 276: 4.0, 151: 3.0, 79: 4.0, 118: 1.0},
        ],
        [1, 13, 94],
        key_threshold=30,
    )


@cache
def part_of_movielens() -> GoldenData:
    """The first 200 users of MovieLens-100K and their 200 most rated items, for slower models."""
    whole = movielens()
    rows = whole.ratings[whole.ratings.user_id <= 200]
    counts = rows.item_id.value_counts().sort_index()
    best = counts.sort_values(ascending=False, kind="stable").index[:200]
    rows = rows[rows.item_id.isin(best)]
    fields = dict(vars(whole))
    fields |= {"ratings": rows, "implicit": rows[["user_id", "item_id"]]}
    fields["users"] = whole.users[whole.users.user_id <= 200]
    return GoldenData(**fields)


def movielens_folder() -> Path | None:
    """The folder with MovieLens-100K in IDCF_DATA, if there is one."""
    folder = Path(os.environ.get("IDCF_DATA", os.devnull)) / "ml-100k"
    return folder if (folder / "u.data").is_file() else None


# other options are those of the presets, except the number of epochs
_SMALL_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    name: {"embedding_size": 16}
    for name in ("idcf-gc", "gcmc-rd", "rd-item-gc", "meta-path-gc", "trans-user-gc")
}
_MOVIELENS_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "item-knn": {"neighbors": 50, "reg": 30.0},
    "ease": {"reg": 300.0},
    "slim": {"reg": 30.0, "l1_reg": 1.0},
    "als": {"embedding_size": 16, "reg": 10.0},
    "bomic": {"reg": 0.8, "user_reg": 0.3, "rank": 20},
    "idcf-bayes": {"embedding_size": 8, "sweeps": 16, "burn_in": 8},
    "igmc": {"size": 8, "train_cap": 15, "hidden": 16},
    **_SMALL_OPTIONS,
}
_PART = {"idcf-dot", "idcf-nn", "idcf-gc", "rd-item", "meta-path", "trans-user"}
_PART |= {"trans-user-ridge", "igmc", "f-eae", "gcmc", "bomic"}
_PART |= {"gcmc-rd", "rd-item-gc", "meta-path-gc", "trans-user-gc"}
_PART |= {"idcf-nn-additive", "idcf-nn-literal"}
_MOVIELENS_IMPLICIT = {"idcf-odds", "idcf-takeup", "ease", "als", "item-knn", "popularity"}
_MOVIELENS_IMPLICIT |= {"slim", "ngcf", "pinsage", "fism", "mult-vae"}


def kinds(name: str, dataset: str) -> Iterator[str]:
    """Yield the kinds of data that a model is recorded on."""
    yield RATINGS
    if dataset == SMALL or name in _MOVIELENS_IMPLICIT:
        yield IMPLICIT
    if name in READS_FEATURES:
        yield FEATURES


def records(name: str, dataset: str) -> dict[str, Record]:
    """Train a model on a dataset and return its records, by the kind of data."""
    if dataset == SMALL:
        data, epochs, options_by_model = small(), 2, _SMALL_OPTIONS
    else:
        data = part_of_movielens() if name in _PART else movielens()
        epochs, options_by_model = 1, _MOVIELENS_OPTIONS
    options = {} if name in SOLVED else {"epochs": epochs}
    options |= options_by_model.get(name, {})
    torch.set_num_threads(1)  # also when this file is run without pytest
    return {kind: record(name, data, kind, options) for kind in kinds(name, dataset)}


def record(name: str, data: GoldenData, kind: str, options: Mapping[str, Any]) -> Record:
    """Train a model on one kind of data and make every request."""
    implicit = kind == IMPLICIT
    table = data.implicit if implicit else data.ratings
    users = {"users": data.users} if kind == FEATURES else {}
    features = {"features": data.features} if kind == FEATURES else {}
    recommender = Recommender(
        name, key_threshold=data.key_threshold, seed=1, device="cpu", **options
    )
    try:
        recommender.fit(table, implicit=implicit, **users)
    except ConfigError as error:
        return {"refused": type(error).__name__}

    # the order of expected ratings, which is that of models without a take-up model
    order: dict[str, Any] = {"quality": 1.0} if recommender.artifact.take_up_model else {}
    order["return_std"] = recommender.artifact.model.has_uncertainty

    def recommend_known(n: int, **filters: Any) -> Any:
        users = list(data.known_users)
        return recommender.recommend(users=users, n=n, **order, **filters)

    by_item = [
        {row.item_id: score_or_rating(row) for row in recommendations}
        for recommendations in recommend_known(
            len(data.items), candidates=data.items, filter_seen=False
        )
    ]
    result: Record = {
        "known_scores": [[rounded(scores[item]) for item in data.items] for scores in by_item],
        "known_lists": [listed(x) for x in recommend_known(LENGTH + 1)],
    }
    histories = [list(x) if implicit else dict(x) for x in data.histories]

    def respond(request: Callable[[Any], Any]) -> list[Any] | None:
        try:
            return [request(history) for history in histories]
        except (ConfigError, ColdUserError):
            return None

    items = list(data.items)
    requests: dict[str, Callable[[Any], Any]] = {
        "scores": lambda x: numbers(recommender.predict(x, items, **features)),
        "std": lambda x: numbers(recommender.predict_interval(x, items, **features).std),
        "embeddings": lambda x: numbers(recommender.embed(x, **features)),
        "lists": lambda x: listed(
            recommender.recommend(x, n=LENGTH + 1, **order, **features),
        ),
    }
    for key, request in requests.items():
        if (values := respond(request)) is not None:
            result[key] = values
    return result


def numbers(values: Any) -> list[float]:
    """Flatten an array to rounded numbers."""
    return [rounded(x) for x in np.asarray(values).ravel().tolist()]


def rounded(value: float) -> float:
    """Round to the significant digits of a float32."""
    return float(f"{value:.{DIGITS}g}")


def score_or_rating(row: Any) -> float:
    """Return the score, or the expected rating of a row that is ordered by expected benefit."""
    return float(row.score if row.probability is None else row.rating)


def listed(recommendations: Any) -> list[list[Any]]:
    """Return item, score, and the standard deviation if there is one."""
    return [
        [
            row.item_id,
            rounded(score_or_rating(row)),
            *([] if row.std is None else [rounded(row.std)]),
        ]
        for row in recommendations
    ]


def differences(expected: Any, actual: Any, where: str = "") -> Iterator[str]:
    """Describe every value in which two records differ by more than the tolerance."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            path = f"{where}/{key}"
            if key not in actual or key not in expected:
                yield f"{path}: only {'expected' if key in expected else 'computed'}"
            elif key in ("lists", "known_lists"):
                yield from _differences_of_lists(expected[key], actual[key], path)
            else:
                yield from differences(expected[key], actual[key], path)
    elif isinstance(expected, list) and isinstance(actual, list):
        if len(expected) != len(actual):
            yield f"{where}: {len(expected)} values expected, {len(actual)} computed"
            return
        for n, pair in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*pair, f"{where}/{n}")
    elif isinstance(expected, float) and isinstance(actual, float):
        if not close(expected, actual):
            yield f"{where}: {expected!r} expected, {actual!r} computed"
    elif expected != actual:
        yield f"{where}: {expected!r} expected, {actual!r} computed"


def _differences_of_lists(expected: Any, actual: Any, where: str) -> Iterator[str]:
    """Compare scores, standard deviations and items; items of equal score may change positions.

    Lists are one item longer than what is compared. If the last compared item has the score of the
    surplus item, any item of that score may take its position.
    """
    if len(expected) != len(actual):
        yield f"{where}: {len(expected)} lists expected, {len(actual)} computed"
        return
    for n, (old, new) in enumerate(zip(expected, actual, strict=True)):
        if len(old) != len(new):
            yield f"{where}/{n}: {len(old)} items expected, {len(new)} computed"
            continue
        for rank, (row, other) in enumerate(zip(old, new, strict=True)):
            path = f"{where}/{n}/{rank}"
            if not (row[1] > other[1] == TOP_RATING):  # ratings in lists end at the scale
                yield from differences(row[1:2], other[1:2], f"{path}/score")
            if rank == LENGTH or row[0] == other[0]:
                yield from differences(row[2:], other[2:], f"{path}/std")
                continue
            equal = [item for item, score, *_ in old if close(score, row[1])]
            ties_with_surplus = len(old) > LENGTH and close(old[-1][1], row[1])
            if other[0] not in equal and not (ties_with_surplus and len(equal) > 1):
                yield f"{path}: item {row[0]!r} expected, {other[0]!r} computed"


def close(a: float, b: float) -> bool:
    """Whether two numbers are equal within the tolerance."""
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def golden_file(dataset: str) -> Path:
    """The file of the golden values on a dataset."""
    return FOLDER / f"{dataset}.json"


@cache
def golden(dataset: str) -> dict[str, Any]:
    """Read the golden values: `models`, by name and kind of data, and `made_with`."""
    content: dict[str, Any] = json.loads(golden_file(dataset).read_text(encoding="utf-8"))
    return content


def versions() -> dict[str, str]:
    """The versions and the processor features that single-precision results depend on."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def write(dataset: str, names: Sequence[str] = ()) -> Path:
    """Compute and write the records of some models, or of all; the others are not changed."""
    file = golden_file(dataset)
    old = golden(dataset)["models"] if names and file.exists() else {}
    lines = []
    for name in MODELS:
        entry = records(name, dataset) if not names or name in names else old.get(name)
        if entry is not None:
            parts = [f"  {json.dumps(kind)}: {_text(entry[kind])}" for kind in entry]
            lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    header = json.dumps(versions())
    text = f'{{"made_with": {header},\n"models": {{\n' + ",\n".join(lines) + "\n}}\n"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    golden.cache_clear()
    return file


def _text(values: Record) -> str:
    """Format a record with one line for each entry."""
    parts = [f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in values.items()]
    return "{\n" + ",\n".join(parts) + "\n  }"
