"""Embeddings or lists of all users of a history file as one Parquet file, in constant memory.

`convert_part` is a call for an engine: it loads the model once in each worker and writes one file,
which is complete or absent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from idcf.data.history_arrays import ChunkReader
from idcf.data.interactions import Vocab
from idcf.data.parquet_limits import read_limited_table
from idcf.data.parquet_reader import parquet_errors
from idcf.data.table_writer import open_table
from idcf.data.user_chunks import HistoryFile, read_user_chunks
from idcf.errors import ArtifactError, DataError
from idcf.inference.artifact import load_artifact
from idcf.inference.bulk_tables import EmbeddingTables, ListTables
from idcf.inference.predictor import Predictor
from idcf.inference.ranking_query import ListOptions
from idcf.models.base import resolve_device

_METADATA_KEY = b"idcf"
_DICTIONARY_COLUMNS = ["user_id", "item_id", "rank", "source"]  # others hardly repeat


@dataclass(frozen=True)
class BulkWork:
    """What is computed for every user; sent to workers."""

    model: Path  # folder
    model_sha256: str
    device: str  # cpu or cuda
    list_options: ListOptions | None  # None: embeddings

    @classmethod
    def of_model(
        cls, folder: Path, device: str, list_options: ListOptions | None = None
    ) -> BulkWork:
        """Return the work with the model of a folder on "cpu" or "cuda"."""
        folder = folder.expanduser().absolute()
        return cls(folder, model_sha256(folder), device, list_options)

    def load_predictor(self) -> Predictor:
        """Load the model; in a process that loads one model, only once."""
        return load_predictor(self.model, self.model_sha256, self.device)

    def description(self) -> dict[str, Any]:
        """Return what the result depends on besides the histories."""
        values = {
            "verb": "embed" if self.list_options is None else "recommend",
            "model": self.model_sha256,
            "device": self.device,
            "options": self.list_options,
        }
        out: dict[str, Any] = json.loads(json.dumps(values, default=str))
        return out


class Counts(NamedTuple):
    """What was read for a part."""

    n_users: int = 0
    n_users_without_known_items: int = 0
    n_unknown_items: int = 0  # rows of items that the model does not know

    def plus(self, other: Counts) -> Counts:
        """Return the sums."""
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


class Converter:
    """A loaded model that converts history files."""

    def __init__(self, predictor: Predictor, list_options: ListOptions | None) -> None:
        self.predictor = predictor
        self.tables: EmbeddingTables | ListTables = (
            EmbeddingTables(predictor)
            if list_options is None
            else ListTables(predictor, list_options)
        )
        self._readers: dict[Path | None, ChunkReader] = {}

    @property
    def embedding_size(self) -> int:
        """Number of coordinates; 0: the results are lists."""
        return self.tables.embedding_size if isinstance(self.tables, EmbeddingTables) else 0

    def convert(self, file: HistoryFile, out: Path, job: str | None = None) -> Counts:
        """Write one file, which appears when it is complete; its ending says how.

        With a `job` it is Parquet, the counts are written into its metadata, and a file without
        users gives a file without rows; without one it is a DataError.
        """
        import pyarrow as pa

        counts, reader = Counts(), self._reader(file)
        implicit, reads_times = self.predictor.domain.implicit, self.tables.reads_order

        def tables() -> Iterator[Any]:
            """Yield the table of each chunk."""
            nonlocal counts
            for chunk in read_user_chunks(file, implicit, reads_times=reads_times):
                histories = reader.read(chunk)
                counts = counts.plus(
                    Counts(
                        len(histories.lengths),
                        int((histories.lengths == 0).sum()),
                        int(histories.n_unknown_items.sum()),
                    )
                )
                yield self.tables.table(histories)

        results = tables()
        first = next(results)
        if job is None and not counts.n_users:
            raise DataError("the file of histories has no rows; nothing was written")
        try:
            with open_table(out, first.schema, _DICTIONARY_COLUMNS) as writer:
                for table in chain([first], results):
                    writer.write_table(table.cast(first.schema))
                if job is not None:
                    values = json.dumps({"job": job, **counts._asdict()})
                    writer.add_key_value_metadata({_METADATA_KEY: values.encode()})
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{out} cannot be written: {error}") from None
        return counts

    def _reader(self, file: HistoryFile) -> ChunkReader:
        """Return the reader of the files with some items."""
        if file.items not in self._readers:
            item_ids = None if file.items is None else read_item_ids(file.items).ids
            self._readers[file.items] = ChunkReader(
                self.predictor.history_reader, item_ids, reads_order=self.tables.reads_order
            )
        return self._readers[file.items]


def model_sha256(folder: Path) -> str:
    """Return the checksum of the description of a model, which has those of its other files."""
    try:
        return hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    except OSError:
        load_artifact(folder)  # raises ArtifactError, with the reason
        raise


def read_item_ids(path: Path) -> Vocab:
    """Read the items of a folder of `idcf shard`."""
    with parquet_errors(path):
        return Vocab(read_limited_table(path, columns=["item_id"])["item_id"].to_pylist())


@lru_cache(maxsize=1)
def load_predictor(folder: Path, sha256: str, device: str) -> Predictor:
    """Load the model with a checksum; in a process that loads one model, only once."""
    if model_sha256(folder) != sha256:
        raise ArtifactError(
            f"{folder} has changed, or is another model on this machine; give the command again"
        )
    artifact = load_artifact(folder)
    artifact.model.to(resolve_device(device))
    return Predictor(artifact)


_converters: dict[str, Converter] = {}  # of this process: that of the last work


def load_converter(work: BulkWork) -> Converter:
    """Return the converter of some work; it is made once in a process."""
    key = repr(work)
    if key not in _converters:
        _converters.clear()
        _converters[key] = Converter(work.load_predictor(), work.list_options)
    return _converters[key]


@dataclass(frozen=True)
class Part:
    """One file of histories and the file that it becomes."""

    source: HistoryFile
    n_bytes: int
    modified_ns: int
    out: Path

    def check_source(self) -> None:
        """Raise DataError unless the file of histories is the one that was listed."""
        try:
            status = self.source.path.stat()
        except OSError as error:
            raise DataError(f"{self.source.path} cannot be read: {error.strerror}") from None
        if (status.st_size, status.st_mtime_ns) != (self.n_bytes, self.modified_ns):
            raise DataError(f"{self.source.path} has changed while it was read; start again")


def convert_part(work: BulkWork, job: str, part: Part, state: Any) -> Counts:
    """Write one part unless it is complete; a call of `idcf.training.engine`."""
    counts = finished_counts(part.out, job)
    if counts is None:
        part.check_source()
        counts = load_converter(work).convert(part.source, part.out, job)
        try:
            part.check_source()
        except DataError:
            part.out.unlink(missing_ok=True)
            raise
    return counts


def finished_counts(path: Path, job: str) -> Counts | None:
    """Return the counts of a part that is complete; None: there is none of this job."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        metadata = parquet.read_metadata(path).metadata or {}
        values = json.loads(metadata[_METADATA_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return None
    return Counts(**values) if values.pop("job", None) == job else None
