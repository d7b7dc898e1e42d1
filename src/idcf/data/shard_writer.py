"""Write a table of any size as a folder of shards, see `shards` for the format.

All work is done in a temporary folder in the folder of the target: rows are spilled and sorted
(`shard_spill`), shard files are written, and the finished folder replaces the target in one step. A
journal says what is done, so that a run that was killed is continued by the next one.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from idcf.data.columns import (
    no_rows_message,
    repeats_message,
    warn_about_data,
    zero_weights_message,
)
from idcf.data.progress import progress_bar
from idcf.data.shard_files import RatingSummary, ShardFile
from idcf.data.shard_source import QuerySource, RowSource, open_file_source
from idcf.data.shard_spill import (
    SortedRows,
    Spill,
    bucket_name,
    count_users,
    distribute,
    read_bucket,
    read_spill,
    sort_bucket,
    sort_items,
    spill_rows,
)
from idcf.data.shards import (
    DEFAULT_BLOCK_USERS,
    FORMAT,
    ITEMS_NAME,
    MANIFEST_NAME,
    Shard,
    ShardedTable,
    ShardManifest,
    file_sha256,
    is_sharded_folder,
    read_manifest,
    sum_of_counts,
)
from idcf.errors import ConfigError, DataError, IdcfError
from idcf.files import atomic_path, expand_user, replace_folder, try_lock, write_text

_SHARD_BYTES = 64 << 20  # of a file, where the number of shards is not given
_DEFAULT_MEMORY = 1 << 30
_DEFAULT_WORKING_MEMORY = 512 << 20  # of a process that holds much already
_MIN_WORKING_MEMORY = 32 << 20
_WRITER_MEMORY = 56 << 20  # of pyarrow's writers and what the allocator does not give back
_SPILL_ROW_BYTES, _SHARD_ROW_BYTES = 40, 16  # for the estimate of disk space
_MIB, _GIB = 2**20, 2**30
Options = dict[str, str | int | bool | None]


def write_shards(
    source: str | Path | None,
    folder: str | Path,
    *,
    query: str | None = None,
    columns: Mapping[str, str] | None = None,
    implicit: bool | None = None,
    n_shards: int | None = None,
    block_users: int = DEFAULT_BLOCK_USERS,
    memory: int | None = None,
    threads: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> tuple[ShardedTable, bool]:
    """Write the table of a file, a folder or a query to a folder of shards.

    Parameters
    ----------
    source
        A CSV, TSV (also gzipped) or Parquet file, or a folder of either; None with a query.
    folder
        The folder to write. It appears once it is complete.
    query
        SQL of DuckDB that selects the rows.
    columns, implicit
        As for `read_interactions`.
    n_shards
        Number of shard files; by default they have about 64 MB.
    block_users
        Number of users of a block, which is what is read and trained on at once.
    memory
        Bytes that the process may take; by default 1 GiB, and at least 512 MiB more than it holds.
    overwrite
        Replace a folder of shards of another source or with other options.

    Returns
    -------
    The table, and whether it was there already: of the same source and with the same options.

    Raises
    ------
    DataError
        If the source cannot be read or a value cannot be used, or the disk is full.
    ConfigError
        If an option cannot be used, or the folder holds anything else.
    """
    target = Path(folder).expanduser().absolute()
    working_memory = _working_memory(memory)
    _require_counts(n_shards=n_shards, block_users=block_users)
    if (source is None) is (query is None):
        raise ConfigError("give either a file or folder to read, or a query")
    with _work_folder(target) as work:
        rows = (
            QuerySource(
                query,
                columns,
                implicit,
                memory=working_memory // 2,
                threads=threads,
                spill_folder=work / "query",
            )
            if query is not None
            else open_file_source(expand_user(source or ""), columns, implicit)
        )
        options: Options = {"implicit": implicit, "shards": n_shards, "block_users": block_users}
        old_names = _check_target(target, rows, options, overwrite)
        if old_names is None:
            return ShardedTable.open(target), True
        job = _Job(target, work, rows, options, working_memory, progress)
        with _disk_errors(target):
            job.run()
            replace_folder(job.out, target)
        job.warn_of_dropped_rows()
    return ShardedTable.open(target), False


def rewrite_shards(
    source: RowSource,
    folder: Path,
    options: Options,
    *,
    memory: int | None = None,
    progress: bool = False,
) -> ShardedTable:
    """Replace a folder of shards by the rows of a source, which may read the folder itself.

    Raises DataError if the disk is full, and ConfigError if another run writes the folder.
    """
    target = folder.expanduser().absolute()
    with _work_folder(target) as work:
        _clear_folder(work)
        job = _Job(target, work, source, options, _working_memory(memory), progress)
        with _disk_errors(target):
            job.run()
            replace_folder(job.out, target)
    return ShardedTable.open(target)


@dataclass(frozen=True)
class _Position:
    """Where the next block begins."""

    block: int = 0
    bucket: int = 0  # that holds its first user, or ends before it
    users_before: int = 0  # users of all buckets before that one


class _Job:
    """A run of `write_shards`: the steps that the journal does not have."""

    def __init__(
        self,
        target: Path,
        work: Path,
        source: RowSource,
        options: Options,
        memory: int,
        progress: bool,
    ) -> None:
        import pyarrow as pa

        self.target, self.work, self.out = target, work, work / "out"
        self.source, self.options, self.memory = source, options, memory
        implicit = options["implicit"]
        self.implicit = "rating" not in source.columns if implicit is None else bool(implicit)
        self.block_users, self.n_shards = int(options["block_users"] or 0), options["shards"]
        self._has_bars = progress
        key = {
            "source": source.description,
            "columns": dict(source.columns),
            "options": options,
            "format": FORMAT,
            "pyarrow": pa.__version__,
        }
        self.journal: dict[str, Any] = _read_journal(work / "journal.json")
        if self.journal.get("key") != key:
            _clear_folder(work)
            self.journal = {"key": key, "shards": []}
        self.out.mkdir(exist_ok=True)

    def run(self) -> None:
        """Write the shards and the manifest to the folder `out`."""
        if "items_sha256" not in self.journal:
            self._spill()
        if "bucket_rows" not in self.journal:
            self._distribute()
        if self.n_shards is not None and "n_users" not in self.journal:
            self._count_users()
        self._write()
        self._finish()

    def _save(self, **values: Any) -> None:
        """Add values to the journal and write it."""
        self.journal |= values
        write_text(self.work / "journal.json", json.dumps(self.journal))

    def _bar(self, label: str, total: int | None) -> tqdm[Any]:
        """Return a progress bar that counts rows."""
        shown = label if self._has_bars else None
        return progress_bar(shown, total=total, unit=" rows", unit_scale=True)

    def _spill(self) -> None:
        """Check the rows of the source and write them to temporary files, and the items."""
        import pyarrow as pa
        from pyarrow import parquet

        row_bytes = 2 * _SPILL_ROW_BYTES + _SHARD_ROW_BYTES
        _check_disk(self.target, self.source.estimated_rows * row_bytes)
        with self._bar("read", self.source.n_rows) as bar:
            spill, ids = spill_rows(
                self.source.rows(self.implicit, self.memory // 4),
                self.work,
                implicit=self.implicit,
                ids_are_text=self.source.ids_are_text,
                progress=bar.update,
            )
        if not spill.n_rows:
            raise DataError(no_rows_message(self.source.name))
        ids, row_of_code = sort_items(ids)
        np.save(self.work / "item_rows.npy", row_of_code)
        with atomic_path(self.out / ITEMS_NAME) as temporary:
            parquet.write_table(pa.table({"item_id": ids}), temporary, compression="zstd")
        write_text(self.work / "spill.json", json.dumps(asdict(spill)))
        self._save(items_sha256=file_sha256(self.out / ITEMS_NAME))

    def _read_spill(self) -> Spill:
        """Read the description of the temporary files."""
        values = json.loads((self.work / "spill.json").read_text(encoding="utf-8"))
        return Spill(**values)

    def _distribute(self) -> None:
        """Distribute the rows over buckets that can be sorted in memory."""
        spill = self._read_spill()
        bounds = spill.bucket_bounds(self.memory // 2)
        n_bytes = sum((self.work / name).stat().st_size for name in spill.files)
        _check_disk(self.target, n_bytes * bool(bounds) + spill.n_rows * _SHARD_ROW_BYTES)
        bucket_rows = [spill.n_rows]
        if bounds:
            with self._bar("distribute", spill.n_rows) as bar:
                bucket_rows = distribute(spill, bounds, self.work, bar.update)
        self._save(bucket_rows=bucket_rows)
        if bounds:
            for name in spill.files:
                (self.work / name).unlink()

    def _bucket(self, index: int) -> Iterator[Any]:
        """Yield the record batches of a bucket; raises DataError if rows are missing, as after a
        failure of the system."""
        n_rows, bucket_rows = 0, self.journal["bucket_rows"]
        is_only = len(bucket_rows) == 1
        for batch in (
            read_spill(self._read_spill(), self.work)
            if is_only
            else read_bucket(self.work / bucket_name(index))
        ):
            n_rows += len(batch)
            yield batch
        if n_rows != bucket_rows[index]:
            raise DataError(f"{self.target}: a temporary file is not whole; run it again")

    def _count_users(self) -> None:
        """Count the users, of which the blocks of each shard follow where their number is given."""
        n_users = sum(count_users(self._bucket(n)) for n in range(len(self.journal["bucket_rows"])))
        n_blocks, n_shards = -(-n_users // self.block_users), int(self.n_shards or 0)
        if n_shards > n_blocks:
            raise ConfigError(
                f"{n_shards} shards of {n_users:,} users need blocks of fewer users: there are "
                f"{n_blocks} of {self.block_users}; take fewer shards or set --block-users"
            )
        self._save(n_users=n_users)

    def _write(self) -> None:
        """Write the shard files that are missing."""
        position, ratings = self._resume()
        shards: list[Any] = self.journal["shards"]
        with ExitStack() as stack, self._bar("write", self._read_spill().n_rows) as bar:
            bar.update(sum(x["shard"]["n_rows"] for x in shards))
            shard_file = None
            for block, following in self._blocks(position):
                if shard_file is None:
                    path = self.out / f"shard-{len(shards):05d}.parquet"
                    shard_file = ShardFile(path, following.block - 1, stack)
                shard_file.add(block)
                ratings.add(block.ratings, len(block.items))
                bar.update(len(block.items))
                if self._is_full(shard_file, len(shards), following.block):
                    shards.append(_journal_entry(shard_file, following, ratings))
                    self._save()
                    shard_file = None
            if shard_file is not None:
                shards.append(_journal_entry(shard_file, following, ratings))
                self._save()

    def _is_full(self, shard_file: ShardFile, index: int, next_block: int) -> bool:
        """Return whether a shard ends before the next block."""
        if self.n_shards is None:
            return shard_file.n_bytes >= _SHARD_BYTES
        n_blocks = -(-self.journal["n_users"] // self.block_users)
        return bool(next_block == (index + 1) * n_blocks // int(self.n_shards))

    def _resume(self) -> tuple[_Position, RatingSummary]:
        """Return where writing goes on, after the shards whose files are whole; delete others."""
        entries = []
        for entry in self.journal["shards"]:
            path = self.out / entry["shard"]["file"]
            if not path.is_file() or file_sha256(path) != entry["shard"]["sha256"]:
                break
            entries.append(entry)
        names = {ITEMS_NAME, *(x["shard"]["file"] for x in entries)}
        for path in self.out.iterdir():
            if path.name not in names:
                path.unlink()
        self._save(shards=entries)
        if not entries:
            return _Position(), RatingSummary()
        return _Position(**entries[-1]["next"]), RatingSummary.from_values(entries[-1]["ratings"])

    def _blocks(self, position: _Position) -> Iterator[tuple[SortedRows, _Position]]:
        """Yield blocks from a position on, each with the position after it."""
        size, row_of_code = self.block_users, np.load(self.work / "item_rows.npy")
        skip = position.block * size - position.users_before
        rest: SortedRows | None = None  # fewer users than a block
        for bucket in range(position.bucket, len(self.journal["bucket_rows"])):
            rows = sort_bucket(self._bucket(bucket), row_of_code)
            if rows is None:
                continue
            position = replace(position, bucket=bucket)
            n_users, start, skip = rows.n_users, skip, 0
            if rest is not None:
                start = min(size - rest.n_users, n_users)
                rest = SortedRows.concat([rest, rows.users(0, start)])
                if rest.n_users == size:
                    position = replace(position, block=position.block + 1)
                    yield rest, position
                    rest = None
            for low in range(start, n_users - size + 1, size):
                position = replace(position, block=position.block + 1)
                yield rows.users(low, low + size), position
                start = low + size
            if start < n_users:
                rest = SortedRows.concat([rows.users(start)])  # a copy, so that `rows` is freed
            n_before = position.users_before + n_users
            position = replace(position, bucket=bucket + 1, users_before=n_before)
            del rows
        if rest is not None:
            yield rest, replace(position, block=position.block + 1)

    def _finish(self) -> None:
        """Write the manifest."""
        shards = tuple(Shard(**x["shard"]) for x in self.journal["shards"])
        ratings = RatingSummary.from_values(self.journal["shards"][-1]["ratings"])
        counts = () if ratings.counts is None else tuple(sorted(ratings.counts.items()))
        manifest = ShardManifest(
            format=FORMAT,
            idcf_version=_version(),
            n_users=sum(x.n_users for x in shards),
            n_items=self._read_spill().n_items,
            n_rows=sum(x.n_rows for x in shards),
            n_blocks=sum(x.n_blocks for x in shards),
            block_users=self.block_users,
            implicit=self.implicit,
            has_ratings=not self.implicit,
            has_times="timestamp" in self.source.columns,
            rating_counts=counts,
            rating_range=(ratings.low, ratings.high),
            rating_sum=sum_of_counts(counts) if counts else ratings.total,
            columns=dict(self.source.columns),
            options=self.options,
            source=self.source.description,
            items_sha256=self.journal["items_sha256"],
            shards=shards,
        )
        write_text(self.out / MANIFEST_NAME, json.dumps(asdict(manifest), indent=1))

    def warn_of_dropped_rows(self) -> None:
        """Issue the warnings of the readers for rows that were dropped."""
        spill, name = self._read_spill(), self.source.name
        if n_zeros := spill.n_source_rows - spill.n_rows:
            warn_about_data(zero_weights_message(name, n_zeros))
        n_written = sum(x["shard"]["n_rows"] for x in self.journal["shards"])
        if n_repeats := spill.n_rows - n_written:
            has_times = "timestamp" in self.source.columns
            warn_about_data(repeats_message(name, n_repeats, has_times))


def _journal_entry(file: ShardFile, following: _Position, ratings: RatingSummary) -> dict[str, Any]:
    """Close a shard file; return what the journal says of it and of what follows."""
    return {
        "shard": asdict(file.close()),
        "next": asdict(following),
        "ratings": ratings.values(),
    }


def _version() -> str:
    """Return the version of idcf."""
    from idcf import __version__

    return __version__


def _require_counts(**counts: int | None) -> None:
    """Raise ConfigError for a number that is given but not positive."""
    for name, n in counts.items():
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise ConfigError(f"{name} must be a whole number from 1, got {n!r}")


def _working_memory(limit: int | None) -> int:
    """Return how many bytes are free for data; raises ConfigError if `limit` leaves too few."""
    _load_libraries()
    used = _resident_memory() + _WRITER_MEMORY
    if limit is None:
        return max(_DEFAULT_MEMORY - used, _DEFAULT_WORKING_MEMORY)
    if limit - used < _MIN_WORKING_MEMORY:
        need = (used + _MIN_WORKING_MEMORY) // _MIB + 1
        raise ConfigError(
            f"memory of {limit // _MIB:,} MiB is too little: the program takes {used // _MIB:,} "
            f"MiB without data; give at least {need:,} MiB (--memory)"
        )
    return limit - used


def _resident_memory() -> int:
    """Return how many bytes the process holds."""
    try:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return 400 * _MIB  # where the system does not say it
    return n_pages * os.sysconf("SC_PAGE_SIZE")


def _load_libraries() -> None:
    """Read and write a small table, so that what the libraries take counts as taken."""
    import pyarrow as pa
    from pyarrow import compute, csv, ipc, parquet

    table, buffer = pa.table({"user_id": ["a", "b"]}), io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd")
    batches = list(parquet.ParquetFile(buffer).iter_batches())
    compute.sort_indices(batches[0].column(0)).to_numpy()
    csv.read_csv(io.BytesIO(b"a,b\n1,2\n"))
    with ipc.new_stream(io.BytesIO(), table.schema) as writer:
        writer.write_table(table)


def _check_target(
    target: Path, source: RowSource, options: dict[str, Any], overwrite: bool
) -> bool | None:
    """Check that the target may be written. None: it is complete, of this source and with these
    options."""
    if not target.exists():
        return True
    names = {x.name for x in target.iterdir()} if target.is_dir() else {target.name}
    if target.is_dir() and not names:
        return True
    if not is_sharded_folder(target):
        raise ConfigError(f"{target} exists and holds no shards; choose another folder")
    manifest = read_manifest(target)
    others = names - {MANIFEST_NAME, ITEMS_NAME, *(x.file for x in manifest.shards)}
    if overwrite and others:
        raise ConfigError(
            f"{target} also holds {min(others)!r}, which would be lost; choose another folder or "
            "move it away"
        )
    if overwrite:
        return True
    facts = {
        "source": (manifest.source, source.description),
        "columns": (manifest.columns, dict(source.columns)),
        **{name: (manifest.options.get(name), x) for name, x in options.items()},
    }
    for name, (old, new) in facts.items():
        if old != new:
            detail = "of another source, or the source has changed"
            if name != "source":
                detail = f"with other options ({name}: {old!r}, not {new!r})"
            raise ConfigError(
                f"{target} holds shards {detail}; choose another folder or give --overwrite"
            )
    return None


@contextmanager
def _work_folder(target: Path) -> Iterator[Path]:
    """Yield the temporary folder of a target; it remains only if the run is interrupted.

    Raises ConfigError if another run writes the target.
    """
    work = target.with_name(f".{target.name}.idcf-shard")
    try:
        work.mkdir(parents=True, exist_ok=True)
        lock = (work / "lock").open("ab")
    except OSError as error:
        raise ConfigError(f"{work} cannot be written ({error.strerror}); choose another") from None
    with lock:
        if not try_lock(lock.fileno()):
            raise ConfigError(f"{target} is being written by another run; wait until it ends")
        try:
            yield work
        except IdcfError:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work, ignore_errors=True)


def _read_journal(path: Path) -> dict[str, Any]:
    """Read the journal of a run; {} if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _clear_folder(work: Path) -> None:
    """Delete what another run left in its temporary folder."""
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def _check_disk(target: Path, n_bytes: int) -> None:
    """Raise ConfigError if the disk of the target has less than `n_bytes` free."""
    free = shutil.disk_usage(target.parent).free
    if n_bytes > free:
        raise ConfigError(
            f"{target} and its temporary files need about {n_bytes / _GIB:.1f} GiB of disk space, "
            f"but {free / _GIB:.1f} GiB are free; choose a folder on another disk"
        )


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """Raise DataError if a file cannot be written in the block, or a temporary one is damaged."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{target}: a temporary file is damaged ({reason}); run it again") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise DataError(
            f"{target} cannot be written ({reason}); make room or choose another folder"
        ) from None
