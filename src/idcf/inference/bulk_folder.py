"""Embeddings or lists of all users of a folder of history files: one Parquet file for each.

The folder of results holds a part for each source, of the same name, and `_job.json`, which says
what the parts are made of and, in the end, that they are complete. A part is complete or absent, so
a run that was interrupted goes on with the parts that are missing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import idcf
from idcf.data.parquet_reader import parquet_errors, parquet_files
from idcf.data.progress import progress_bar
from idcf.data.shards import ITEMS_NAME, ShardedTable, is_sharded_folder
from idcf.data.user_chunks import HistoryFile
from idcf.errors import ConfigError, DataError
from idcf.files import reserve, write_text
from idcf.inference.bulk import BulkWork, Counts, Part, convert_part, finished_counts

if TYPE_CHECKING:
    from idcf.training.engine import Engine

JOB_NAME = "_job.json"  # readers of Parquet folders leave such names out
_FORMAT = "idcf-users-1"
_MAX_HASHES = 1 << 24  # of user ids in memory at once


def convert_folder(
    work: BulkWork,
    histories: Path,
    out: Path,
    engine: Engine,
    *,
    columns: Mapping[str, str] | None = None,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Write a part for each file of a folder of histories, and return what `--json` prints.

    `columns` are names of columns that differ from those that the model was fitted with.

    Parts that an earlier run with the same model, options and sources finished are not written
    again. ConfigError: `out` holds something else. DataError: a user has rows in two files.
    """
    start = time.perf_counter()
    known_columns = work.load_predictor().artifact.manifest.columns
    sources = list_sources(histories, known_columns, columns)
    with reserve(out):
        parts = _list_parts(sources, out)
        job = _open_job(work, parts, out, overwrite)
        counts = {n: x for n, part in enumerate(parts) if (x := finished_counts(part.out, job))}
        n_earlier = sum(x.n_users for x in counts.values())
        remaining = [n for n in range(len(parts)) if n not in counts]
        n_rows = _require_equal_columns(sources)
        if remaining:
            _require_distinct_ends(sources)
        with progress_bar(
            work.description()["verb"] if progress else None,
            total=sum(n_rows),
            initial=sum(n_rows[n] for n in counts),
            unit=" rows",
            unit_scale=True,
        ) as bar:
            tasks = [(work, job, parts[n]) for n in remaining]
            for position, result in engine.map(convert_part, tasks, {}):
                counts[remaining[position]] = result
                bar.update(n_rows[remaining[position]])
                n_new = sum(x.n_users for x in counts.values()) - n_earlier
                bar.set_postfix_str(f"{n_new / (time.perf_counter() - start):,.0f} users/s")
        total = Counts()
        for result in counts.values():
            total = total.plus(result)
        if not total.n_users:
            raise DataError(f"{histories}: the files have no rows")
        require_distinct_users([part.out for part in parts], total.n_users)
        _write_job(out, work, parts, total)
    seconds = time.perf_counter() - start
    return {
        **total._asdict(),
        "n_files": len(parts),
        "n_files_of_earlier_runs": len(parts) - len(remaining),
        "folder": str(out),
        "seconds": round(seconds, 2),
        "users_per_second": round((total.n_users - n_earlier) / seconds),
    }


def list_sources(
    folder: Path,
    known_columns: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[HistoryFile]:
    """Return the files of a folder of Parquet files or of `idcf shard`; the files must have the
    `columns`, and may have the `known_columns`."""
    if is_sharded_folder(folder):
        table = ShardedTable.open(folder)
        items = folder.absolute() / ITEMS_NAME
        return [HistoryFile(folder.absolute() / x.file, items) for x in table.shards]
    names = (None, known_columns or {}, columns or {})
    return [HistoryFile(path, *names) for path in parquet_files(folder.absolute())]


def _list_parts(sources: Sequence[HistoryFile], out: Path) -> list[Part]:
    """Return the parts, one for each source."""
    parts = []
    for source in sources:
        status = source.path.stat()
        parts.append(
            Part(source, status.st_size, status.st_mtime_ns, out.absolute() / source.path.name)
        )
    return parts


def _require_equal_columns(sources: Sequence[HistoryFile]) -> list[int]:
    """Return the number of rows of each file; DataError: the ids of two files differ in type."""
    from pyarrow import parquet

    n_rows, first = [], None
    for source in sources:
        with parquet_errors(source.path):
            metadata = parquet.read_metadata(source.path)
        n_rows.append(metadata.num_rows)
        schema = metadata.schema.to_arrow_schema()
        name = source.user_column(schema.names)
        if name is None:
            continue  # an error of the reader
        field = schema.field(name)
        if first is None:
            first = field
        if not field.type.equals(first.type):
            raise DataError(
                f"{source.path}: column {name!r} is {field.type}, but {first.type} in "
                f"{sources[0].path.name}; write all files with the same columns"
            )
    return n_rows


def _require_distinct_ends(sources: Sequence[HistoryFile]) -> None:
    """Raise DataError if the first or the last user of a file is one of another file: a sorted
    table that was cut between two rows of a user, before anything is computed for it."""
    file_by_id: dict[Any, str] = {}
    for source in (x for x in sources if x.items is None):  # `idcf shard` cuts between users
        for user in _end_users(source):
            name = file_by_id.setdefault(user, source.path.name)
            if name != source.path.name:
                raise _repeated_user(user, name, source.path.name)


def _end_users(source: HistoryFile) -> set[Any]:
    """Return the first and the last user of a file; none if it has no column of users."""
    from pyarrow import parquet

    ends: set[Any] = set()
    path = source.path
    with parquet_errors(path), parquet.ParquetFile(path, pre_buffer=False) as file:
        n_groups = file.metadata.num_row_groups
        name = source.user_column(file.schema_arrow.names)
        if name is None:
            return ends
        for group, position in ((0, 0), (n_groups - 1, -1)) if n_groups else ():
            column = None
            for batch in file.iter_batches(row_groups=[group], columns=[name]):
                column = batch.column(0)
                if position == 0:
                    break
            if column is not None and len(column):
                ends.add(column[position].as_py())
    return ends - {None}


def _repeated_user(user: Any, *names: str) -> DataError:
    """Return the error for a user with rows in two files."""
    return DataError(
        f"user {user!r} has rows in {names[0]} and in {names[1]}, so there would be two results; "
        "write all rows of a user into one file"
    )


def _open_job(work: BulkWork, parts: Sequence[Part], out: Path, overwrite: bool) -> str:
    """Prepare the folder of results, and return the digest of the job.

    Raises ConfigError if the folder holds anything but parts of the same job.
    """
    path, names = out / JOB_NAME, {part.out.name for part in parts}
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; histories in a folder need a folder for the results")
    others = [x.name for x in out.iterdir()] if out.exists() else []
    # a run may have been killed while it wrote `_job.json`; the next write removes what it left
    others = [x for x in others if not (x.startswith(f".{JOB_NAME}.") and x.endswith(".part"))]
    if others and not path.exists():
        raise ConfigError(
            f"{out} holds {min(others)!r} and no {JOB_NAME}; give an empty or a new folder"
        )
    new = _job_values(work, parts)
    if path.exists():
        stored = json.loads(path.read_text("utf-8"))
        difference = _difference(stored, new)
        if difference and not overwrite:
            raise ConfigError(
                f"{out} holds results of another run: {difference}; give another folder, or "
                "--overwrite"
            )
        for name in {*stored.get("sources", ()), *names} if difference or overwrite else ():
            (out / name).unlink(missing_ok=True)
    for name in names:
        for temporary in out.glob(f".{name}.*.part"):  # of workers that were killed
            temporary.unlink(missing_ok=True)
    _write_job(out, work, parts, None)
    return hashlib.sha256(json.dumps(_identity(new), sort_keys=True).encode()).hexdigest()[:32]


def _job_values(work: BulkWork, parts: Sequence[Part]) -> dict[str, Any]:
    """Return the content of `_job.json` before the end."""
    sources = {part.source.path.name: [part.n_bytes, part.modified_ns] for part in parts}
    identity = {"format": _FORMAT, "idcf_version": idcf.__version__, **work.description()}
    for columns in (dict(part.source.required_columns) for part in parts[:1]):
        identity |= {"columns": columns} if columns else {}
    return {**identity, "sources": sources}


def _identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a part depends on besides its source."""
    return {name: x for name, x in values.items() if name not in ("sources", "complete")}


def _write_job(out: Path, work: BulkWork, parts: Sequence[Part], total: Counts | None) -> None:
    """Write `_job.json`; with the total counts in the end."""
    complete = None if total is None else total._asdict()
    values = {**_job_values(work, parts), "complete": complete}
    write_text(out / JOB_NAME, json.dumps(values, indent=1))


def _difference(stored: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the first difference of two jobs in words; "": there is none, or only new sources."""
    old_values, new_values = _identity(stored), _identity(new)
    for name in sorted({*old_values, *new_values}):
        if old_values.get(name) != new_values.get(name):
            return f"{name} {old_values.get(name)!r}, not {new_values.get(name)!r}"
    sources = stored["sources"]
    for name in (x for x in sources if x not in new["sources"]):
        return f"the file {name}, which is missing now"
    for name in (x for x in sources if sources[x] != new["sources"][x]):
        return f"the file {name} as it was before it changed"
    return ""


def require_distinct_users(paths: Sequence[Path], n_users: int) -> None:
    """Raise DataError if a user has rows in two files.

    Ids are compared by 64-bit hashes, of which a part is in memory at once, and by themselves where
    two hashes are equal.
    """
    n_passes = -(-n_users // _MAX_HASHES)
    for number in range(n_passes):
        hashes = np.concatenate(
            [h[h % np.uint64(n_passes) == number] for x in paths for h, _ in _hashed_users(x)]
        )
        hashes.sort()
        repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if not len(repeated):
            continue
        path_by_id: dict[Any, Path] = {}
        for path in paths:
            for file_hashes, users in _hashed_users(path):
                for position in np.flatnonzero(np.isin(file_hashes, repeated)).tolist():
                    user = users[position].as_py()
                    if path_by_id.setdefault(user, path) != path:
                        raise _repeated_user(user, path_by_id[user].name, path.name)


def _hashed_users(path: Path) -> Iterator[tuple[NDArray[np.uint64], Any]]:
    """Yield hashes and ids of the users of a part, each user once."""
    from pyarrow import compute, parquet

    previous = None
    with parquet_errors(path), parquet.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(columns=["user_id"]):
            users = batch.column(0)
            is_new = np.ones(len(users), np.bool_)
            is_new[1:] = compute.not_equal(users[1:], users[:-1]).to_numpy(zero_copy_only=False)
            is_new[:1] = users[0].as_py() != previous if len(users) else True
            previous = users[-1].as_py() if len(users) else previous
            users = users.filter(is_new)
            yield hash_ids(users), users


def hash_ids(ids: Any) -> NDArray[np.uint64]:
    """Return 64-bit hashes of an Arrow array of ids: of integers themselves, of texts a polynomial
    of their bytes."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_integer(ids.type):
        numbers: NDArray[np.uint64] = ids.to_numpy().astype(np.uint64)
        return numbers
    text = ids if types.is_binary(ids.type) else ids.cast(pa.string())
    _, offset_buffer, data = text.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[text.offset : text.offset + len(text) + 1]
    lengths = np.diff(offsets)
    out: NDArray[np.uint64] = lengths.astype(np.uint64) + np.uint64(0xCBF29CE484222325)
    content = np.frombuffer(data or b"", np.uint8)
    with np.errstate(over="ignore"):
        for position in range(int(lengths.max(initial=0))):
            longer = np.flatnonzero(lengths > position)
            characters = content[offsets[longer] + position].astype(np.uint64) + np.uint64(1)
            out[longer] = (out[longer] ^ characters) * np.uint64(0x100000001B3)
            out[longer] ^= out[longer] >> np.uint64(29)
    return out
