"""Tables of interactions as blocks of consecutive users: sharded Parquet folders, or in memory.

A sharded folder holds `items.parquet`, `shard-00000.parquet` … and `manifest.json`, which is
written last: a folder without it is not finished. Users are numbered in the sorted order of their
ids; block b holds the users b·B … (b+1)·B-1 and is one row group, so that blocks do not depend on
the number of shards. Rows are sorted by user, then by item. `shard_writer` writes such folders.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import fsum
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from idcf.data.interactions import Floats, Interactions, Ints, Vocab
from idcf.data.parquet_reader import parquet_errors
from idcf.errors import DataError

MANIFEST_NAME, ITEMS_NAME = "manifest.json", "items.parquet"
FORMAT = "idcf-shards-1"
DEFAULT_BLOCK_USERS = 4096
MAX_RATING_LEVELS = 100  # more distinct ratings are described by their range
_HASH_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One shard file: a run of consecutive whole blocks."""

    file: str
    first_block: int
    n_blocks: int
    n_users: int
    n_rows: int
    n_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardManifest:
    """Content of manifest.json."""

    format: str
    idcf_version: str
    n_users: int
    n_items: int
    n_rows: int
    n_blocks: int
    block_users: int
    implicit: bool
    has_ratings: bool
    has_times: bool
    rating_counts: tuple[tuple[float, int], ...]  # (level, rows); (): more than 100 levels
    rating_range: tuple[float, float]  # lowest and highest rating
    rating_sum: float
    columns: dict[str, str]  # name of each role's column in the source
    options: dict[str, str | int | bool | None]  # those that the folder was written with
    source: dict[str, str | int]
    items_sha256: str
    shards: tuple[Shard, ...]


@dataclass(frozen=True, eq=False)
class UserBlock:
    """Consecutive users of a table, with their rows."""

    index: int
    first_user: int
    offsets: Ints  # [n_users + 1]: where the rows of each user start
    items: NDArray[np.int32]  # rows of the item vocabulary, ascending within a user
    ratings: Floats | None  # None: implicit feedback
    times: Ints | None

    @property
    def n_users(self) -> int:
        """Number of users of this block."""
        return len(self.offsets) - 1


class UserBlocks(ABC):
    """A table that is read in blocks of `block_users` consecutive users; the last has the rest."""

    n_users: int
    n_items: int
    n_rows: int
    block_users: int
    implicit: bool
    has_times: bool
    rating_counts: tuple[tuple[float, int], ...]  # (level, rows); (): more than 100 levels
    rating_range: tuple[float, float]  # lowest and highest rating

    @property
    @abstractmethod
    def rating_sum(self) -> float:
        """Sum of the ratings: the same bits for a table and its shards."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-self.n_users // self.block_users)

    @property
    def rating_levels(self) -> tuple[float, ...]:
        """Distinct ratings in ascending order, (1,) for implicit feedback; (): more than 100."""
        return tuple(level for level, _ in self.rating_counts)

    @property
    def mean_rating(self) -> float:
        """Mean of the ratings; 0 for implicit feedback."""
        return 0.0 if self.implicit else self.rating_sum / self.n_rows

    @property
    @abstractmethod
    def items(self) -> Vocab:
        """Vocabulary of the items."""

    @abstractmethod
    def read_block(self, index: int) -> UserBlock:
        """Read one block."""

    @abstractmethod
    def user_ids(self, index: int) -> tuple[Any, ...]:
        """Read the ids of the users of one block."""

    def users_of_block(self, index: int) -> range:
        """Numbers of the users of one block."""
        if not 0 <= index < self.n_blocks:
            raise IndexError(f"block {index} of {self.n_blocks}")
        first = index * self.block_users
        return range(first, min(first + self.block_users, self.n_users))


class TableBlocks(UserBlocks):
    """The blocks of a table in memory; users have the numbers of their rows in the vocabulary."""

    def __init__(self, table: Interactions, block_users: int = DEFAULT_BLOCK_USERS) -> None:
        self.table, self.block_users = table, block_users
        self.n_users, self.n_items, self.n_rows = len(table.users), len(table.items), len(table)
        self.implicit, self.has_times = table.implicit, table.time is not None
        levels, counts = np.unique(table.rating, return_counts=True)
        pairs = zip(levels.tolist(), counts.tolist(), strict=True)
        self.rating_counts = tuple(pairs) if len(levels) <= MAX_RATING_LEVELS else ()
        self.rating_range = (float(levels[0]), float(levels[-1])) if len(levels) else (0.0, 0.0)

    @cached_property
    def rating_sum(self) -> float:
        """Sum of the ratings."""
        if self.rating_counts:
            return sum_of_counts(self.rating_counts)
        total = 0.0
        for index in range(self.n_blocks):
            ratings = self.read_block(index).ratings
            total += 0.0 if ratings is None else float(ratings.sum(dtype=np.float64))
        return total

    @property
    def items(self) -> Vocab:
        """Vocabulary of the items."""
        return self.table.items

    def read_block(self, index: int) -> UserBlock:
        """Select the rows of one block."""
        users = self.users_of_block(index)
        order, start = self.table.rows_by_user
        offsets = start[users.start : users.stop + 1]
        rows = order[offsets[0] : offsets[-1]]
        rows = rows[np.lexsort((self.table.item[rows], self.table.user[rows]))]
        return UserBlock(
            index,
            users.start,
            offsets - offsets[0],
            self.table.item[rows].astype(np.int32),
            None if self.implicit else self.table.rating[rows],
            None if self.table.time is None else self.table.time[rows],
        )

    def user_ids(self, index: int) -> tuple[Any, ...]:
        """Return the ids of the users of one block."""
        users = self.users_of_block(index)
        return self.table.users.ids[users.start : users.stop]


@dataclass(frozen=True, eq=False)
class ShardedTable(UserBlocks):
    """A folder of shards. Pickled as its path and manifest; files are opened when they are read."""

    folder: Path
    manifest: ShardManifest

    def __post_init__(self) -> None:
        for name in ("n_users", "n_items", "n_rows", "block_users", "implicit", "has_times"):
            object.__setattr__(self, name, getattr(self.manifest, name))
        for name in ("rating_counts", "rating_range"):
            object.__setattr__(self, name, getattr(self.manifest, name))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.manifest)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Read the manifest of a folder; raises DataError if it is missing, damaged or of another
        format, or if a shard file is missing or has another size."""
        folder = Path(folder).expanduser()
        table = cls(folder, read_manifest(folder))
        if table.n_blocks != table.manifest.n_blocks:
            raise damaged_folder(folder, "the numbers of its manifest contradict each other")
        position = 0
        for shard in table.shards:
            path = folder / shard.file
            if shard.first_block != position or Path(shard.file).name != shard.file:
                raise damaged_folder(folder, "the shards of its manifest are out of order")
            if not path.is_file() or path.stat().st_size != shard.n_bytes:
                size = f"{path.stat().st_size:,} bytes" if path.is_file() else "missing"
                raise damaged_folder(folder, f"{shard.file} is {size}, not {shard.n_bytes:,} bytes")
            position += shard.n_blocks
        if position != table.n_blocks:
            raise damaged_folder(folder, "the shards of its manifest are not all blocks")
        return table

    @property
    def rating_sum(self) -> float:
        """Sum of the ratings."""
        return self.manifest.rating_sum

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The shard files, in the order of their blocks."""
        return self.manifest.shards

    @cached_property
    def items(self) -> Vocab:
        """Vocabulary of the items."""
        from pyarrow import parquet

        path = self.folder / ITEMS_NAME
        with parquet_errors(path):
            ids = parquet.ParquetFile(path).read(["item_id"])["item_id"].to_pylist()
        if len(ids) != self.n_items:
            raise damaged_folder(self.folder, f"{ITEMS_NAME} has {len(ids):,} items")
        return Vocab(ids)

    def as_implicit(self) -> Self:
        """Return the table as implicit feedback: ratings are not read."""
        manifest = replace(
            self.manifest,
            implicit=True,
            rating_counts=((1.0, self.n_rows),),
            rating_range=(1.0, 1.0),
            rating_sum=float(self.n_rows),
        )
        return type(self)(self.folder, manifest)

    def shard_of_block(self, index: int) -> Shard:
        """Return the shard that holds a block."""
        self.users_of_block(index)  # raises IndexError
        return self.shards[bisect_right(self.shards, index, key=lambda x: x.first_block) - 1]

    def read_block(self, index: int) -> UserBlock:
        """Read one block."""
        shard = self.shard_of_block(index)
        with parquet_errors(self.folder / shard.file), self._open_shard(shard) as file:
            return self._read_block(file, shard, index)

    def blocks(self, shard: Shard) -> Iterator[UserBlock]:
        """Yield the blocks of one shard."""
        with parquet_errors(self.folder / shard.file), self._open_shard(shard) as file:
            for index in range(shard.first_block, shard.first_block + shard.n_blocks):
                yield self._read_block(file, shard, index)

    def user_ids(self, index: int) -> tuple[Any, ...]:
        """Read the ids of the users of one block."""
        shard = self.shard_of_block(index)
        with parquet_errors(self.folder / shard.file), self._open_shard(shard) as file:
            column = file.read_row_group(index - shard.first_block, ["user_id"])["user_id"]
        users = column.combine_chunks()
        return tuple(users.take(self._user_starts(users, index)[:-1]).to_pylist())

    def user_counts(self) -> Ints:
        """Read the number of rows of each user, [U]."""
        counts = []
        for shard in self.shards:
            with parquet_errors(self.folder / shard.file), self._open_shard(shard) as file:
                for group in range(shard.n_blocks):
                    users = file.read_row_group(group, ["user_id"])["user_id"].combine_chunks()
                    counts.append(np.diff(self._user_starts(users, shard.first_block + group)))
        return np.concatenate(counts)

    def interactions(self) -> Interactions:
        """Read the whole table into memory; rows are in the order of the shards."""
        user_ids: list[Any] = []
        item, user = np.empty(self.n_rows, np.int64), np.empty(self.n_rows, np.int64)
        rating = np.ones(self.n_rows, np.float32)
        time = np.empty(self.n_rows, np.int64) if self.has_times else None
        start = 0
        for shard in self.shards:
            for block in self.blocks(shard):
                rows = slice(start, start + len(block.items))
                numbers = np.arange(block.first_user, block.first_user + block.n_users)
                user[rows] = np.repeat(numbers, np.diff(block.offsets))
                item[rows] = block.items
                if block.ratings is not None:
                    rating[rows] = block.ratings
                if time is not None and block.times is not None:
                    time[rows] = block.times
                user_ids += self.user_ids(block.index)
                start = rows.stop
        return Interactions(Vocab(user_ids), self.items, user, item, rating, time, self.implicit)

    def verify(self) -> None:
        """Raise DataError if the checksum of a file is not that of the manifest."""
        checksums = {ITEMS_NAME: self.manifest.items_sha256}
        for name, sha256 in {**checksums, **{x.file: x.sha256 for x in self.shards}}.items():
            path = self.folder / name
            if not path.is_file():
                raise damaged_folder(self.folder, f"{name} is missing")
            if file_sha256(path) != sha256:
                raise damaged_folder(self.folder, f"{name} has another checksum")

    def _open_shard(self, shard: Shard) -> Any:
        """Open a shard file; its metadata is parsed once in a process."""
        from pyarrow import parquet

        path = self.folder / shard.file
        metadata = _shard_metadata(path, shard.sha256)
        if metadata.num_row_groups != shard.n_blocks or metadata.num_rows != shard.n_rows:
            raise damaged_folder(self.folder, f"{shard.file} has other rows or blocks")
        return parquet.ParquetFile(
            path, metadata=metadata, read_dictionary=["user_id"], pre_buffer=False
        )

    def _read_block(self, file: Any, shard: Shard, index: int) -> UserBlock:
        """Read one block of an open file."""
        names = ["user_id", "item", *([] if self.implicit else ["rating"])]
        names += ["timestamp"] if self.has_times else []
        columns = file.read_row_group(index - shard.first_block, names, use_threads=False)
        return UserBlock(
            index,
            index * self.block_users,
            self._user_starts(columns["user_id"].combine_chunks(), index),
            columns["item"].to_numpy(),
            columns["rating"].to_numpy() if "rating" in names else None,
            columns["timestamp"].to_numpy() if "timestamp" in names else None,
        )

    def _user_starts(self, users: Any, index: int) -> Ints:
        """Return where the rows of each user start, and the end of the last."""
        codes = (users.indices if hasattr(users, "indices") else users).to_numpy()
        starts = np.flatnonzero(codes[1:] != codes[:-1]) + 1
        offsets = np.concatenate([[0], starts, [len(codes)]]).astype(np.int64)
        n_users = len(self.users_of_block(index))
        if len(offsets) - 1 != n_users:
            reason = f"block {index} has {len(offsets) - 1:,} users, not {n_users:,}"
            raise damaged_folder(self.folder, reason)
        return offsets


def columns_of_shards(source: Any) -> dict[str, str]:
    """Return {role: name} of the columns that differ from their roles in the table that shards, or
    a folder of them, were made from; nothing for another source."""
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        source = ShardedTable.open(path) if is_sharded_folder(path) else None
    if not isinstance(source, ShardedTable):
        return {}
    return {role: name for role, name in source.manifest.columns.items() if role != name}


def is_sharded_folder(path: Path) -> bool:
    """Return whether a path is a finished folder of shards."""
    try:
        with (path / MANIFEST_NAME).open("rb") as file:
            return FORMAT.rpartition("-")[0].encode() in file.read(200)
    except OSError:
        return False


def read_manifest(folder: Path) -> ShardManifest:
    """Read the manifest of a folder of shards; raises DataError if there is none, it is damaged, or
    the format is another."""
    import json

    from pydantic import TypeAdapter, ValidationError

    path = folder / MANIFEST_NAME
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder}: no {MANIFEST_NAME}, so it is no finished folder of shards; write it by "
            "`idcf shard`"
        ) from None
    except (OSError, ValueError) as error:
        raise damaged_folder(folder, f"{MANIFEST_NAME} cannot be read: {error}") from None
    format_name = values.get("format") if isinstance(values, dict) else None
    if format_name != FORMAT:
        raise DataError(
            f"{path}: format {format_name!r}, but this version reads {FORMAT!r}; write the folder "
            "again by `idcf shard`"
        )
    try:
        return TypeAdapter(ShardManifest).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise damaged_folder(folder, f"{MANIFEST_NAME}, {reason}") from None


def damaged_folder(folder: Path, reason: str) -> DataError:
    """Return the error for a folder of shards that is damaged."""
    return DataError(f"{folder}: damaged folder of shards ({reason}); write it again")


def sum_of_counts(rating_counts: Iterable[tuple[float, int]]) -> float:
    """Return the sum of ratings that are given as (level, rows), rounded once."""
    return fsum(level * n for level, n in rating_counts)


def file_sha256(path: Path) -> str:
    """Return the checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@lru_cache(maxsize=256)
def _shard_metadata(path: Path, sha256: str) -> Any:
    """Parse the metadata of a shard file; the checksum tells files of one name apart."""
    from pyarrow import parquet

    return parquet.read_metadata(path)
