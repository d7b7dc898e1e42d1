"""Hostile input files, read by every reader of tables: accepted with the right rows, or refused.

A refusal is an error of the program, in one line, that names the file and the line or column; it
leaves nothing behind. Nothing else may happen.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attack import Tally
from builders import table_from_columns
from hostile_parquet import KINDS
from hostile_sides import ITEMS, SIDES, SideCase
from hostile_tables import Case, Row
from limits import TooLong, call, last_frames, memory_limit, quiet, time_limit

from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.data.shard_writer import write_shards
from idcf.data.side_tables import add_side_tables
from idcf.data.user_chunks import HistoryFile, read_user_chunks
from idcf.errors import IdcfError

DRAWS_PER_KIND = 3
VERB_SHARE = 0.4  # of cases that also go through the command line
SECONDS = 20.0
BYTES = 3 << 29
_LIMIT = "IDCF_MAX_UNPACKED_BYTES"


def run(folder: Path, seed: int, share: float) -> Tally:
    """Write hostile files and read them."""
    torch.set_num_threads(1)
    tally = Tally()
    makers: dict[str, Callable[..., Any]] = {**KINDS, **{f"side: {k}": x for k, x in SIDES.items()}}
    names = [x for x in makers for _ in range(DRAWS_PER_KIND)]
    order = np.random.default_rng(seed).permutation(len(names))
    for draw in order[: max(round(share * len(names)), 1)].tolist():
        name = names[draw]
        tally.count(name.partition(":")[0])
        rng = np.random.default_rng([seed, draw])
        shutil.rmtree(folder)
        folder.mkdir()
        case = makers[name](folder, rng)
        for problem in _problems(case, folder, rng):
            tally.fail(name, f"seed {seed}, draw {draw}", problem)
    return tally


def _problems(case: Case | SideCase, folder: Path, rng: np.random.Generator) -> list[str]:
    """Read a file in every way; return what was wrong."""
    readers: dict[str, Callable[[], str]]
    if isinstance(case, SideCase):
        readers = {"python": lambda: _side_problem(case)}
    else:
        readers = {"python": lambda: _table_problem(case)}
        if _is_table(case.path):
            readers["shard"] = lambda: _shard_problem(case, folder)
            readers["history"] = lambda: _history_problem(case)
    if rng.random() < VERB_SHARE:
        readers["verb"] = lambda: _verb_problem(case, folder, rng)
    problems = []
    for name, reader in readers.items():
        before = _names(folder)
        try:
            with quiet(), _unpacked_limit(case), time_limit(SECONDS), memory_limit(BYTES):
                problem = reader()
        except TooLong as error:
            problem = str(error)
        except IdcfError as error:
            problem = _refusal_problem(case, str(error))
        except BaseException as error:
            problem = last_frames(error)
        if not problem and (left := _names(folder) - before):
            problem = f"leaves {sorted(left)}"
        if problem:
            problems.append(f"{name}: {problem}")
        for left_over in ("shards", "model", ".shards.work"):
            shutil.rmtree(folder / left_over, ignore_errors=True)
    return problems


def _is_table(path: Path) -> bool:
    """Return whether a file is of a kind that all readers know, by its name."""
    suffixes = (".csv", ".tsv", ".parquet", ".csv.gz")
    return path.name == "parts" or path.name.lower().endswith(suffixes)


def _names(folder: Path) -> set[str]:
    return {x.name for x in folder.iterdir() if x.name not in ("shards", "model")}


class _unpacked_limit:
    """Limit what a packed file may unpack to, in a block."""

    def __init__(self, case: Case | SideCase) -> None:
        self.limit = getattr(case, "unpacked_bytes", None)

    def __enter__(self) -> None:
        if self.limit is not None:
            os.environ[_LIMIT] = str(self.limit)

    def __exit__(self, *_: object) -> None:
        os.environ.pop(_LIMIT, None)


def _refusal_problem(case: Case | SideCase, message: str) -> str:
    """Return what is wrong with a refusal, or ""."""
    right = case.titles if isinstance(case, SideCase) else case.rows
    if right is not None:
        return f"refused: {message[:600]}"
    message = message.removesuffix("\n").rpartition("\n")[2] if "error: " in message else message
    if "\n" in message or len(message) > 3000:
        return f"not one line: {message[:600]!r}"
    if case.path.name[:40] not in message and not isinstance(case, SideCase):
        return f"does not name the file: {message[:600]}"
    for part in case.says:
        if not re.search(part, message):
            return f"does not say {part!r}: {message[:600]}"
    return ""


def _rows_problem(case: Case, rows: list[Row]) -> str:
    """Return how rows differ from the right ones, or ""."""
    if case.is_open:
        return ""
    if case.rows is None:
        return f"accepted, with {len(rows)} rows"
    right = {(u, i): r for u, i, r in case.rows}
    read = {(u, i): r for u, i, r in rows}
    if right.keys() != read.keys() or len(rows) != len(right):
        return f"other rows: {str(sorted(map(str, right.keys() ^ read.keys())))[:600]}"
    wrong = [x for x in right if not np.isclose(right[x], read[x], rtol=1e-6)]
    return f"other ratings: {wrong[0]}: {read[wrong[0]]}, not {right[wrong[0]]}" if wrong else ""


def _rows_of(table: Interactions) -> list[Row]:
    users, items = table.users.ids, table.items.ids
    columns = (table.user.tolist(), table.item.tolist(), table.rating.tolist())
    return [(users[u], items[i], r) for u, i, r in zip(*columns, strict=True)]


def _table_problem(case: Case) -> str:
    return _rows_problem(case, _rows_of(read_interactions(case.path, **case.options)))


def _shard_problem(case: Case, folder: Path) -> str:
    if case.unpacked_bytes is not None:
        return ""  # shards are of tables of any size, which are not held
    table, _ = write_shards(case.path, folder / "shards", memory=1 << 30, **case.options)
    return _rows_problem(case, _rows_of(table.interactions()))


def _history_problem(case: Case) -> str:
    """Read a file as that of histories, whose rows are checked by the users and their number."""
    implicit = bool(case.options.get("implicit")) or (
        case.rows is not None and all(r == 1.0 for *_, r in case.rows)
    )
    file = HistoryFile(case.path, may_be_unsorted=True)
    if case.path.name == "parts":
        return ""  # a folder is read file by file
    users: set[str] = set()
    try:
        for chunk in read_user_chunks(file, implicit):
            users |= {str(x).removesuffix(".0") for x in chunk.user_ids.to_pylist()}
    except IdcfError as error:
        return _refusal_problem(replace(case, says=()), str(error))
    right = {str(u) for u, *_ in case.rows or []}
    if case.options:  # rows of weight 0 are dropped in training only
        return ""
    return f"other users: {str(users ^ right)[:600]}" if right and users != right else ""


def _side_problem(case: SideCase) -> str:
    """Read a side table; return what was wrong, or ""."""
    pairs = [(u, i) for u in range(8) for i in range(9)]
    users, items = ([f"{kind}{x[k]}" for x in pairs] for k, kind in enumerate("ui"))
    table = table_from_columns(np.array(users), np.array(items), np.ones(len(pairs)))
    sides: Mapping[str, Any] = {"users": None, "items": None, case.role: case.path}
    enriched = add_side_tables(table, sides["users"], sides["items"])
    if case.is_open:
        features = (enriched.interactions.user_features, enriched.interactions.item_features)
        finite = all(np.isfinite(x).all() for x in features if x is not None)
        bad = [x for x in (enriched.titles or {}).values() if "b'" in x]
        return "" if finite and not bad else "accepted, with features or titles that are wrong"
    if case.titles is None:
        return f"accepted, with titles {str(enriched.titles)[:200]}"
    return "" if enriched.titles == case.titles else f"other titles: {str(enriched.titles)[:600]}"


def _verb_problem(case: Case | SideCase, folder: Path, rng: np.random.Generator) -> str:
    """Give a file to a verb of the command line; return what was wrong, or ""."""
    out = ("--out", folder / "model", "--model", "popularity", "--key-threshold", 1)
    if isinstance(case, SideCase):
        table = folder / "ratings.csv"
        rows = [f"u{u},{i},{1 + (u + k) % 5}" for u in range(8) for k, i in enumerate(ITEMS)]
        table.write_text("\n".join(["user_id,item_id,rating", *rows]) + "\n")
        option = "--user-features" if case.role == "users" else "--items"
        arguments = ("train", table, *out[:3], "als", *out[4:], option, case.path)
        outcome = call(*map(str, arguments), "--no-card-metrics", "--json")
        table.unlink()
        if outcome.code == 0 and case.titles is None:
            return ""  # als reads no features
        right = case.titles
    else:
        switch = ("--implicit",) if case.options.get("implicit") else ()
        verbs = [("train", case.path, *out, "--no-card-metrics"), ("estimate", case.path)]
        verb = verbs[int(rng.integers(len(verbs)))]
        outcome = call(*map(str, verb), *switch, "--json")
        right = case.rows
        if verb[0] == "estimate" and right is None and outcome.code == 0:
            return ""  # it counts rows and need not look at ratings
    if problem := outcome.problem():
        return problem
    if outcome.code and (folder / "model").exists():
        return "refused, and leaves a model"
    if case.is_open:
        return ""
    if right is None:
        return _refusal_problem(case, outcome.err) if outcome.code else "accepted"
    n_users = len({u for u, *_ in case.rows or []}) if isinstance(case, Case) else 8
    if outcome.code and n_users > 2:  # a model needs three users
        return f"refused: {outcome.err[:600]}"
    return ""
