"""Every model that can be saved, searched for the rows that it was trained on.

A model says what its folder holds of single users (`user_data`). One that says `sums` or `vectors`
must hold no row; one that says `rows` must be found out by the search, else the search is of no
use. The id of a user is in no file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attack import Tally
from builders import board
from limits import quiet
from pyarrow import parquet
from row_search import training_rows_in
from safetensors.torch import load_file

from idcf.data.interactions import Interactions, Vocab
from idcf.data.side_tables import EnrichedInteractions
from idcf.errors import IdcfError
from idcf.inference.artifact import load_artifact, save_artifact
from idcf.inference.manifest import RecommenderConfig
from idcf.models.registry import ModelEntry, all_models
from idcf.training.train import fit_artifact

N_TABLES = 2
MARK = "secret-person-"  # in the ids of users
MIN_ROWS = 11


def run(folder: Path, seed: int, share: float) -> Tally:
    """Fit, save and search models."""
    torch.set_num_threads(1)
    tally = Tally()
    cases = [
        (name, implicit, features, draw)
        for name, entry in all_models().items()
        for implicit in (False, True)
        if not (entry.ratings_only if implicit else entry.implicit_only)
        for features in (False, True)
        for draw in range(N_TABLES)
    ]
    order = np.random.default_rng(seed).permutation(len(cases))
    for number in order[: max(round(share * len(cases)), 1)].tolist():
        name, implicit, features, draw = cases[number]
        rng = np.random.default_rng([seed, number])
        table = _table(rng, implicit, features)
        try:
            with quiet():
                problems = _problems(folder / str(number), name, table)
        except IdcfError as error:
            if not features and "features" in str(error):
                continue  # the model is one of features
            problems = [f"{type(error).__name__}: {error}"]
        kind = "clicks" if implicit else "ratings"
        tally.count(kind + (" with features" if features else ""))
        for problem in problems:
            tally.fail(name, f"seed {seed}, draw {number}, {kind}, table {draw}", problem)
    return tally


def _table(rng: np.random.Generator, implicit: bool, features: bool) -> Interactions:
    """Return a table whose numbers of rows, users and items are those of nothing in a model."""
    n_users, n_items = (int(x) for x in rng.choice([41, 43, 47, 53], 2, replace=False))
    rows = board(n_users, n_items, 8, 17, implicit=implicit, seed=int(rng.integers(1000)))
    rows = replace(rows, users=Vocab([f"{MARK}{n}" for n in range(n_users)]))
    if not features:
        return rows
    users, items = (rng.normal(size=(n, 2)).astype(np.float32) for n in (n_users, n_items))
    widths = {"user_feature_widths": (1, 1), "item_feature_widths": (1, 1)}
    return replace(rows, user_features=users, item_features=items, **widths)


def _options(entry: ModelEntry) -> dict[str, Any]:
    """Return options with which a fit is quick."""
    return {} if entry.solver else {"epochs": 1}


def _problems(folder: Path, name: str, table: Interactions) -> list[str]:
    """Fit a model to a table, save it and search its folder; return what is wrong."""
    config = RecommenderConfig(
        name, _options(all_models()[name]), key_threshold=MIN_ROWS, device="cpu"
    )
    artifact = fit_artifact(config, EnrichedInteractions(table), [None] * len(table.items))
    save_artifact(artifact, folder, allow_training_rows=True)
    user_data = load_artifact(folder).manifest.user_data
    key_rows = table.for_users(np.flatnonzero(table.user_counts() >= MIN_ROWS))
    tensors = load_file(folder / "weights.safetensors")
    found = list(training_rows_in(tensors, key_rows))
    lengths = {size: key for key, x in tensors.items() for size in x.shape}
    n_key_users = len(np.unique(key_rows.user))
    problems = []
    if user_data == "rows":
        return [] if found else ["declares rows, and the search finds none"]
    problems += [f"declares {user_data}, and holds {x}" for x in found]
    if user_data == "sums":
        for size in {n_key_users, len(table.users)} & lengths.keys():
            problems.append(f"declares sums, and {lengths[size]} has one entry for each user")
    return problems + _ids_in(folder)


def _ids_in(folder: Path) -> list[str]:
    """Return the files of a folder in which there is the id of a user."""
    texts = {x.name: x.read_bytes() for x in folder.iterdir()}
    texts["items.parquet"] = str(parquet.read_table(folder / "items.parquet").to_pydict()).encode()
    return [f"the id of a user is in {name}" for name, x in texts.items() if MARK.encode() in x]
