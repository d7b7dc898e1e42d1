"""Every operation that writes, on a disk that fails at the n-th step, for every n.

Afterwards the old file or folder is whole, or the new one is; there is no file that is half
written and none that is left over; and the failure is told in one sentence. Given again, the
operation works.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from attack import Tally
from builders import board, write_csv
from faults import ERRORS, FaultyDisk, faulty, small_disk
from limits import Outcome, TooLong, call, file_size_limit, last_frames, quiet, time_limit
from pyarrow import parquet

from idcf import Recommender
from idcf.errors import IdcfError
from idcf.inference.artifact import load_artifact, save_artifact

SECONDS = 60.0
N_SIZES, N_DISKS = 12, 40  # limits of file sizes for each operation, and sizes of disks


@dataclass(frozen=True)
class Operation:
    """Something that writes `target`, from files that are there."""

    target: str  # a file or a folder
    run: Callable[[Path], Outcome]  # with the folder of the target
    is_whole: Callable[[Path], bool]
    is_slow: bool = False
    may_grow: bool = False  # the target is a folder that is filled file by file


@cache
def inputs() -> Path:
    """Return a folder with a table, histories, and a model."""
    folder = Path(tempfile.mkdtemp(prefix="idcf-campaign-"))
    table = board(40, 24, 6, 14)
    write_csv(table, folder / "ratings.csv")
    (folder / "histories").mkdir()
    for part in range(2):
        users = sorted(f"{part}-{n}" for n in range(5) for _ in range(2))
        rows = {"user_id": users, "item_id": ["i1", "i2"] * 5, "rating": [5.0, 1.0] * 5}
        parquet.write_table(pa.table(rows), folder / "histories" / f"{part}.parquet")
    with quiet():
        fitted = Recommender("als", key_threshold=10, device="cpu", embedding_size=4, reg=5.0)
        fitted.fit(table).save(folder / "model")
    return folder


def _save(folder: Path) -> Outcome:
    """Save a model by the library."""
    try:
        save_artifact(_loaded(), folder / "model")
    except IdcfError as error:
        return Outcome(3, "", f"error: {error}\n")
    return Outcome(0, "", "")


@cache
def _loaded() -> Any:
    return load_artifact(inputs() / "model")


def _verb(*arguments: str) -> Callable[[Path], Outcome]:
    """Return the call of a verb; IN and OUT are the folders of inputs and of the target."""

    def run(folder: Path) -> Outcome:
        given = [x.replace("IN", str(inputs())).replace("OUT", str(folder)) for x in arguments]
        return call(*given, "--json")

    return run


def _is_model(path: Path) -> bool:
    return bool(len(load_artifact(path).items))


def _is_table(path: Path) -> bool:
    return len(parquet.read_table(path)) > 0


def _is_shards(path: Path) -> bool:
    from idcf.data.shards import ShardedTable

    return len(ShardedTable.open(path).interactions()) > 0


def _is_text(path: Path) -> bool:
    return path.read_text().endswith("\n")


def _is_part_folder(path: Path) -> bool:
    """Every file of a folder of results is whole; the last that is written says so of all."""
    for x in path.iterdir():
        json.loads(x.read_text()) if x.suffix == ".json" else parquet.read_table(x)
    return True


def _is_onnx(path: Path) -> bool:
    import onnx

    return bool(onnx.load(path).graph.node)


def _is_search(path: Path) -> bool:
    import sqlite3

    with sqlite3.connect(path) as connection:
        return connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


_FIT = ("IN/ratings.csv", "--key-threshold", "10", "--device", "cpu")
OPERATIONS: dict[str, Operation] = {
    "save": Operation("model", _save, _is_model),
    "train": Operation(
        "model",
        _verb("train", *_FIT, "--model", "popularity", "--no-card-metrics", "--out", "OUT/model"),
        _is_model,
    ),
    "embed": Operation(
        "v.parquet",
        _verb("embed", "IN/model", "IN/histories/0.parquet", "--out", "OUT/v.parquet"),
        _is_table,
    ),
    "embed as text": Operation(
        "v.jsonl",
        _verb("embed", "IN/model", "IN/histories/0.parquet", "--out", "OUT/v.jsonl"),
        _is_text,
    ),
    "embed a folder": Operation(
        "parts",
        _verb("embed", "IN/model", "IN/histories", "--out", "OUT/parts"),
        _is_part_folder,
        may_grow=True,
    ),
    "recommend": Operation(
        "r.parquet",
        _verb(
            *("recommend", "IN/model", "--histories", "IN/histories/0.parquet"),
            *("--out", "OUT/r.parquet"),
        ),
        _is_table,
    ),
    "shard": Operation(
        "shards",
        _verb("shard", "IN/ratings.csv", "--out", "OUT/shards", "--memory", "8GiB"),
        _is_shards,
    ),
    "evaluate": Operation(
        "e.json",
        _verb("evaluate", *_FIT, "--models", "popularity", "--out", "OUT/e.json"),
        _is_text,
    ),
    "tune": Operation(
        "t.toml",
        _verb(
            *("tune", "IN/ratings.csv", "--key-threshold", "10", "--model", "bias"),
            *("--trials", "1", "--storage", "OUT/t.db", "--out", "OUT/t.toml"),
        ),
        _is_text,
        is_slow=True,
    ),
    "export": Operation(
        "m.onnx", _verb("export", "IN/model", "--onnx", "OUT/m.onnx"), _is_onnx, is_slow=True
    ),
    "report": Operation(
        "pages",
        _verb("report", "--results", "RESULTS", "--out", "OUT/pages"),
        lambda path: all(_is_text(x) for x in path.glob("*.md")),
        is_slow=True,
        may_grow=True,
    ),
}


def run(folder: Path, seed: int, share: float) -> Tally:
    """Let every step of every operation fail; then files that may not grow, and small disks."""
    torch.set_num_threads(1)
    tally = Tally()
    rng = np.random.default_rng(seed)
    names = [x for x in OPERATIONS if share >= 0.5 or not OPERATIONS[x].is_slow]
    if "report" in names:
        names.remove("report")
        tally.left_out["report"] = "its pages are drawn from rows of the repository for minutes"
    cases: list[tuple[str, str, int, int]] = []
    with _temporary_files(folder):
        for name in names:
            n_steps = len(_steps(OPERATIONS[name], folder / "count"))
            codes = ERRORS if name == "save" else ERRORS[:1]
            cases += [(name, "step", n, code) for n in range(n_steps) for code in codes]
            cases += [(name, "file size", n, 0) for n in range(N_SIZES)]
        for name in ("save", "embed", "recommend", "shard"):
            cases += [(name, "disk size", n, 0) for n in range(N_DISKS // 4 if share >= 0.5 else 0)]
        order = rng.permutation(len(cases))[: max(round(share * len(cases)), 1)]
        for draw in order.tolist():
            name, kind, n, code = cases[draw]
            problem = _try(folder / "case", cases[draw], np.random.default_rng([seed, draw]))
            if problem is None:
                tally.left_out["small disks"] = "a file system can be mounted by root alone"
                continue
            tally.count(f"{name}: {kind}")
            if problem:
                case = f"seed {seed}, {kind} {n}, {os.strerror(code) if code else ''}"
                tally.fail(name, case, problem)
    return tally


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Let temporary files be made in a folder of their own."""
    (folder / "temporary").mkdir()
    old, tempfile.tempdir = tempfile.tempdir, str(folder / "temporary")
    try:
        yield
    finally:
        tempfile.tempdir = old


def _steps(operation: Operation, folder: Path) -> list[str]:
    """Return the steps of an operation that replaces what it made before."""
    folder.mkdir(exist_ok=True)
    disk = FaultyDisk(folder)
    first = operation.run(folder)
    if first.code:
        raise RuntimeError(f"the operation fails on a good disk: {first.err}")
    shutil.rmtree(folder)
    folder.mkdir()
    with faulty(disk):
        operation.run(folder)
    shutil.rmtree(folder)
    return disk.steps


def _try(folder: Path, case: tuple[str, str, int, int], rng: np.random.Generator) -> str | None:
    """Run an operation on a disk that fails; return what was wrong, "" or None: not possible."""
    name, kind, n, code = case
    operation = OPERATIONS[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    target = folder / operation.target
    had_old = bool(rng.random() < 0.5)
    largest = _largest_file(operation, folder)
    sizes = [0, 1, 100, 4096, *rng.integers(1, largest + 1, N_SIZES).tolist()]
    try:
        with time_limit(SECONDS):
            if kind == "disk size":
                n_pages = 1 + n * (largest // 4096 + 4) // (N_DISKS // 4)
                with small_disk(folder, 4096 * n_pages) as is_mounted:
                    if not is_mounted:
                        return None
                    return _outcome_problem(operation, operation.run(folder), folder, {})
            if had_old:
                operation.run(folder)
            old = _tree(target)
            if kind == "step":
                disk = FaultyDisk(folder, n, code)
                with faulty(disk, can_swap=bool(rng.random() < 0.7)):
                    outcome = operation.run(folder)
            else:
                with file_size_limit(sizes[n]):
                    outcome = operation.run(folder)
            problem = _outcome_problem(operation, outcome, folder, old)
            if problem:
                return f"{problem}{' (replaces an old one)' if had_old else ''}"
            again = operation.run(folder)
            return (
                f"given again: {again.err}" if again.code and not _needs_permission(again) else ""
            )
    except TooLong as error:
        return str(error)
    except BaseException as error:
        return last_frames(error)


_LARGEST: dict[str, int] = {}


def _largest_file(operation: Operation, folder: Path) -> int:
    """Return the size of the largest file that an operation writes."""
    if operation.target not in _LARGEST:
        operation.run(folder)
        files = [x for x in folder.rglob("*") if x.is_file()]
        _LARGEST[operation.target] = max(x.stat().st_size for x in files)
        shutil.rmtree(folder)
        folder.mkdir()
    return _LARGEST[operation.target]


def _needs_permission(outcome: Outcome) -> bool:
    """Return whether an operation does not replace what it finds, unless it is told to."""
    return "--overwrite" in outcome.err


def _tree(path: Path) -> dict[str, bytes]:
    """Return the files of a file or folder, by their names."""
    if path.is_file():
        return {"": path.read_bytes()}
    return {str(x.relative_to(path)): x.read_bytes() for x in path.rglob("*") if x.is_file()}


def _outcome_problem(
    operation: Operation, outcome: Outcome, folder: Path, old: dict[str, bytes]
) -> str:
    """Return what is wrong after a failure, or after a success, or ""."""
    if problem := outcome.problem():
        return problem
    target = folder / operation.target
    names = {x.name for x in folder.iterdir()} - {operation.target, "t.db"}
    if names:
        return f"leaves {sorted(names)}"
    inside = [x.name for x in target.rglob("*.part")] if target.is_dir() else []
    if inside:
        return f"leaves {inside} in the folder"
    now = _tree(target)
    if outcome.code and now == old:
        return ""
    try:
        whole = operation.is_whole(target)
    except Exception as error:
        return f"exit code {outcome.code}, and the target is not whole: {error!r}"
    return "" if whole else f"exit code {outcome.code}, and the target is not whole"
