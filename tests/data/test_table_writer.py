"""Tables as Parquet, CSV and JSON lines: the ending decides, and every value comes back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from idcf.data.table_writer import check_table_ending, open_table
from idcf.errors import ConfigError

VECTORS = pa.FixedSizeListArray.from_arrays(
    pa.array([0.1, 0.25, -3e-9, 1e9, 0.0, 0.0], pa.float32()),
    2,
    mask=pa.array([False, False, True]),
)
TABLE = pa.table(
    {
        "user_id": ["a", 'b, "c"\n', "é"],
        "embedding": VECTORS,
        "score": pa.array([0.1, None, 2.5], pa.float32()),
        "rank": pa.array([1, 2, 3], pa.int32()),
    }
)


def write(path: Path) -> Path:
    """Write the table in two parts."""
    with open_table(path, TABLE.schema) as writer:
        writer.write_table(TABLE.slice(0, 2))
        writer.write_table(TABLE.slice(2))
    return path


def test_csv_has_a_column_for_each_place_of_a_vector(tmp_path: Path) -> None:
    frame = pd.read_csv(write(tmp_path / "t.csv"))
    assert list(frame) == ["user_id", "embedding_0", "embedding_1", "score", "rank"]
    assert frame["user_id"].to_list() == TABLE["user_id"].to_pylist()
    values = frame[["embedding_0", "embedding_1"]].to_numpy(np.float32)
    expected = [[0.1, 0.25], [-3e-9, 1e9], [np.nan, np.nan]]
    np.testing.assert_array_equal(values, np.array(expected, np.float32))


def test_json_lines_have_an_object_per_row_and_short_numbers(tmp_path: Path) -> None:
    lines = write(tmp_path / "t.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert lines[0] == '{"user_id": "a", "embedding": [0.1, 0.25], "score": 0.1, "rank": 1}'
    assert rows[1]["embedding"] == [-3e-9, 1e9]
    assert (rows[1]["user_id"], rows[1]["score"]) == ('b, "c"\n', None)
    assert rows[2] == {"user_id": "é", "embedding": None, "score": 2.5, "rank": 3}


def test_parquet_is_the_table_itself(tmp_path: Path) -> None:
    assert parquet.read_table(write(tmp_path / "t.parquet")).equals(TABLE)


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    for ending in (".csv", ".jsonl", ".parquet"):
        with pytest.raises(ZeroDivisionError), open_table(tmp_path / f"t{ending}", TABLE.schema):
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["t.txt", "t", "t.csv.gz", ".csv"])
def test_other_endings_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"name the file .parquet, .csv or .jsonl"):
        check_table_ending(tmp_path / name)
