"""Results as files that only grow: one line a row, written as soon as a run is done.

For each data set `<dataset>.jsonl` (rows), `<dataset>.paired.jsonl` (differences between systems)
and `<dataset>.failed.jsonl`; the values of every user are in `.per-user/`, which is not committed.
Later lines replace earlier ones of the same key. A line that a kill cut short is dropped.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from idcf.config import read as read_values
from idcf.errors import DataError, IdcfError
from idcf.evaluation.groups import GROUPS
from idcf.evaluation.results import Row
from idcf.metrics import PerUser


@dataclass(frozen=True)
class Record(Row):
    """A row, and which run it is of. `options` is `plan.fingerprint` of its settings."""

    of: int  # rows of the run: fewer in the file, and it was cut short
    options: str
    version: str
    device: str

    suffix: ClassVar[str] = ""

    def key(self) -> tuple[Any, ...]:
        return *self.run(), self.users, self.metric

    def run(self) -> tuple[Any, ...]:
        """The key of the run: its training, not the group that was measured."""
        training = GROUPS[self.users]
        return self.dataset, self.split, self.model, self.preset, training, self.seed

    def systems(self) -> set[tuple[Any, ...]]:
        return {self.run()}


@dataclass(frozen=True)
class Pair:
    """How a system differs from the best simple one, over the same users."""

    dataset: str
    split: str
    model: str
    preset: str
    users: str
    metric: str
    baseline: str
    difference: float
    low: float
    high: float
    n_users: int
    seeds: int
    options: str  # of the two
    suffix: ClassVar[str] = ".paired"

    def key(self) -> tuple[Any, ...]:
        return self.dataset, self.split, self.model, self.preset, self.users, self.metric

    def systems(self) -> set[tuple[Any, ...]]:
        """The keys of the runs of both systems, without the seed."""
        both = ((self.model, self.preset), (self.baseline, "clean"))
        return {(self.dataset, self.split, *system, GROUPS[self.users]) for system in both}


@dataclass(frozen=True)
class Failure:
    """A run that came to nothing, and why. `users` is the training: new or few-shot."""

    dataset: str
    split: str
    model: str
    preset: str
    users: str
    seed: int
    reason: str
    suffix: ClassVar[str] = ".failed"

    def key(self) -> tuple[Any, ...]:
        return self.dataset, self.split, self.model, self.preset, self.users, self.seed


Line = TypeVar("Line", Record, Pair, Failure)


def path_of(results: Path, kind: type[Any], dataset: str) -> Path:
    return results / f"{dataset}{kind.suffix}.jsonl"


def read(results: Path, kind: type[Line], dataset: str) -> dict[tuple[Any, ...], Line]:
    """The lines of a data set by their keys, the newest of each."""
    path = path_of(results, kind, dataset)
    if not path.exists():
        return {}
    found: dict[tuple[Any, ...], Line] = {}
    *whole, torn = path.read_text(encoding="utf-8").split("\n")
    if torn:
        print(f"note: the last line of {path} was cut short and is left out", file=sys.stderr)
    for number, line in enumerate(whole, 1):
        try:
            one = read_values(kind, json.loads(line))
        except (json.JSONDecodeError, IdcfError) as error:
            raise DataError(f"{path}, line {number}: {error}; mend or delete the line") from None
        found.pop(one.key(), None)
        found[one.key()] = one
    return found


def records(results: Path, dataset: str) -> list[Record]:
    """The rows of a data set; of a run that was made again, none that it had before."""
    rows = list(read(results, Record, dataset).values())
    last = {r.run(): (r.of, r.options) for r in rows}
    return [r for r in rows if (r.of, r.options) == last[r.run()]]


def append(results: Path, dataset: str, lines: Iterable[Record | Failure]) -> None:
    """Add lines in one write that is on the disk when this returns."""
    lines = list(lines)
    if not lines:
        return
    path = path_of(results, type(lines[0]), dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_torn(path)
    with path.open("ab", buffering=0) as file:
        file.write(_text(lines))
        os.fsync(file.fileno())


def rewrite(results: Path, kind: type[Line], dataset: str, lines: Iterable[Line]) -> None:
    """All lines of a data set, whole or not at all; nothing is done where nothing changes."""
    path, text = path_of(results, kind, dataset), _text(lines)
    if not text:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_bytes() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
        fresh.write_bytes(text)
        fresh.replace(path)


def require(folder: Path) -> None:
    """Say that a folder is not there, instead of taking it for an empty one."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder of results; give one that `reproduce` wrote")


def merge(source: Path, results: Path, leave: Collection[tuple[Any, ...]] = ()) -> int:
    """Take in what another machine measured, save the runs to leave; its lines count as newer.
    How many are new."""
    require(source)
    past = {*leave, *(run[:-1] for run in leave)}  # rows are of a seed, differences of all
    fresh = 0
    kinds: tuple[type[Any], ...] = (Record, Pair)
    for kind in kinds:
        for path in sorted(source.glob(f"*{kind.suffix}.jsonl")):
            dataset = path.name.removesuffix(f"{kind.suffix}.jsonl")
            if "." in dataset or not _holds(path, kind):
                continue
            here, there = (read(folder, kind, dataset) for folder in (results, source))
            new = {
                key: line
                for key, line in there.items()
                if not line.systems() & past and here.get(key) != line
            }
            fresh += len(new)
            rest = [line for key, line in here.items() if key not in new]  # where it was
            rewrite(results, kind, dataset, [*rest, *new.values()])
    for path in sorted(source.glob(".per-user/*/*.npz")):
        place = results / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    return fresh


def _holds(path: Path, kind: type[Any]) -> bool:
    """Is this a file of ours? Other studies keep their rows in the same folder."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    known = {f.name for f in fields(kind)}
    return not first.endswith("\n") or json.loads(first).keys() == known


def _text(lines: Iterable[Any]) -> bytes:
    return "".join(json.dumps(_plain(line)) + "\n" for line in lines).encode()


def _plain(line: Any) -> dict[str, Any]:
    """Six digits tell all that there is to tell."""
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(line).items()}


def _drop_torn(path: Path) -> None:
    if path.exists() and not (text := path.read_bytes()).endswith(b"\n") and text:
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


def save_each(results: Path, stamp: Record, users: str, each: Mapping[str, PerUser]) -> None:
    """Keep what each user adds to each metric, for pairing systems later."""
    path = _place(results, stamp, users)
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {}
    for metric, of in each.items():
        columns[f"{metric}/users"] = of.users.astype(np.int32)
        columns[f"{metric}/total"] = of.total.astype(np.float32)
        columns[f"{metric}/weight"] = of.weight.astype(np.float32)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.part")
    with fresh.open("wb") as file:
        np.savez_compressed(file, **columns)
    fresh.replace(path)


def load_each(results: Path, record: Record) -> PerUser | None:
    """The values behind a row, where they are at hand."""
    path = _place(results, record, record.users)
    if not path.exists():
        return None
    with np.load(path) as file:
        if f"{record.metric}/users" not in file:
            return None
        users, total, weight = (file[f"{record.metric}/{x}"] for x in ("users", "total", "weight"))
    return PerUser(users.astype(np.int64), total.astype(np.float64), weight.astype(np.float64))


def _place(results: Path, stamp: Record, users: str) -> Path:
    split = re.sub(r"[^\w.-]+", "-", stamp.split)
    name = f"{stamp.model}.{stamp.preset}.{users}.{stamp.seed}.{split}.{stamp.options}.npz"
    return results / ".per-user" / stamp.dataset / name
