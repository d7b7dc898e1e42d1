"""Tables, folders of shards and files of results without the rows of some users.

No message names a user, so that no log does: users are counted.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from idcf.data.interactions import Interactions, Vocab, row_lookup
from idcf.data.parquet_reader import parquet_errors
from idcf.data.shard_source import RowSource
from idcf.data.shard_writer import rewrite_shards
from idcf.data.shards import ShardedTable, is_sharded_folder
from idcf.data.table_writer import check_table_ending
from idcf.errors import ConfigError, DataError
from idcf.files import atomic_path, check_file

_MODEL_FILES = ("config.json", "weights.safetensors")  # of every saved model


class UsersWithoutRowsError(DataError):
    """Some of the users to remove have no rows; the message does not name them."""

    def __init__(self, user_ids: Collection[Any], n_users: int, advice: str = "check the ids"):
        self.user_ids, self.n_users = user_ids, n_users
        super().__init__(
            f"{len(user_ids)} of the {n_users} users to forget have no rows there; {advice}"
        )


def without_users(
    table: Interactions, user_ids: Sequence[Any], *, ignore_missing: bool = False
) -> Interactions:
    """Return the table as it would be without these users: items of theirs alone are not in it.

    UsersWithoutRowsError: one of them is not in the table, unless `ignore_missing`. DataError:
    nobody else is.
    """
    row_by_id = row_lookup(table.users)
    rows = [row_by_id[x] for x in user_ids if x in row_by_id]
    missing = [x for x in user_ids if x not in row_by_id]
    if missing and not ignore_missing:
        raise UsersWithoutRowsError(missing, len(user_ids))
    is_removed = table.user_mask(np.array(rows, np.int64))
    rest = table.where(~is_removed[table.user])
    if not len(rest):
        raise DataError("no rows are left without these users")
    keeps_item = (rest.item_counts() > 0) | (table.item_counts() == 0)
    users, user = _reduced(table.users, ~is_removed, rest.user)
    items, item = _reduced(table.items, keeps_item, rest.item)
    features = table.user_features, table.item_features
    user_features, item_features = (
        None if x is None else x[mask]
        for x, mask in zip(features, (~is_removed, keeps_item), strict=True)
    )
    return replace(
        rest, users=users, items=items, user=user, item=item,
        user_features=user_features, item_features=item_features,
    )  # fmt: skip


def _reduced(vocab: Vocab, mask: Any, rows: Any) -> tuple[Vocab, Any]:
    """Return the ids of a vocabulary that a mask selects, and rows of it as rows of these."""
    ids = [x for x, keep in zip(vocab.ids, mask.tolist(), strict=True) if keep]
    return Vocab(ids), (np.cumsum(mask) - 1)[rows]


def remove_users_from_shards(
    folder: Path,
    user_ids: Sequence[Any],
    *,
    ignore_missing: bool = False,
    memory: int | None = None,
    progress: bool = False,
) -> ShardedTable:
    """Write a folder of shards again without some users, and replace it in one step.

    All blocks but the last have one number of users, so that those behind a user move up: all files
    are written, unless none of the users has rows. Raises errors as `without_users` does.
    """
    table = ShardedTable.open(folder)
    source = _RemainingRows(table, user_ids, ignore_missing)
    if not len(source.user_ids):
        return table
    options = dict(table.manifest.options)
    if options["shards"] is not None:
        n_blocks = -(-(table.n_users - len(source.user_ids)) // table.block_users)
        options["shards"] = min(int(options["shards"]), n_blocks)
    return rewrite_shards(source, folder, options, memory=memory, progress=progress)


class _RemainingRows(RowSource):
    """The rows of a folder of shards but for those of some users."""

    def __init__(self, table: ShardedTable, user_ids: Sequence[Any], ignore_missing: bool) -> None:
        self.table, self.name = table, str(table.folder)
        self.columns = table.manifest.columns
        self.description = {"kind": "shards without some users", "name": table.folder.name}
        self.user_ids = self._find(user_ids, ignore_missing)
        self.estimated_rows = self.n_rows = table.n_rows

    def _find(self, user_ids: Sequence[Any], ignore_missing: bool) -> Any:
        """Return the users as an Arrow array of the type of their column."""
        import pyarrow as pa

        wanted: dict[str, Any] = {str(x): x for x in user_ids}
        known: list[Any] = []
        for index in range(self.table.n_blocks):
            known += [x for x in self.table.user_ids(index) if str(x) in wanted]
        missing = [wanted[x] for x in wanted.keys() - {str(x) for x in known}]
        if missing and not ignore_missing:
            raise UsersWithoutRowsError(missing, len(wanted))
        if len(known) == self.table.n_users:
            raise DataError("no rows are left without these users")
        return pa.array(known)

    def chunks(self, max_bytes: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of one block after the other."""
        import pyarrow as pa
        from pyarrow import compute

        item_ids = pa.array(self.table.items.ids)
        for index in range(self.table.n_blocks):
            block = self.table.read_block(index)
            rows = np.repeat(np.arange(block.n_users), np.diff(block.offsets))
            columns = {
                "user_id": pa.array(self.table.user_ids(index)).take(pa.array(rows)),
                "item_id": item_ids.take(pa.array(block.items)),
                "rating": None if block.ratings is None else pa.array(block.ratings),
                "timestamp": None if block.times is None else pa.array(block.times),
            }
            chunk = pa.table({name: x for name, x in columns.items() if x is not None})
            is_removed = compute.is_in(chunk["user_id"], value_set=self.user_ids)
            chunk = chunk.filter(compute.invert(is_removed)).combine_chunks()
            if len(chunk):
                yield {x: chunk[x].combine_chunks() for x in chunk.column_names}


def check_results_file(path: Path) -> None:
    """Raise an error unless a path may be a file of `idcf embed` or `recommend --histories`."""
    check_table_ending(path)
    check_file(path)
    folder = path.absolute().parent
    if is_sharded_folder(folder):
        raise ConfigError(f"{path} is in the folder of shards {folder}; use `idcf forget {folder}`")
    if all((folder / x).exists() for x in _MODEL_FILES):
        raise ConfigError(
            f"{path} is in the folder of a model, {folder}; use `idcf forget` with --model {folder}"
        )


def users_in_file(path: Path, user_ids: Collection[Any]) -> set[str]:
    """Return those of the users, as text, who have rows in a file of results."""
    ids, known = {str(x) for x in user_ids}, set()
    for users in _read_users(path):
        known |= ids & users
    return known


def _read_users(path: Path) -> Iterator[set[str]]:
    """Yield users of a file of results as text, a part at a time."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        with parquet_errors(path), parquet.ParquetFile(path, pre_buffer=False) as file:
            _require_user_column(path, file.schema_arrow.names)
            for batch in file.iter_batches(columns=["user_id"]):
                yield set(map(str, batch["user_id"].to_pylist()))
        return
    with path.open(encoding="utf-8", newline="") as source:
        if path.suffix == ".csv":
            reader = csv.reader(source)
            header = next(reader, [])
            _require_user_column(path, header)
            position = header.index("user_id")
            yield from ({row[position]} for row in reader if len(row) > position)
            return
        for line in source:
            values = json.loads(line)
            _require_user_column(path, values)
            yield {str(values["user_id"])}


def remove_users_from_file(path: Path, user_ids: Sequence[Any]) -> int:
    """Write a file of `idcf embed` or `recommend --histories` again without the rows of some users,
    and return the number of those rows.

    What the metadata of a Parquet file says of the run that wrote it is left out.
    """
    check_results_file(path)
    ids = {str(x) for x in user_ids}
    with atomic_path(path) as temporary:
        if path.suffix == ".parquet":
            return _filter_parquet(path, temporary, ids)
        filter_lines = _filter_csv if path.suffix == ".csv" else _filter_json_lines
        with (
            path.open(encoding="utf-8", newline="") as source,
            temporary.open("w", encoding="utf-8", newline="") as out,
        ):
            return filter_lines(path, source, out.write, ids)


def _filter_parquet(path: Path, out: Path, ids: set[str]) -> int:
    """Copy a Parquet file without the rows of some users; return how many were left out."""
    import pyarrow as pa
    from pyarrow import compute, parquet

    n_removed = 0
    with parquet_errors(path), parquet.ParquetFile(path, pre_buffer=False) as file:
        _require_user_column(path, file.schema_arrow.names)
        with parquet.ParquetWriter(out, file.schema_arrow.remove_metadata()) as writer:
            for batch in file.iter_batches():
                users = batch["user_id"].cast(pa.string())
                is_removed = compute.is_in(users, value_set=pa.array(sorted(ids), pa.string()))
                rest = batch.filter(compute.invert(is_removed))
                n_removed += len(batch) - len(rest)
                writer.write_batch(rest)
    return n_removed


def _filter_csv(path: Path, source: IO[str], write: Callable[[str], Any], ids: set[str]) -> int:
    """Copy the lines of CSV without those of some users; return how many rows were left out."""
    lines: list[str] = []  # of the row that is read

    def collected() -> Iterator[str]:
        """Yield the lines of the file and remember them."""
        for line in source:
            lines.append(line)
            yield line

    n_removed, position = 0, -1
    for row in csv.reader(collected()):
        text = "".join(lines)
        lines.clear()
        if position < 0:
            _require_user_column(path, row)
            position = row.index("user_id")
        elif len(row) > position and row[position] in ids:
            n_removed += 1
            continue
        write(text)
    return n_removed


def _filter_json_lines(
    path: Path, source: IO[str], write: Callable[[str], Any], ids: set[str]
) -> int:
    """Copy JSON lines without those of some users; return how many were left out."""
    n_removed = 0
    for line in source:
        values = json.loads(line)
        _require_user_column(path, values)
        if str(values["user_id"]) in ids:
            n_removed += 1
        else:
            write(line)
    return n_removed


def _require_user_column(path: Path, names: Any) -> None:
    """Raise ConfigError for a file without a column of users."""
    if "user_id" not in names:
        raise ConfigError(f"{path} has no column user_id; give a file of embeddings or lists")
