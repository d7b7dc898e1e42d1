"""Train on a whole table, for use: what `Recommender.fit` does. Nothing is held out at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idcf.config import plain
from idcf.data.interactions import Interactions
from idcf.data.side_tables import Beside
from idcf.data.split import Split, among
from idcf.errors import ConfigError, DataError
from idcf.inference.artifact import Artifact, settle, versions
from idcf.inference.manifest import Manifest, Origin, Wish, World
from idcf.models.registry import configure, model_entry, resolve_model
from idcf.training.checkpoint import Watcher
from idcf.training.distributed import start
from idcf.training.loop import TrainConfig
from idcf.training.new_user_curve import rehearse
from idcf.training.train import Job, train

USUAL_THRESHOLD = 30  # the paper's δ for MovieLens
FEWEST_KEY_USERS = 3  # one is held out to learn how long to train, two have a spread


def deploy(
    wish: Wish,
    given: Beside,
    titles: Sequence[str | None],
    *,
    progress: bool = False,
    watcher: Watcher | None = None,
) -> Artifact:
    """The model asked for, trained on the key users of the table, with all that describes it."""
    name, table = wish.model, given.table
    split, threshold = _split(table, wish.key_threshold, wish.key_users, wish.seed)
    row = resolve_model(name, table.implicit)
    if watcher and model_entry(row).solver:
        raise ConfigError(f"{name!r} is solved, not trained by epochs: there is nothing to watch")
    job = Job(split, preset=wish.preset, seed=wish.seed, runtime=start(wish.device))
    job = dataclasses.replace(job, progress=progress, watcher=watcher)
    options = _routed(row, wish.options)
    trained = train(row, job, options=options)
    found, base = model_entry(row), {}
    if found.backbone:
        base = plain(configure(found.backbone, trained.backbone_options))
    manifest = Manifest(
        model=name,
        options=plain(configure(row, trained.options)),
        backbone=found.backbone,
        backbone_options=base,
        domain=World.of(table, trained.model),
        data=Origin.of(split, threshold, wish.key_users),
        preset=wish.preset,
        seed=wish.seed,
        versions=versions(),
        user_features=given.of_users,
        measured=rehearse(row, job, options) if wish.measure else None,
    )
    return Artifact(manifest, settle(trained.model), table.items, tuple(titles))


def _split(
    table: Interactions, threshold: int | None, key_users: str | int, seed: int
) -> tuple[Split, int]:
    """Key users: at least 30 rows, or the median of the users' counts where that is less; of
    these, all or some."""
    if threshold is None:
        counts = table.counts()
        threshold = max(1, min(USUAL_THRESHOLD, int(np.median(counts[counts > 0]))))
    nothing = table.where(np.zeros(len(table), bool))
    split = among(table, nothing, threshold, key_users, seed)
    if len(split.key_users) < FEWEST_KEY_USERS:
        chosen = "" if key_users == "threshold" else f" and are chosen by key_users={key_users!r}"
        raise DataError(
            f"only {len(split.key_users)} of {len(table.users)} users have {threshold} rows or "
            f"more{chosen}; at least {FEWEST_KEY_USERS} key users are needed: lower key_threshold "
            "or bring more data"
        )
    return split, threshold


def _routed(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that only training knows are passed to it: `epochs` is `train.epochs`."""
    found = model_entry(name)
    own = {f.name for f in dataclasses.fields(found.config_class)}
    theirs = set() if found.solver else {f.name for f in dataclasses.fields(TrainConfig)} - own
    return {f"train.{k}" if k in theirs else k: v for k, v in options.items()}
