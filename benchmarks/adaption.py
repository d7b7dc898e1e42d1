"""How long adaption (extrapolation) takes: the published data flow against ours, on one thread.

Both sides start from one pretrained NNMF (D = 16, head 48-32-16-1) with 4 heads, 200 key samples,
and the contrastive loss; ours goes through `idcf.training.loop.fit`. An epoch asks for every rating
once. The plain side embeds a user for every row, 256 a step. Ours embeds a user once for 16 rows:
with 256 users a step it computes as many attentions a step and takes a sixteenth of the steps; with
256 rows a step it takes as many steps. Both are reported. The sides take turns and the best epoch
of each counts, so that a busy spell of the machine hurts nobody alone.

    python benchmarks/adaption.py [--quick]       prints {"measurements": [...], "notes": [...]}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import plain
import torch
from torch import Tensor, nn

from idcf.data import batches
from idcf.data.datasets.catalog import find, load
from idcf.data.interactions import Interactions
from idcf.data.split import Task, by_threshold, hold_out, hold_out_users, sample_users
from idcf.inference.scoring import rmse_on
from idcf.models.base import Backbone, Model
from idcf.models.idcf import IDCF
from idcf.models.registry import configure, model_entry
from idcf.rng import stream
from idcf.testing.synthetic import at_scale
from idcf.training.loop import fit
from idcf.training.objectives import Ridge, adapt, factorise
from idcf.training.presets import Setting, setting
from idcf.types import Batch, Users

Measurement = dict[str, Any]
SAME = {"heads": 4, "sample": 200}
NNMF = {"embedding_size": 16, "hidden": [32, 16]}
BATCH, THRESHOLD = 256, 30
RATE = 0.001  # of the plain side, as published; ours has its presets'
FLOWS = {  # ours: the preset, and the rating rows of a step
    "256 users a step": ("clean", 4096),  # as many attention queries a step as the plain side
    "256 rows a step": ("clean", BATCH),
    "256 rows a step, published data flow": ("published", BATCH),
}
FASTEST = "256 users a step"  # the preset's own
SCHEDULES = {  # of the race: the preset's, and one that is in a hurry
    "ours": {},
    "ours in a hurry": {"train.learning_rate": 0.005, "train.decay": 0.3},
}


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int = 3  # turns of the two sides
    ours: int = 3  # our epochs in a turn
    pretrain: int = 10
    plain: int = 4  # epochs of the plain side in the race to the best validation RMSE
    race: int = 40  # ours, at most: it stops early
    max_batches: int | None = None  # of an epoch of the plain side


QUICK = Size(rounds=1, ours=1, pretrain=1, plain=1, race=2, max_batches=2)


@dataclass(frozen=True)
class World:
    """Key users' rows, the same without the validation users, and what to predict of those."""

    name: str
    keys: Interactions
    rest: Interactions
    task: Task
    backbone: Backbone


def measure(quick: bool = False) -> tuple[list[Measurement], list[str]]:
    """All measurements, and remarks for the report."""
    torch.set_num_threads(1)
    size = QUICK if quick else Size()
    world = prepare(quick, size.pretrain)
    rows, notes = epochs(world, size)
    more, said = race(world, size)
    return rows + more, [f"adaption on {world.name}: {world.keys!r}", *notes, *said]


def prepare(quick: bool, pretrain: int) -> World:
    """ML-100K where it is at hand, else a world of its size; and a backbone."""
    rng = stream(0, "benchmark")
    if quick:
        name, whole = "a small synthetic world", at_scale(3000, rng, users=120, items=150)
        train, test = hold_out(whole, 0.2, rng)
    elif find("ml-100k") is None:
        name, whole = "a synthetic world", at_scale(100_000, rng, users=943, items=1682)
        train, test = hold_out(whole, 0.2, rng)
    else:
        name, found = "ml-100k", load("ml-100k", progress=False)
        if found.train is None or found.test is None:
            train, test = hold_out(found.interactions, 0.2, rng)
        else:
            train, test = found.train, found.test
    train = replace(train, user_features=None)  # as the recipe does
    split = by_threshold(train, test, 10 if quick else THRESHOLD)
    keys = train.of(split.key_users)
    away = sample_users(split.key_users, 0.1, rng)
    rest, task = hold_out_users(keys, away, (4, 9) if quick else (4, THRESHOLD - 1), rng)
    chosen = setting("nnmf", dataset="ml-100k", options=NNMF)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_entry("nnmf").model_class(configure("nnmf", chosen.options), rest.domain())
    assert isinstance(model, Backbone)
    counts = [torch.from_numpy(n).float() for n in (rest.counts(), rest.item_counts())]
    penalty = Ridge(*counts, chosen.train.reg, chosen.train.row_reg, chosen.train.bias_reg)
    size = chosen.train.batch_size

    def epoch(number: int) -> Iterator[Batch]:
        return batches.rows(rest, None, size=size, rng=stream(0, "pretrain", number))

    fit(model, epoch, factorise(penalty), chosen.train, epochs=pretrain)
    return World(name, keys, rest, task, model)


class Plain:
    """The slow side: its model, optimiser and lists, ready to train an epoch."""

    def __init__(self, backbone: Backbone, table: Interactions, max_batches: int | None) -> None:
        linear = [x for x in backbone.head.modules() if isinstance(x, nn.Linear)]
        mlp: list[tuple[Tensor, Tensor]] = [(x.weight, x.bias) for x in linear]
        users, items = backbone.users, backbone.items
        self.model = plain.PlainIDCF(
            users.vector,
            items.vector,
            users.bias,
            items.bias + backbone.mean,
            mlp,
            torch.from_numpy(np.flatnonzero(table.counts())),
            heads=SAME["heads"],
            samples=SAME["sample"],
            generator=torch.Generator().manual_seed(0),
        )
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(trained, lr=RATE)
        self.rows, self.histories = _columns(table), _lists(table)
        self.rng = np.random.default_rng(0)
        self.max_batches = max_batches
        steps = -(-len(table) // BATCH)
        self.scale = steps / min(max_batches or steps, steps)

    def epoch(self) -> float:
        """Train; the seconds of a whole epoch."""
        _, seconds = plain.train_epoch(
            self.model,
            self.optimiser,
            self.rows,
            self.histories,
            BATCH,
            rng=self.rng,
            max_batches=self.max_batches,
        )
        return seconds * self.scale

    def rmse(self, task: Task) -> float:
        return plain.rmse(self.model, _columns(task.rows), _lists(task.seen))


def ours(
    flow: str,
    backbone: Backbone,
    table: Interactions,
    n: int,
    validate: Callable[[Model], float] | None = None,
    schedule: Mapping[str, float] | None = None,
) -> list[dict[str, float]]:
    """The records of n epochs (fewer where validation stops them) of our loop; with `validate`,
    one of no seconds before them."""
    chosen = _setting(flow, schedule or {})
    train, keys = chosen.train, np.flatnonzero(table.counts())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        people = Users(torch.from_numpy(keys), table.history(keys))
        config = configure("idcf-nn", chosen.options)
        model = model_entry("idcf-nn").model_class(config, deepcopy(backbone), people)

    def epoch(number: int) -> Iterator[Batch]:
        rng = stream(0, "adapt", number)
        if not chosen.episodes:
            return batches.rows(table, table, size=train.batch_size, rng=rng)
        shape = {"size": train.batch_size, "targets": chosen.targets}
        return batches.episodes(table, lengths=chosen.lengths, rng=rng, **shape)

    before = [{"seconds": 0.0, "valid": validate(model)}] if validate else []
    assert isinstance(model, IDCF)
    ahead, objective = model.ahead, adapt(train.contrast)
    log = fit(model, lambda k: ahead(epoch(k)), objective, train, validate=validate, epochs=n)
    return before + log.records


def epochs(world: World, size: Size) -> tuple[list[Measurement], list[str]]:
    """Seconds of an epoch over all key users' rows, and the ratios."""
    slow = Plain(world.backbone, world.keys, size.max_batches)
    seconds: dict[str, list[float]] = {"plain": [], **{flow: [] for flow in FLOWS}}
    for _ in range(size.rounds):
        seconds["plain"].append(slow.epoch())
        for flow in FLOWS:
            records = ours(flow, world.backbone, world.keys, size.ours)
            seconds[flow] += [x["seconds"] for x in records]
        _say({k: [round(x, 3) for x in v] for k, v in seconds.items()})
    best = {name: min(values) for name, values in seconds.items()}
    out = [measurement("adaption epoch, plain", best["plain"], "s", False)]
    for flow in FLOWS:
        out.append(measurement(f"adaption epoch, {flow}", best[flow], "s", False))
        speed = best["plain"] / best[flow]
        out.append(measurement(f"adaption epoch, {flow}, speed-up", speed, "x", True))
    notes = [f"epochs, {k}: {_listed(v)} s" for k, v in seconds.items()]
    return out, notes


def race(world: World, size: Size) -> tuple[list[Measurement], list[str]]:
    """Seconds of training until the best RMSE on validation users, who are in no table."""
    slow = Plain(world.backbone, world.rest, size.max_batches)
    times, errors = [0.0], [slow.rmse(world.task)]
    for _ in range(size.plain):
        times.append(times[-1] + slow.epoch())
        errors.append(slow.rmse(world.task))
        _say(f"plain: {errors[-1]:.4f} after {times[-1]:.1f} s")
    best = int(np.argmin(errors[1:])) + 1

    def watch(model: Model) -> float:
        return rmse_on(model, world.task.rows, world.task.seen)

    plain_best, took = errors[best], times[best]
    out = [
        measurement("validation RMSE before adaption, plain", errors[0], "RMSE", False),
        measurement("best validation RMSE, plain", plain_best, "RMSE", False),
        measurement("time to best validation RMSE, plain", took, "s", False),
    ]
    notes = [
        f"validation RMSE before and after each epoch, plain: {_listed(errors)}",
        "time to best: seconds of training, in whole epochs, until the lowest RMSE of the run",
        "our time to the plain side's best counts whole epochs, though it may be met before any",
        f"the plain side trained for {size.plain} epochs: its best may lie later",
    ]
    for name, schedule in SCHEDULES.items():
        records = ours(FASTEST, world.backbone, world.rest, size.race, watch, schedule)
        clock, valid = np.cumsum([x["seconds"] for x in records]), [x["valid"] for x in records]
        own = int(np.argmin(valid[1:])) + 1
        _say(f"{name}: {valid[own]:.4f} after {clock[own]:.2f} s ({own} epochs)")
        until = {"best": clock[own]}
        if as_good := [n for n in range(1, len(valid)) if valid[n] <= plain_best]:
            until["the plain side's best"] = clock[as_good[0]]
        out += [
            measurement(f"validation RMSE before adaption, {name}", valid[0], "RMSE", False),
            measurement(f"best validation RMSE, {name}", valid[own], "RMSE", False),
        ]
        for what, seconds in until.items():
            label = f"time to {what} validation RMSE, {name}"
            out.append(measurement(label, float(seconds), "s", False))
            out.append(measurement(f"{label}, speed-up", took / float(seconds), "x", True))
        notes.append(f"validation RMSE before and after each epoch, {name}: {_listed(valid)}")
    return out, notes


def _setting(flow: str, schedule: Mapping[str, float]) -> Setting:
    preset, rows = FLOWS[flow]
    options = {**SAME, "train.batch_size": rows, **schedule}
    return setting("idcf-nn", preset=preset, dataset="ml-100k", options=options)


def _columns(table: Interactions) -> plain.Rows:
    return plain.Rows(table.user, table.item, table.rating)


def _lists(table: Interactions) -> list[list[int]]:
    order, start = table.by_user
    return [part.tolist() for part in np.split(table.item[order], start[1:-1])]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{x:.4g}" for x in values)


def measurement(name: str, value: float, unit: str, higher_is_better: bool) -> Measurement:
    value = float(f"{value:.4g}")
    return {"name": name, "value": value, "unit": unit, "higher_is_better": higher_is_better}


def _say(what: object) -> None:
    print(what, file=sys.stderr)


if __name__ == "__main__":
    measurements, remarks = measure("--quick" in sys.argv[1:])
    print(json.dumps({"measurements": measurements, "notes": remarks}))
