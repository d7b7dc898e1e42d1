"""Side tables: features of users or items and item titles, beside the interactions.

A side table is a dataframe (pandas, Polars, Arrow) or the path of a CSV, TSV or Parquet file.
Does not know how features become numbers: that is `features`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from idcf.data.attributes import ItemAttributes
from idcf.data.column_names import resolve_columns
from idcf.data.columns import to_dataframe
from idcf.data.features import FeatureEncoder, fit_feature_encoder
from idcf.data.interactions import Floats, Interactions, Vocab, row_lookup
from idcf.data.readers import read_table
from idcf.errors import DataError, unknown_name_message
from idcf.files import expand_user

EntityKind = Literal["user", "item"]


@dataclass(frozen=True)
class SideTable:
    """Feature columns of users or items, and titles of items; a title is not a feature."""

    kind: EntityKind  # whether the rows are users or items
    ids: Sequence[Any]  # external ids, one per row
    columns: Mapping[str, Sequence[Any]]  # features by name, in the order of `ids`
    titles: Mapping[Any, str]  # by item id

    def encode(self, vocab: Vocab) -> tuple[Floats, FeatureEncoder]:
        """Features [len(vocab), F], 0 for ids that are not in this table; and their encoder. Raises
        DataError if no id is in the vocabulary, or no column distinguishes its ids."""
        self.require_known(vocab)
        row_by_id = row_lookup(vocab)
        ids = [vocab.ids[row_by_id[x]] if x in row_by_id else None for x in self.ids]
        features, encoder = fit_feature_encoder(vocab, ids, self.columns)
        if not features.shape[1]:
            names = ", ".join(map(repr, self.columns)) or "none"
            raise DataError(
                f"{self.kind}s: no column tells one {self.kind} from another (columns: {names}; "
                "words that occur fewer than three times are ignored)"
            )
        return features, encoder

    def require_known(self, vocab: Vocab) -> None:
        """Raise DataError if no id is in the vocabulary."""
        row_by_id = row_lookup(vocab)
        if not any(x in row_by_id for x in self.ids):
            raise DataError(
                f"{self.kind}s: none of the {len(self.ids):,} ids is among the interactions, where "
                f"they look like {vocab.ids[0]!r}; these look like {self.ids[0]!r}"
            )


def read_side_table(
    source: Any, kind: EntityKind, columns: Mapping[str, str] | None = None
) -> SideTable:
    """Read a side table with a column of ids (see `resolve_columns`) and, of items, perhaps
    `title`. Raises DataError if it cannot be read, has no id column or no rows, or an id has two
    rows."""
    role, label, table = f"{kind}_id", f"{kind}s", source
    if isinstance(source, str | Path):
        table = read_table(expand_user(source), list((columns or {}).values()))
        label = f"{label}, {source}"
        for name, count in Counter(table.column_names).items():
            if count > 1:
                raise DataError(f"{label}: two columns are named {name!r}; rename one of them")
    frame = to_dataframe(
        table,
        f"{label}: cannot read {type(source).__name__}; give a pandas, Polars (collected) or "
        "Arrow table with distinct column names, or the path of a CSV or Parquet file",
    )
    resolved = resolve_columns(frame.columns, label, columns, [role])
    if role not in resolved:
        raise DataError(f"{label}: {unknown_name_message('column', role, frame.columns)}")
    id_column = resolved[role]
    ids = frame[id_column].to_list()
    if not ids:
        raise DataError(f"{label}: the table has no rows")
    _check_ids(ids, f"{label}, column {id_column!r}")
    for x, count in Counter(ids).items():
        if count > 1:
            raise DataError(f"{label}: {x!r} has two rows; keep one")
    features = {name: frame[name].to_list() for name in frame.columns if name != id_column}
    titles = features.pop("title", []) if kind == "item" else []
    for row, x in enumerate(titles):
        if isinstance(x, bytes | list | tuple | dict):
            problem = f"{x!r:.80} is of type {type(x).__name__}; a title must be text"
            raise DataError(f"{label}, row {row}, column 'title': {problem}")
    # a missing title is None or NaN, and NaN is not equal to itself
    title_by_id = {x: str(t) for x, t in zip(ids, titles, strict=False) if t is not None and t == t}
    return SideTable(kind, ids, features, title_by_id)


def _check_ids(ids: Sequence[Any], label: str) -> None:
    """Raise DataError for the first id that is missing or can be no id, such as a list."""
    for row, x in enumerate(ids):
        is_missing = type(x).__name__ in ("NoneType", "NAType", "NaTType")
        if is_missing or (isinstance(x, float) and x != x):
            raise DataError(f"{label}, row {row}: the id is missing; fill it in or drop the row")
        if not isinstance(x, Hashable):
            problem = f"{x!r:.80} is of type {type(x).__name__}"
            raise DataError(f"{label}, row {row}: {problem}; ids must be strings or integers")


@dataclass(frozen=True)
class EnrichedInteractions:
    """Interactions with the features and titles of side tables."""

    interactions: Interactions  # with the encoded features
    feature_fields: tuple[str, ...] = ()  # "user_features", "item_features": those that are set
    user_encoder: FeatureEncoder | None = None  # for the features of new users
    titles: Mapping[Any, str] | None = None  # by item id
    attributes: ItemAttributes | None = None  # by which lists can be restricted


def add_side_tables(
    table: Interactions,
    users: Any,
    items: Any,
    *,
    attributes: Any = None,
    columns: Mapping[str, str] | None = None,
    reads_item_features: bool = True,
) -> EnrichedInteractions:
    """Add side tables (see `read_side_table`) or None; one of titles only adds no features.

    Unless the model `reads_item_features`, columns of `items` are attributes only; those of
    `attributes`, a table or {column: {item_id: value}}, always are. `columns` are the names of the
    columns of ids, where a table has them.
    """
    features: dict[str, Any] = {}
    widths: dict[str, Any] = {}
    encoder, titles, item_attributes = None, None, None
    item_attributes = _read_attributes(table.items, attributes, columns)
    if users is not None:
        user_table = read_side_table(users, "user", columns)
        features["user_features"], encoder = user_table.encode(table.users)
        widths["user_feature_widths"] = encoder.widths
    if items is not None:
        item_table = read_side_table(items, "item", columns)
        item_table.require_known(table.items)
        titles = item_table.titles
        if item_table.columns or not titles:
            if reads_item_features:
                features["item_features"], item_encoder = item_table.encode(table.items)
                widths["item_feature_widths"] = item_encoder.widths
            added = ItemAttributes.from_table(table.items, item_table.ids, item_table.columns)
            item_attributes = item_attributes.updated(added) if item_attributes else added
    table = replace(table, **features, **widths) if features else table
    return EnrichedInteractions(table, tuple(features), encoder, titles, item_attributes)


def _read_attributes(
    items: Vocab, source: Any, columns: Mapping[str, str] | None
) -> ItemAttributes | None:
    """Read a table of attributes, or {column: {item_id: value}}; None: there are none."""
    if source is None or (isinstance(source, Mapping) and not source):
        return None
    if not isinstance(source, Mapping):
        table = read_side_table(source, "item", columns)
        table.require_known(items)
        return ItemAttributes.from_table(items, table.ids, table.columns)
    ids = list(dict.fromkeys(x for cells in source.values() for x in cells))
    values = {name: [cells.get(x) for x in ids] for name, cells in source.items()}
    return ItemAttributes.from_table(items, ids, values)
