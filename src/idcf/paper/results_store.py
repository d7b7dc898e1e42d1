"""The folder of results: JSON Lines files of result rows, paired differences and failed runs.

The files of a dataset are `<dataset>.jsonl`, `<dataset>.paired.jsonl` (differences to the best
simple system), `<dataset>.splits.jsonl` (differences over several splits) and
`<dataset>.failed.jsonl`;
the field names of the dataclasses are the keys of their JSON objects. A line replaces earlier lines
of its key. Metrics of single users are in `.per-user/`, which is not committed.
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

from idcf.config import dataclass_from_dict
from idcf.errors import DataError, IdcfError
from idcf.evaluation.groups import USER_GROUPS
from idcf.evaluation.results import ResultRow
from idcf.files import atomic_path, write_bytes
from idcf.metrics import PerUserMetric

_OPTIONAL_KEYS = {"quality", "commit"}  # keys that lines leave out where the value is None


@dataclass(frozen=True)
class StoredRow(ResultRow):
    """A result row with the run that it belongs to."""

    of: int  # number of rows of the run; the run was cut short if the file has fewer
    options: str  # `run_plan.settings_fingerprint` of the run
    version: str  # of this package
    device: str  # name of the device that the run was trained on

    suffix: ClassVar[str] = ""  # ends the stem of the file that holds such lines

    def key(self) -> tuple[Any, ...]:
        """Return what identifies the row: a later row of this key replaces it."""
        return *self.run_key(), self.users, self.metric

    def run_key(self) -> tuple[Any, ...]:
        """Return what identifies the run, with the training mode in place of the user group."""
        mode = USER_GROUPS[self.users]
        return self.dataset, self.split, self.model, self.preset, mode, self.seed

    def run_keys(self) -> set[tuple[Any, ...]]:
        """Return the keys of the runs that the row comes from: one."""
        return {self.run_key()}


@dataclass(frozen=True)
class PairedDifference:
    """System minus best simple baseline, paired over users: mean over seeds, 95 % interval."""

    dataset: str
    split: str
    model: str
    preset: str
    users: str  # the user group
    metric: str
    baseline: str  # name of the best simple baseline
    difference: float
    low: float
    high: float
    n_users: int  # users that are compared
    seeds: int
    options: str  # fingerprints "system/baseline", joined by "+" where seeds differ in them
    suffix: ClassVar[str] = ".paired"  # ends the stem of the file that holds such lines

    def key(self) -> tuple[Any, ...]:
        """Return what identifies the difference: a later one of this key replaces it."""
        return self.dataset, self.split, self.model, self.preset, self.users, self.metric

    def run_keys(self) -> set[tuple[Any, ...]]:
        """Return the keys of the runs of system and baseline, without the seed."""
        systems = ((self.model, self.preset), (self.baseline, "clean"))
        mode = USER_GROUPS[self.users]
        return {(self.dataset, self.split, *system, mode) for system in systems}


@dataclass(frozen=True)
class SplitDifference:
    """Reference system minus another one: mean over the splits of a table, 95 % interval."""

    table: str  # name of the table that has the splits
    dataset: str
    reference: str
    model: str  # the other system
    users: str  # the user group
    metric: str
    difference: float
    low: float
    high: float
    p_value: float  # of a difference of 0, two-sided, not corrected
    n_runs: int  # runs of each system: splits, or seeds on one split
    options: str  # fingerprints "reference/other", joined by "+" where runs differ in them
    suffix: ClassVar[str] = ".splits"  # ends the stem of the file that holds such lines

    def key(self) -> tuple[Any, ...]:
        """Return what identifies the difference: a later one of this key replaces it."""
        return self.table, self.dataset, self.reference, self.model, self.users, self.metric


@dataclass(frozen=True)
class RunFailure:
    """A run that raised an error."""

    dataset: str
    split: str
    model: str
    preset: str
    users: str  # how query users are trained on: "new" or "few-shot"
    seed: int
    reason: str  # the error message
    suffix: ClassVar[str] = ".failed"  # ends the stem of the file that holds such lines

    def key(self) -> tuple[Any, ...]:
        """Return the key of the run; equal to `StoredRow.run_key`."""
        return self.dataset, self.split, self.model, self.preset, self.users, self.seed


Line = TypeVar("Line", StoredRow, PairedDifference, SplitDifference, RunFailure)


def results_path(results: Path, line_class: type[Any], dataset: str) -> Path:
    """Return the path of a dataset's file for one kind of line."""
    return results / f"{dataset}{line_class.suffix}.jsonl"


def read_lines(results: Path, line_class: type[Line], dataset: str) -> dict[tuple[Any, ...], Line]:
    """Read key -> latest line of a dataset, in the order of the file; empty without a file. A last
    line that a crash cut short is skipped with a note on stderr. Any other invalid line raises
    DataError with its number."""
    path = results_path(results, line_class, dataset)
    if not path.exists():
        return {}
    lines: dict[tuple[Any, ...], Line] = {}
    *complete, incomplete = path.read_text(encoding="utf-8").split("\n")
    if incomplete:
        print(f"note: the last line of {path} was cut short and is skipped", file=sys.stderr)
    for number, text in enumerate(complete, 1):
        try:
            line = dataclass_from_dict(line_class, json.loads(text))
        except (json.JSONDecodeError, IdcfError) as error:
            raise DataError(f"{path}, line {number}: {error}; fix or delete the line") from None
        lines.pop(line.key(), None)
        lines[line.key()] = line
    return lines


def latest_rows(results: Path, dataset: str) -> list[StoredRow]:
    """Return the rows of a dataset, without those of a run that was made again later."""
    rows = list(read_lines(results, StoredRow, dataset).values())
    latest = {row.run_key(): (row.of, row.options) for row in rows}
    return [row for row in rows if (row.of, row.options) == latest[row.run_key()]]


def append_lines(results: Path, dataset: str, lines: Iterable[StoredRow | RunFailure]) -> None:
    """Append lines of one kind in a single write, which is on disk when this returns."""
    lines = list(lines)
    if not lines:
        return
    path = results_path(results, type(lines[0]), dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    _drop_incomplete_line(path)
    with path.open("ab", buffering=0) as file:
        file.write(_encode_lines(lines))
        os.fsync(file.fileno())


def rewrite_lines(
    results: Path, line_class: type[Line], dataset: str, lines: Iterable[Line]
) -> None:
    """Replace the file of a dataset atomically; no lines delete it."""
    path = results_path(results, line_class, dataset)
    data = _encode_lines(lines)
    if not data:
        path.unlink(missing_ok=True)
    elif not path.exists() or path.read_bytes() != data:
        write_bytes(path, data)


def require_results_folder(folder: Path) -> None:
    """Raise DataError if a folder of results does not exist."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder of results; give one that `reproduce` wrote")


def merge_lines(source: Path, results: Path, skip_runs: Collection[tuple[Any, ...]] = ()) -> int:
    """Copy rows, differences and per-user values of the folder `source`; return how many lines are
    new. Lines of the runs `skip_runs` (`StoredRow.run_key`) are not copied."""
    require_results_folder(source)
    skipped = {*skip_runs, *(key[:-1] for key in skip_runs)}  # keys of differences have no seed
    n_new = 0
    line_classes: tuple[type[Any], ...] = (StoredRow, PairedDifference)
    for line_class in line_classes:
        for path in sorted(source.glob(f"*{line_class.suffix}.jsonl")):
            dataset = path.name.removesuffix(f"{line_class.suffix}.jsonl")
            if "." in dataset or not _has_keys_of(path, line_class):
                continue
            lines = read_lines(results, line_class, dataset)
            new = {
                key: line
                for key, line in read_lines(source, line_class, dataset).items()
                if not line.run_keys() & skipped and lines.get(key) != line
            }
            n_new += len(new)
            unchanged = [line for key, line in lines.items() if key not in new]
            rewrite_lines(results, line_class, dataset, [*unchanged, *new.values()])
    for path in sorted(source.glob(".per-user/*/*.npz")):
        write_bytes(results / path.relative_to(source), path.read_bytes())
    return n_new


def _has_keys_of(path: Path, line_class: type[Any]) -> bool:
    """Return whether a file has lines of this class; other studies share the folder."""
    with path.open(encoding="utf-8") as file:
        first = file.readline()
    names = {f.name for f in fields(line_class)} - _OPTIONAL_KEYS
    return not first.endswith("\n") or json.loads(first).keys() - _OPTIONAL_KEYS == names


def _encode_lines(lines: Iterable[Any]) -> bytes:
    """Return lines of JSON, with floats rounded to six digits, far below their noise."""
    rounded = (
        {
            k: round(v, 6) if isinstance(v, float) else v
            for k, v in asdict(line).items()
            if k not in _OPTIONAL_KEYS or v is not None
        }
        for line in lines
    )
    return "".join(json.dumps(values) + "\n" for values in rounded).encode()


def _drop_incomplete_line(path: Path) -> None:
    """Cut a file after its last complete line, as a killed process may have left part of one."""
    if path.exists() and not (text := path.read_bytes()).endswith(b"\n") and text:
        with path.open("r+b") as file:
            file.truncate(text.rfind(b"\n") + 1)


def save_per_user(
    results: Path, row: StoredRow, group: str, per_user: Mapping[str, PerUserMetric]
) -> None:
    """Store metric -> values per user, for the run of any `row` of it and one user group."""
    columns: dict[str, Any] = {}
    for metric, values in per_user.items():
        columns[f"{metric}/users"] = values.users.astype(np.int32)
        columns[f"{metric}/total"] = values.total.astype(np.float32)
        columns[f"{metric}/weight"] = values.weight.astype(np.float32)
    with atomic_path(_per_user_path(results, row, group)) as path, path.open("wb") as file:
        np.savez_compressed(file, **columns)


def load_per_user(results: Path, row: StoredRow) -> PerUserMetric | None:
    """Load the values per user behind a row, or None if they were not stored."""
    path = _per_user_path(results, row, row.users)
    if not path.exists():
        return None
    with np.load(path) as file:
        if f"{row.metric}/users" not in file:
            return None
        users, total, weight = (file[f"{row.metric}/{x}"] for x in ("users", "total", "weight"))
    return PerUserMetric(
        users.astype(np.int64), total.astype(np.float64), weight.astype(np.float64)
    )


def _per_user_path(results: Path, row: StoredRow, group: str) -> Path:
    """Return the path of the file with the per-user values of a row's run and user group."""
    split = re.sub(r"[^\w.-]+", "-", row.split)
    name = f"{row.model}.{row.preset}.{group}.{row.seed}.{split}.{row.options}.npz"
    return results / ".per-user" / row.dataset / name
