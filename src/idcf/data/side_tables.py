"""A person's own table of users or of items, beside the interactions: ids, and what is known.

Comes as a dataframe (pandas, Polars, Arrow) or as the path of a CSV or Parquet file.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from idcf.data.datasets.formats import check_file
from idcf.data.features import Encoding, encoded
from idcf.data.history_reader import Read, Reader, lookup
from idcf.data.interactions import Floats, Interactions, Vocab
from idcf.errors import DataError, unknown

Kind = Literal["user", "item"]
_NO_FEATURES = "features: the model was trained without any; fit it with users=, or leave them out"


@dataclass(frozen=True)
class Side:
    """Columns that stand beside ids. A title is a name, not a feature."""

    kind: Kind
    ids: Sequence[Any]
    columns: Mapping[str, Sequence[Any]]
    titles: Mapping[Any, str]

    def encode(self, vocab: Vocab) -> tuple[Floats, Encoding]:
        """A row for each id of the vocabulary, and how to read the same columns of others."""
        rows = lookup(vocab)
        ids = [vocab.ids[rows[x]] if x in rows else None for x in self.ids]
        if not any(x is not None for x in ids):
            raise DataError(
                f"{self.kind}s: none of the {len(ids):,} ids is among the interactions, where they "
                f"look like {vocab.ids[0]!r}; these look like {self.ids[0]!r}"
            )
        found, encoding = encoded(vocab, ids, self.columns)
        if not found.shape[1]:
            names = ", ".join(map(repr, self.columns)) or "none"
            raise DataError(
                f"{self.kind}s: no column tells one {self.kind} from another (columns: {names}; a "
                "word says something where it occurs three times)"
            )
        return found, encoding


def read_side(source: Any, kind: Kind) -> Side:
    """The table, checked: a column `user_id` or `item_id`, each id once."""
    import narwhals as nw

    key, where = f"{kind}_id", f"{kind}s"
    native = _file(Path(source).expanduser(), key) if isinstance(source, str | Path) else source
    try:
        frame = nw.from_native(native, eager_only=True)
        names = frame.columns
    except (TypeError, nw.exceptions.NarwhalsError):
        raise DataError(
            f"{where}: cannot read {type(source).__name__}; give a pandas, Polars (collected) or "
            "Arrow table, or the path of a CSV or Parquet file"
        ) from None
    if key not in names:
        raise DataError(f"{where}: {unknown('column', key, names)}")
    ids = frame[key].to_list()
    if not ids:
        raise DataError(f"{where}: the table has no rows")
    seen: set[Any] = set()
    for x in ids:
        if x in seen:
            raise DataError(f"{where}: {x!r} has two rows; keep one")
        seen.add(x)
    columns = {name: frame[name].to_list() for name in names if name != key}
    titles = columns.pop("title", []) if kind == "item" else []
    named = {x: str(t) for x, t in zip(ids, titles, strict=False) if t is not None and t == t}
    return Side(kind, ids, columns, named)


def _file(path: Path, key: str) -> Any:
    """Ids are read as text, so that 007 keeps its zeros; a number is found by its text too."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    check_file(path)
    try:
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        return csv.read_csv(
            path, convert_options=csv.ConvertOptions(column_types={key: pa.string()})
        )
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]}; correct the file") from None


@dataclass(frozen=True)
class Beside:
    """Interactions with all that is known, how a newcomer's features are read, and names."""

    table: Interactions
    features: tuple[str, ...] = ()  # of `user_features` and `item_features`, those there are
    of_users: Encoding | None = None
    titles: Mapping[Any, str] | None = None


def beside(table: Interactions, users: Any, items: Any) -> Beside:
    """What tables of users and items add. A table of titles alone has no features."""
    found = Beside(table)
    if users is not None:
        read, encoding = read_side(users, "user").encode(table.users)
        known = replace(table, user_features=read)
        found = Beside(known, ("user_features",), encoding)
    if items is not None:
        side = read_side(items, "item")
        found = replace(found, titles=side.titles)
        if side.columns or not side.titles:
            known = replace(found.table, item_features=side.encode(table.items)[0])
            found = replace(found, table=known, features=(*found.features, "item_features"))
    return found


def newcomer(reader: Reader, encoding: Encoding | None, history: Any, features: Any) -> Read:
    """One newcomer's history and, where they are told, features."""
    read = reader.one(history)
    return read if features is None else told(read, encoding, features)


def told(read: Read, encoding: Encoding | None, features: Any) -> Read:
    """The same person, with what else they say of themselves."""
    if encoding is None:
        raise DataError(_NO_FEATURES)
    return read._replace(features=encoding.one(features))


def newcomers(
    reader: Reader, encoding: Encoding | None, histories: Any, features: Any
) -> tuple[list[Hashable], list[Read]]:
    """Many: their `features` are a list, one dict for each of a list of histories."""
    if features is None:
        return reader.many(histories)
    if not isinstance(histories, list) or not isinstance(features, Sequence):
        raise DataError("features of many go with a list of histories: a list of dicts")
    if len(features) != len(histories):
        raise DataError(f"features are {len(features)}, but there are {len(histories)} people")
    both = zip(histories, features, strict=True)
    return [None] * len(histories), [newcomer(reader, encoding, *x) for x in both]
