"""From a name and a split to a trained model. Two-stage models train their backbone first.

`users="new"`: nothing of the query users is trained on, they are met at evaluation only.
`users="few-shot"`: their training rows are used, and IDCF adapts on them (interpolation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from idcf.data import batches
from idcf.data.interactions import Interactions
from idcf.data.split import Split, Task, hold_out
from idcf.models.base import Backbone, Model, Wrapper
from idcf.models.idcf import IDCF
from idcf.models.registry import configure, model_entry, resolve_model
from idcf.rng import derive, stream
from idcf.training.checkpoint import Log, Watcher
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import Objective, Penalty, Ridge, accuracy, adapt, norms
from idcf.training.presets import Setting, stages
from idcf.training.solvers.bias import level, start_from_biases
from idcf.training.solvers.context import Work
from idcf.training.validation import held_out, trial, watcher
from idcf.types import Batch, Users

QueryUsers = Literal["new", "few-shot"]


@dataclass(frozen=True)
class Trained:
    model: Model  # answers for query users and, where it is inductive, for anybody
    known: Model  # answers for key users: the backbone, or the model itself
    options: Mapping[str, Any] = field(default_factory=dict)
    logs: Mapping[str, Log] = field(default_factory=dict)
    backbone_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """What all stages of one training share."""

    split: Split
    users: QueryUsers = "new"
    preset: str = "clean"
    dataset: str = ""
    seed: int = 0
    runtime: Runtime = LOCAL
    folder: Path | None = None  # for checkpoints and journals
    progress: bool = False
    watcher: Watcher | None = None
    stage: str = ""  # what the watcher is told before the stage's own name

    def table(self) -> Interactions:
        """What may be trained on."""
        split = self.split
        return split.train.of(split.key_users) if self.users == "new" else split.train


def train(name: str, job: Job, *, options: Mapping[str, Any] | None = None) -> Trained:
    """Train the named model."""
    name = resolve_model(name, job.split.train.implicit)
    found = stages(name, options, preset=job.preset, dataset=job.dataset, users=job.users)
    chosen, *base = found.values()
    if model_entry(name).solver:
        return _solve(name, job, chosen.options)
    with torch.random.fork_rng():
        return _relate(name, job, chosen, *base) if base else _descend(name, job, chosen)


def _solve(name: str, job: Job, options: Mapping[str, Any]) -> Trained:
    """Try the grid on held-out users, then fit the best on everybody."""
    found, table = model_entry(name), job.table()
    solver = found.load_solver()
    known = job.users == "few-shot"
    work = Work(job.seed, job.runtime.device, name if job.progress else None, known)
    rest, error = trial(table, job.seed)
    tries = _grid(name, options, table.implicit)
    trials: list[tuple[float, int, dict[str, Any]]] = []
    for tried in tries if len(tries) > 1 else []:
        model = solver(configure(name, tried), rest, work)
        trials.append((error(model), len(trials), tried))
    best = min(trials)[2] if trials else tries[0]
    model = solver(configure(name, best), table, work).to(job.runtime.device).eval()
    return Trained(model, model, best)


def _descend(name: str, job: Job, chosen: Setting) -> Trained:
    """One stage of gradient descent. Held-out rows say how long; then everything is used."""
    table = job.table()
    chosen, model, log = _choose(name, job, chosen, table)
    if chosen.refit and log.best >= 0 and chosen.validation:
        model, _ = _pretrain(name, job, chosen, table, epochs=log.best + 1)
    return Trained(model, model, chosen.options, {name: log})


def _relate(name: str, job: Job, chosen: Setting, base: Setting) -> Trained:
    """Pretrain on key users, then adapt the relation model. Held-out people say how long each
    stage lasts; then both are done once more with everybody."""
    found, split = model_entry(name), job.split
    assert found.backbone
    keys = split.train.of(split.key_users)
    whole = keys if job.users == "new" else split.train.of(split.query_users)
    rest, rows, task = keys, whole, None
    if chosen.validation and job.users == "new":
        rest, task = held_out(keys, split.key_users, chosen, job.seed)
        rows = rest
    elif chosen.validation:
        rows, held = hold_out(whole, chosen.validation, stream(job.seed, name, "rows"))
        task = Task(rows, held)
    if chosen.everybody and job.users != "new":
        rows, whole = keys.plus(rows), split.train
    base, backbone, first = _choose(found.backbone, job, base, rest)
    done = [
        (
            replace(chosen, options=x),
            *_adapt(name, job, replace(chosen, options=x), backbone, rest, rows, task),
        )
        for x in _grid(name, chosen.options, keys.implicit)
    ]
    chosen, model, second = min(done, key=lambda d: d[2].lowest())
    if chosen.refit and task is not None:
        backbone, _ = _pretrain(found.backbone, job, base, keys, epochs=first.best + 1)
        model, _ = _adapt(name, job, chosen, backbone, keys, whole, None, epochs=second.best + 1)
    logs = {found.backbone: first, name: second}
    return Trained(model, backbone, chosen.options, logs, base.options)


def _grid(name: str, options: Mapping[str, Any], implicit: bool) -> list[dict[str, Any]]:
    """The options with every choice of what the row wants tried and nobody has settled."""
    grid = {k: v for k, v in model_entry(name).grid_for(implicit).items() if k not in options}
    return [{**options, **dict(zip(grid, x, strict=True))} for x in product(*grid.values())]


def _choose(
    name: str, job: Job, chosen: Setting, table: Interactions
) -> tuple[Setting, Model, Log]:
    """The training options that held-out rows prefer, with the model they gave."""
    tries = [chosen]
    if chosen.validation:
        tries += [replace(chosen, train=replace(chosen.train, **x)) for x in chosen.alternatives]
    done = []
    for number, each in enumerate(tries):
        place = job.folder and job.folder / f"try-{number}"
        stage = f"{job.stage}try-{number}/" if len(tries) > 1 else job.stage
        part = replace(job, folder=place, stage=stage)
        done.append((each, *_pretrain(name, part, each, table)))
    return min(done, key=lambda d: d[2].lowest())


def _pretrain(
    name: str, job: Job, chosen: Setting, table: Interactions, *, epochs: int | None = None
) -> tuple[Model, Log]:
    """A backbone on this table: for so many epochs, or until held-out rows stop improving."""
    rest, task = table, None
    # who is known by history alone is trained, and validated, on newcomers
    meets = job.users == "new" and bool(getattr(model_entry(name).model_class, "inductive", False))
    if epochs is None and chosen.validation and meets:
        rest, task = held_out(table, np.flatnonzero(table.counts()), chosen, job.seed)
    elif epochs is None and chosen.validation:
        rest, rows = hold_out(table, chosen.validation / 2, stream(job.seed, name, "rows"))
        task = Task(rest, rows)
    graph = job.split.train if chosen.whole_graph else rest
    torch.manual_seed(derive(job.seed, name, "weights"))
    model = model_entry(name).model_class(configure(name, chosen.options), graph.domain())
    objective = accuracy(chosen.train.loss, _penalty(chosen.train, rest, job))
    if isinstance(model, Backbone) and chosen.start_from_biases and model.rates:
        start_from_biases(model, rest)
    if chosen.level and model.rates:
        rest = level(rest)
    if model.binary:
        rest, task = rest.had(), task and Task(task.seen.had(), task.rows.had())
    error = None if task is None else watcher(task, job.seed)
    everything = (1 << 30, 1 << 30)  # an episode's history is all that is not asked for
    lengths = chosen.lengths if model.inductive else everything
    epoch = _epochs(name, job, replace(chosen, lengths=lengths), rest, model)
    return model, _fit(name, model, epoch, objective, chosen.train, error, job, epochs)


def _adapt(
    name: str,
    job: Job,
    chosen: Setting,
    backbone: Model,
    table: Interactions,
    rows: Interactions,
    task: Task | None,
    *,
    epochs: int | None = None,
) -> tuple[Model, Log]:
    """The relation model round a backbone: key users from `table`, trained on `rows`."""
    keys = np.flatnonzero(table.counts())
    who = Users(torch.from_numpy(keys), table.history(keys)).to(backbone.device)
    torch.manual_seed(derive(job.seed, name, "weights"))
    model = model_entry(name).model_class(configure(name, chosen.options), backbone, who)
    contrast = chosen.train.contrast if job.users == "new" else 0.0
    error = None if task is None else watcher(task, job.seed)
    if isinstance(model, Wrapper) and not model.adapts:  # it is solved for whoever comes
        log = Log([{"epoch": 0, "valid": error(model)}] if error else [], 0)
        return model.eval(), log
    assert isinstance(model, IDCF)
    epoch = _epochs(name, job, chosen, rows, model)
    objective = adapt(contrast, job.runtime)
    return model, _fit(name, model, epoch, objective, chosen.train, error, job, epochs)


def _epochs(
    name: str, job: Job, chosen: Setting, table: Interactions, model: Model
) -> Callable[[int], Iterator[Batch]]:
    """Batches of what this model reads, and nothing else."""
    if not model.reads_features:
        table = replace(table, user_features=None)
    alone, device = job.runtime.world == 1, job.runtime.device  # several divide a batch here first
    place = device if alone and device.type == "cuda" else None

    def epoch(number: int) -> Iterator[Batch]:
        rng = stream(job.seed, name, "epoch", number)
        size = chosen.train.batch_size * job.runtime.world
        more = chosen.train.negatives if table.implicit else 0
        if not (model.reads_history and chosen.episodes):
            seen = table if model.reads_history else None
            return batches.rows(table, seen, size=size, rng=rng, negatives=more, device=place)
        return batches.episodes(
            table,
            size=size,
            lengths=chosen.lengths,
            targets=chosen.targets,
            share=chosen.share,
            rng=rng,
            negatives=more,
        )

    return epoch


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
    error: Callable[[Model], float] | None,
    job: Job,
    epochs: int | None,
) -> Log:
    part = "search" if epochs is None else "final"
    folder = job.folder and job.folder / part
    return fit(
        model,
        epoch,
        objective,
        config,
        validate=error,
        epochs=epochs,
        runtime=job.runtime,
        seed=derive(job.seed, name),
        checkpoint=folder / f"{name}.checkpoint" if folder else None,
        journal=folder / f"{name}.jsonl" if folder else None,
        progress=name if job.progress else None,
        watcher=partial(job.watcher, f"{job.stage}{part}/{name}") if job.watcher else None,
    )
