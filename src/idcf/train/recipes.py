"""From a name and a split to a trained model. Two-stage models train their backbone first.

`users="new"`: nothing of the query users is trained on, they are met at evaluation only.
`users="few-shot"`: their training rows are used, and IDCF adapts on them (interpolation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from idcf.data import batches
from idcf.data.interactions import Interactions, Ints
from idcf.data.split import Split, Task, hold_out, hold_out_users, sample_users
from idcf.errors import ConfigError
from idcf.evaluate import loss_on, rmse_on
from idcf.models import Backbone, Model, configure, entry
from idcf.models.baselines import BiasConfig
from idcf.rng import derive, stream
from idcf.train.loop import TrainConfig, fit
from idcf.train.objectives import Objective, Penalty, Ridge, accuracy, adapt, factorise, norms
from idcf.train.presets import Setting, setting
from idcf.train.runtime import LOCAL, Runtime
from idcf.train.solvers import SOLVERS
from idcf.train.solvers.counts import bias
from idcf.train.stopping import Log
from idcf.types import Batch, Users

Who = Literal["new", "few-shot"]


@dataclass(frozen=True)
class Trained:
    model: Model  # answers for query users and, where it is inductive, for anybody
    known: Model  # answers for key users: the backbone, or the model itself
    options: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, Log] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What all stages of one training share."""

    split: Split
    users: Who = "new"
    preset: str = "clean"
    dataset: str = ""
    seed: int = 0
    runtime: Runtime = LOCAL
    folder: Path | None = None  # for checkpoints and journals
    progress: bool = False

    def table(self) -> Interactions:
        """What may be trained on."""
        split = self.split
        return split.train.of(split.key_users) if self.users == "new" else split.train


def train(name: str, job: Job, *, options: Mapping[str, Any] | None = None) -> Trained:
    """Train the named model."""
    found = entry(name)
    if found.ratings_only and job.split.train.implicit:
        raise ConfigError(f"model {name!r} needs ratings; use 'popularity' for implicit feedback")
    chosen = setting(name, preset=job.preset, dataset=job.dataset, options=options)
    if found.solver:
        return _solve(name, job, options or {})
    with torch.random.fork_rng():
        torch.manual_seed(derive(job.seed, name, "weights"))
        if found.backbone:
            return _relate(name, job, chosen)
        return _descend(name, job, chosen, job.table())


def _solve(name: str, job: Job, options: Mapping[str, Any]) -> Trained:
    """Try the grid on held-out users, then fit the best on everybody."""
    found, table = entry(name), job.table()
    assert found.solver
    solver = SOLVERS[found.solver]
    rest, task = _held_out(table, np.flatnonzero(table.counts()), Setting(), job)
    grid = {k: v for k, v in found.grid.items() if k not in options}
    trials = []
    for values in product(*grid.values()) if grid else []:
        tried = {**options, **dict(zip(grid, values, strict=True))}
        model = solver(configure(name, tried), rest, job.seed)
        trials.append((_watch(task, job.seed)(model), len(trials), tried))
    best = min(trials)[2] if trials else dict(options)
    model = solver(configure(name, best), table, job.seed).to(job.runtime.device).eval()
    return Trained(model, model, best)


def _descend(name: str, job: Job, chosen: Setting, table: Interactions) -> Trained:
    """One stage of gradient descent; early stopping watches held-out rows."""
    rest, rows = table, None
    if chosen.validation:
        rest, rows = hold_out(table, chosen.validation / 2, stream(job.seed, name, "rows"))
    graph = job.split.train if chosen.whole_graph else rest
    model = entry(name).build(configure(name, chosen.options), graph.domain())
    if chosen.start_from_biases and isinstance(model, Backbone) and model.rates:
        _start_from_biases(model, rest)
    seen = rest if model.reads_history else None

    def epoch(number: int) -> Iterator[Batch]:
        rng = stream(job.seed, name, "epoch", number)
        more = _negatives(chosen.train, table)
        size = chosen.train.batch_size * job.runtime.world
        if seen is not None and chosen.episodes:
            everyone = (1 << 30, 1 << 30)  # all that is not asked for
            return batches.episodes(
                rest, size=size, lengths=everyone, targets=chosen.targets, rng=rng, negatives=more
            )
        return batches.rows(rest, seen, size=size, rng=rng, negatives=more)

    objective = (
        factorise(_penalty(chosen.train, rest, job)) if isinstance(model, Backbone) else accuracy()
    )
    watch = None if rows is None else _watch(Task(rest, rows), job.seed)
    log = _fit(name, model, epoch, objective, chosen.train, watch, job)
    return Trained(model, model, chosen.options, {name: log})


def _relate(name: str, job: Job, chosen: Setting) -> Trained:
    """Pretrain on key users, then adapt the relation model; both are kept."""
    found, split = entry(name), job.split
    assert found.backbone
    keys, table = split.key_users, split.train.of(split.key_users)
    task: Task | None = None
    if chosen.validation and job.users == "new":
        table, task = _held_out(table, keys, chosen, job)
        keys = np.flatnonzero(table.counts())
    base = setting(found.backbone, preset=job.preset, dataset=job.dataset)
    pretrained = _descend(found.backbone, job, base, table)
    backbone = pretrained.model
    assert isinstance(backbone, Backbone)
    who = Users(torch.from_numpy(keys), table.history(keys)).to(backbone.device)
    model = found.build(configure(name, chosen.options), backbone, who)
    rows, contrast = table, chosen.train.contrast
    if job.users == "few-shot":
        rows, contrast = split.train.of(split.query_users), 0.0
        if chosen.validation:
            rows, held = hold_out(rows, chosen.validation, stream(job.seed, name, "rows"))
            task = Task(rows, held)

    def epoch(number: int) -> Iterator[Batch]:
        rng = stream(job.seed, name, "epoch", number)
        size, more = chosen.train.batch_size * job.runtime.world, _negatives(chosen.train, table)
        if not chosen.episodes:
            return batches.rows(rows, rows, size=size, rng=rng, negatives=more)
        return batches.episodes(
            rows, size=size, lengths=chosen.lengths, targets=chosen.targets, rng=rng, negatives=more
        )

    watch = None if task is None else _watch(task, job.seed)
    log = _fit(name, model, epoch, adapt(contrast, job.runtime), chosen.train, watch, job)
    logs = {**pretrained.logs, name: log}
    return Trained(model, backbone, chosen.options, logs)


def _start_from_biases(model: Backbone, table: Interactions) -> None:
    """Begin at the ridge biases: rare items have them from the first step."""
    base = bias(BiasConfig(), table, 0)
    with torch.no_grad():
        model.items.bias.copy_(base.item_bias + base.mean - model.mean)
        model.users.bias.copy_(base.residual(table.history(np.arange(len(table.users))))[0])


def _penalty(config: TrainConfig, table: Interactions, job: Job) -> Penalty:
    if config.penalty == "norm":
        return norms(config.reg, job.runtime)
    n_users, n_items = (torch.from_numpy(n).float() for n in (table.counts(), table.item_counts()))
    return Ridge(n_users, n_items, config.reg, config.row_reg, config.bias_reg)


def _fit(
    name: str,
    model: Model,
    epoch: Callable[[int], Iterator[Batch]],
    objective: Objective,
    config: TrainConfig,
    watch: Callable[[Model], float] | None,
    job: Job,
) -> Log:
    folder = job.folder
    return fit(
        model,
        epoch,
        objective,
        config,
        validate=watch,
        runtime=job.runtime,
        seed=derive(job.seed, name),
        checkpoint=folder / f"{name}.checkpoint" if folder else None,
        journal=folder / f"{name}.jsonl" if folder else None,
        progress=name if job.progress else None,
    )


def _held_out(
    table: Interactions, users: Ints, chosen: Setting, job: Job
) -> tuple[Interactions, Task]:
    """Validation users: gone from the table, with histories as short as a newcomer's."""
    away = sample_users(users, chosen.validation or 0.1, stream(job.seed, "validation users"))
    rng = stream(job.seed, "validation histories")
    return hold_out_users(table, away, chosen.lengths, rng)


def _watch(task: Task, seed: int) -> Callable[[Model], float]:
    if not task.rows.implicit:
        return lambda model: rmse_on(model, task.rows, task.seen)
    return lambda model: loss_on(
        model, task.rows, task.seen, negatives=5, rng=stream(seed, "validation negatives")
    )


def _negatives(config: TrainConfig, table: Interactions) -> int:
    return config.negatives if table.implicit else 0
