"""Clicks with weights: a column, repeated rows, or the values of a sparse matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.sparse import csr_array

from idcf.data.columns import DataWarning
from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.errors import ConfigError, DataError

CLICKS = pd.DataFrame(
    {
        "user_id": ["a", "a", "b", "a", "b"],
        "item_id": ["x", "y", "x", "x", "z"],
        "dwell": [1.5, 2.0, 4.0, 3.0, 0.0],
        "timestamp": [5, 6, 7, 4, 8],
    }
)


def weights(table: Interactions) -> dict[tuple[Any, Any], float]:
    """Return the weight of each (user, item) pair."""
    pairs = zip(table.user, table.item, table.row_weights().tolist(), strict=True)
    return {(table.users.ids[u], table.items.ids[i]): w for u, i, w in pairs}


def sources(folder: Path) -> list[Any]:
    """Return the clicks as a dataframe, an Arrow table and files."""
    arrow = pa.Table.from_pandas(CLICKS)
    CLICKS.to_csv(folder / "clicks.csv", index=False)
    parquet.write_table(arrow, folder / "clicks.parquet")
    recbole = CLICKS.rename(
        columns={"user_id": "user_id:token", "item_id": "item_id:token", "dwell": "dwell:float"}
    ).drop(columns="timestamp")
    recbole.to_csv(folder / "clicks.inter", index=False, sep="\t")
    return [CLICKS, arrow, folder / "clicks.csv", folder / "clicks.parquet"]


@pytest.mark.parametrize("kind", range(4))
def test_a_column_of_weights(kind: int, tmp_path: Path) -> None:
    """The latest row of a pair is kept, and rows of weight 0 are dropped."""
    source = sources(tmp_path)[kind]
    with pytest.warns(DataWarning) as caught:
        table = read_interactions(source, weight="dwell")
    assert weights(table) == {("a", "x"): 1.5, ("a", "y"): 2.0, ("b", "x"): 4.0}
    assert table.implicit
    assert (table.rating == 1).all()
    messages = [str(x.message) for x in caught]
    assert any("1 rows of weight 0 dropped" in x for x in messages)
    assert any("duplicates='count', --duplicates count, makes each count" in x for x in messages)


@pytest.mark.filterwarnings("ignore:.*rows of weight 0")
@pytest.mark.parametrize("kind", range(4))
def test_repeated_rows_count(kind: int, tmp_path: Path) -> None:
    source = sources(tmp_path)[kind]
    table = read_interactions(source, duplicates="count")
    expected = {("a", "x"): 2.0, ("a", "y"): 1.0, ("b", "x"): 1.0, ("b", "z"): 1.0}
    assert weights(table) == expected
    assert table.time is not None
    assert sorted(table.time.tolist()) == [5, 6, 7, 8]  # the latest of each pair
    both = read_interactions(source, weight="dwell", duplicates="count")
    assert weights(both) == {("a", "x"): 4.5, ("a", "y"): 2.0, ("b", "x"): 4.0}


def test_values_of_a_sparse_matrix() -> None:
    matrix = csr_array(np.array([[2.0, 0.0, 3.0], [0.0, 5.0, 0.0]]))
    table = read_interactions(matrix, duplicates="count")
    assert weights(table) == {(0, 0): 2.0, (0, 2): 3.0, (1, 1): 5.0}
    assert table.implicit
    assert not read_interactions(matrix).implicit


def test_tables_carry_their_weights(tmp_path: Path) -> None:
    path = tmp_path / "clicks.inter"
    sources(tmp_path)
    with pytest.warns(DataWarning):
        table = read_interactions(path, weight="dwell")
    assert weights(table)["a", "y"] == 2.0
    assert weights(table.where(table.row_weights() > 2)) == {("a", "x"): 3.0, ("b", "x"): 4.0}
    joined = table.weights_raised_to(0).concat(table)
    assert joined.row_weights().tolist() == [1, 1, 1, *table.row_weights()]
    root = table.weights_raised_to(0.5).row_weights()
    np.testing.assert_allclose(root, np.sqrt(table.row_weights()) / np.sqrt([3, 2, 4]).mean())
    assert root.mean() == pytest.approx(1)
    assert table.weights_raised_to(0).weight is None
    assert table.as_implicit().weight is table.weight


@pytest.mark.filterwarnings("ignore:.*usual names")
def test_weights_are_for_clicks() -> None:
    rated = CLICKS.rename(columns={"dwell": "stars"}).assign(amount=2.0)
    with pytest.raises(ConfigError, match=r"weight is for clicks, and the column 'stars' holds"):
        read_interactions(rated, weight="amount")
    with pytest.raises(ConfigError, match=r"duplicates='count' is for clicks, and the table has"):
        read_interactions(rated, duplicates="count")
    with pytest.warns(DataWarning):
        table = read_interactions(rated, weight="amount", implicit=True)
    assert set(weights(table).values()) == {2.0}
    with pytest.raises(ConfigError, match="weight is for clicks; leave it out, or implicit=False"):
        read_interactions(CLICKS, weight="dwell", implicit=False)
    with pytest.raises(ConfigError, match="a sparse matrix has no columns; leave out weight"):
        read_interactions(csr_array(np.eye(2)), weight="dwell")
    with pytest.raises(ConfigError, match="the weights of Interactions are its field weight"):
        read_interactions(table, duplicates="count")
    with pytest.raises(ConfigError, match="duplicates: no value named 'sum'; known: count, last"):
        read_interactions(CLICKS, duplicates="sum")  # type: ignore[arg-type]


def test_bad_weights_are_named() -> None:
    negative = CLICKS.assign(dwell=[1, 2, -3, 4, 5])
    with pytest.raises(DataError, match=r"row 2, column 'dwell': -3.0 is negative"):
        read_interactions(negative, weight="dwell")
    with pytest.raises(DataError, match="'dwel'"):
        read_interactions(CLICKS, weight="dwel")
