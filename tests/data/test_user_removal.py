"""Users are removed from files of results, and the other rows stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import board, id_rows
from pyarrow import parquet

from idcf.data.shard_writer import write_shards
from idcf.data.user_removal import remove_users_from_file, remove_users_from_shards, without_users
from idcf.errors import ConfigError, DataError

TABLE = pa.table(
    {"user_id": ["u1", "u,2", "u3", "u1"], "item_id": ["a", "b", "c", "d"], "score": [1.5, 2, 3, 4]}
)


def test_rows_and_ids_of_the_users_go() -> None:
    table = board(30, 12, 3, 8)
    rest = without_users(table, ["u3", "u20"])
    assert id_rows(rest) == [x for x in id_rows(table) if x[0] not in ("u3", "u20")]
    assert not {"u3", "u20"} & set(rest.users.ids)
    assert (rest.item_counts() > 0).all()
    with pytest.raises(DataError, match="no rows are left"):
        without_users(table, table.users.ids)


def test_csv_and_json_lines_keep_every_other_byte(tmp_path: Path) -> None:
    text = 'item_id,user_id,title\na,u1,x\nb,"u,2","two\nlines"\nc,u3,é\nd,u1,"""q"""\n'
    path = tmp_path / "lists.csv"
    path.write_text(text, encoding="utf-8")
    assert remove_users_from_file(path, ["u1"]) == 2
    expected = 'item_id,user_id,title\nb,"u,2","two\nlines"\nc,u3,é\n'
    assert path.read_text(encoding="utf-8") == expected
    lines = tmp_path / "lists.jsonl"
    lines.write_text('{"user_id": 7, "x": 1.0}\n{"user_id": 8, "x": 1e-3}\n', encoding="utf-8")
    assert remove_users_from_file(lines, ["7"]) == 1
    assert lines.read_text(encoding="utf-8") == '{"user_id": 8, "x": 1e-3}\n'


@pytest.mark.parametrize("ids", [["u1", "u,2", "u3", "u1"], [1, 2, 3, 1]])
def test_parquet(tmp_path: Path, ids: list) -> None:
    path = tmp_path / "lists.parquet"
    table = TABLE.set_column(0, "user_id", pa.array(ids))
    parquet.write_table(table.replace_schema_metadata({"idcf": "a run"}), path)
    assert remove_users_from_file(path, [ids[0]]) == 2
    assert parquet.read_table(path).equals(table.take([1, 2]))
    assert b"idcf" not in (parquet.read_metadata(path).metadata or {})


def test_a_file_without_users_stays(tmp_path: Path) -> None:
    path = tmp_path / "items.csv"
    path.write_text("item_id\na\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no column user_id"):
        remove_users_from_file(path, ["a"])
    assert [x.name for x in tmp_path.iterdir()] == ["items.csv"]
    assert path.read_text(encoding="utf-8") == "item_id\na\n"


def test_shards_with_times_and_integer_ids(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 200
    user, item = np.divmod(rng.permutation(30 * 9)[:n], 9)
    columns = {"user_id": user, "item_id": item, "rating": rng.integers(1, 6, n)}
    columns["timestamp"] = rng.integers(0, 1000, n)
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "t.parquet")
    rest = table.filter(pa.compute.not_equal(table["user_id"], 7))
    parquet.write_table(rest, tmp_path / "rest.parquet")
    write_shards(tmp_path / "t.parquet", tmp_path / "s", block_users=8)
    expected, _ = write_shards(tmp_path / "rest.parquet", tmp_path / "r", block_users=8)
    written = remove_users_from_shards(tmp_path / "s", ["7"])
    written.verify()
    assert written.manifest.shards == expected.manifest.shards
    assert written.manifest.rating_counts == expected.manifest.rating_counts
    with pytest.raises(DataError, match="1 of the 1 users"):
        remove_users_from_shards(tmp_path / "s", [7])
