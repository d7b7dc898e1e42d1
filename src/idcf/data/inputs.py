"""Types of what callers give: tables, histories and features."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, TypeAlias

from idcf.data.interactions import Interactions


class TableLike(Protocol):
    """A dataframe of pandas, Polars (collected) or Arrow."""

    @property
    def columns(self) -> Any:
        """Columns or their names."""


class SparseMatrix(Protocol):
    """A sparse matrix of SciPy, users x items."""

    def tocsr(self) -> Any:
        """Return the matrix row by row."""


# a table in memory, or the path of a file
Table: TypeAlias = TableLike | str | PathLike[str]
# of user_id, item_id and, unless the feedback is implicit, rating; also the path of a folder
InteractionsTable: TypeAlias = Table | SparseMatrix | Interactions
# of one user: {item_id: rating}, ids, (item_id, rating) or (item_id, rating, timestamp)
History: TypeAlias = Mapping[Any, float] | Iterable[Hashable] | TableLike
# of several users: a list of histories, a table with a column user_id, a row for each user
Histories: TypeAlias = Sequence[History] | TableLike | SparseMatrix
# of one user, {name: value}
Features: TypeAlias = Mapping[str, object]
