"""Files of every format read the same, and each kind of bad file has one clear error."""

from __future__ import annotations

import gzip
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from builders import id_rows, write_file
from pyarrow import parquet
from scipy.sparse import coo_array, csr_array, csr_matrix

from idcf import Recommender
from idcf.data.columns import DataWarning
from idcf.data.readers import read_interactions, read_table, read_train_test
from idcf.errors import DataError

COLUMNS: dict[str, list[Any]] = {
    "user_id": ["b", "a", "b"],
    "item_id": [20, 10, 10],
    "rating": [4.0, 3.0, 5.0],
    "timestamp": [7, 8, 9],
}

CSV = "user_id,item_id,rating,timestamp\nb,20,4,7\na,10,3,8\nb,10,5,9\n"


EXPECTED = [("b", 20, 4.0, 7), ("a", 10, 3.0, 8), ("b", 10, 5.0, 9)]


def as_csv(folder: Path) -> Path:
    return write_file(folder, "x.csv", CSV)


def as_gzip(folder: Path) -> Path:
    (folder / "x.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    return folder / "x.csv.gz"


def as_tsv(folder: Path) -> Path:
    return write_file(folder, "x.tsv", CSV.replace(",", "\t"))


def as_windows(folder: Path) -> Path:
    return write_file(folder, "x.csv", "\ufeff" + CSV.replace("\n", "\r\n"))


def as_quoted(folder: Path) -> Path:
    head = '"user_id",text,item_id,rating,timestamp\n'
    body = '"b","two\nlines",20,4,7\n\na,"a, b",10,3,8\nb,,10,5,9\n'
    return write_file(folder, "x.csv", head + body)


def as_parquet(folder: Path) -> Path:
    parquet.write_table(pa.table(COLUMNS), folder / "x.parquet")
    return folder / "x.parquet"


def as_atomic(folder: Path) -> Path:
    text = "user_id:token\titem_id:token\trating:float\ttimestamp:float\tother:token_seq\n"
    return write_file(
        folder, "x.inter", text + "b\t20\t4\t7.0\tp q\na\t10\t3\t8\t\nb\t10\t5\t9\tr\n"
    )


FILES = [as_csv, as_gzip, as_tsv, as_windows, as_quoted, as_parquet, as_atomic]


@pytest.mark.parametrize("make", FILES)
def test_every_kind_of_file_reads_the_same(make: Any, tmp_path: Path) -> None:
    table = read_interactions(make(tmp_path))
    assert id_rows(table) == EXPECTED
    assert not table.implicit
    assert table.users.ids == ("a", "b")
    assert id_rows(read_interactions(str(make(tmp_path)))) == EXPECTED


def test_no_rating_column_is_implicit_feedback(tmp_path: Path) -> None:
    table = read_interactions(write_file(tmp_path, "x.csv", "user_id,item_id\na,1\nb,2\n"))
    assert table.implicit
    assert id_rows(table) == [("a", 1, 1.0, None), ("b", 2, 1.0, None)]
    with pytest.raises(DataError, match="no column named 'rating'"):
        read_interactions(tmp_path / "x.csv", implicit=False)


def test_text_ids_are_integers_only_where_all_are_written_so(tmp_path: Path) -> None:
    text = "user_id,item_id\n007,1\n8,10\n9,-2\n"
    table = read_interactions(write_file(tmp_path, "x.csv", text))
    assert table.users.ids == ("007", "8", "9")
    assert table.items.ids == (-2, 1, 10)


def test_the_last_of_repeated_pairs_is_kept(tmp_path: Path) -> None:
    path = write_file(tmp_path, "x.csv", "user_id,item_id,rating\na,1,1\nb,1,2\na,1,3\na,1,4\n")
    with pytest.warns(DataWarning, match=r"x.csv: 2 rows repeat a \(user, item\) pair"):
        table = read_interactions(path)
    assert id_rows(table) == [("b", 1, 2.0, None), ("a", 1, 4.0, None)]


def test_of_repeated_pairs_the_latest_remains(tmp_path: Path) -> None:
    text = "user_id,item_id,rating,timestamp\n1,5,4,30\n1,5,1,10\n2,5,1,7\n2,5,3,7\n"
    with pytest.warns(DataWarning, match="2 rows repeat .* only the row with the latest timestamp"):
        table = read_interactions(write_file(tmp_path, "x.csv", text))
    assert id_rows(table) == [(1, 5, 4.0, 30), (2, 5, 3.0, 7)]


BAD_CSV = {
    "user_id,item_id\n": "no rows; give at least one interaction",
    "user_i,item_id,rating\na,1,2\n": "no column named 'user_id'; did you mean 'user_i'",
    "user_id;item_id;rating\na;1;2\n": "line 1: .*looks separated by ';'",
    "user_id,item_id,rating\na,1,2\n\nb,2,five\n": "line 4, column 'rating': 'five' is not a",
    "user_id,item_id,rating\na,1,2\nb,2,\n": "line 3, column 'rating': the value is missing",
    "user_id,item_id,rating\na,1,nan\n": "line 2, column 'rating': nan is not a finite number",
    "user_id,item_id,rating\na,1,1e99\n": r"line 2, column 'rating': 1e\+99 is not a finite",
    "user_id,item_id,rating\na,1,2\n,2,3\n": "line 3, column 'user_id': the value is missing",
    "user_id,item_id,rating\na,1,2\nb,2\n": "line 3: expected 3 fields .* found 2",
    "user_id,item_id,rating\na,1,2\nb,2,3,4\n": "line 3: expected 3 fields .* found 4",
    "user_id,item_id,timestamp\na,1,soon\n": "line 2, column 'timestamp': 'soon' is neither",
    "user_id,item_id,user_id\na,1,b\n": "two columns are named 'user_id'",
    "": "the file is empty",
    " \n\n": "the file is empty",
}


@pytest.mark.parametrize("text", BAD_CSV)
def test_bad_csv_gets_one_clear_error(text: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, "x.csv", text)
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*" + BAD_CSV[text]):
        read_interactions(path)


def test_a_missing_file_and_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file at .*nothing.csv"):
        read_interactions(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"x.doc: the format cannot be told .*\.csv"):
        read_interactions(write_file(tmp_path, "x.doc", "a"))
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        read_interactions(tmp_path / "folder.csv")


def test_truncated_gzip(tmp_path: Path) -> None:
    packed = gzip.compress(CSV.encode() * 100)
    for name in ("x.csv.gz", "x.data"):
        (tmp_path / name).write_bytes(packed[: len(packed) // 2])
        with pytest.raises(DataError, match=rf"{name}: damaged gzip .*again"):
            read_interactions(tmp_path / name)


def test_damaged_parquet(tmp_path: Path) -> None:
    path = as_parquet(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"x.parquet: not a whole Parquet file"):
        read_interactions(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        read_interactions(path)


def test_text_of_another_encoding_names_the_line(tmp_path: Path) -> None:
    path = write_file(tmp_path, "x.csv", "user_id,item_id\na,1\né,2\n", "latin-1")
    with pytest.raises(DataError, match=r"line 3: byte 0xe9 is not utf-8"):
        read_interactions(path)


def test_train_and_test_file_share_a_vocabulary(tmp_path: Path) -> None:
    train = write_file(tmp_path, "a.csv", "user_id,item_id,rating\na,1,2\nb,1,3\na,2,4\n")
    test = write_file(tmp_path, "b.csv", "user_id,item_id,rating\nc,3,2\na,2,5\n")
    with pytest.warns(DataWarning, match="1 .* pairs are in both train and test"):
        train_table, test_table = read_train_test(train, test)
    assert train_table.users is test_table.users
    assert train_table.users.ids == ("a", "b", "c")
    assert train_table.items.ids == (1, 2, 3)
    assert [r[:3] for r in id_rows(train_table)] == [("a", 1, 2.0), ("b", 1, 3.0)]
    assert [r[:3] for r in id_rows(test_table)] == [("c", 3, 2.0), ("a", 2, 5.0)]


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.csv.gz"])
def test_read_table_keeps_ids_as_text(name: str, tmp_path: Path) -> None:
    text = 'user_id,item_id,age,note\n007,1,30,none\n8,2,,"1\n2"\n'
    text = text.replace(",", "\t") if "tsv" in name else text
    data = text.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read_table(path).to_pydict() == {
        "user_id": ["007", "8"],
        "item_id": ["1", "2"],
        "age": [30, None],
        "note": ["none", "1\n2"],
    }


def test_read_table_keeps_the_types_of_parquet(tmp_path: Path) -> None:
    assert read_table(as_parquet(tmp_path)).to_pydict() == COLUMNS


def test_read_table_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file at .*nothing.csv"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(DataError, match=r"line 3: expected 2 fields .* found 3"):
        read_table(write_file(tmp_path, "x.csv", "item_id,title\n1,A\n2,B,C\n"))
    with pytest.raises(DataError, match="not a whole Parquet file"):
        read_table(write_file(tmp_path, "x.parquet", "text"))


@pytest.mark.parametrize("suffix", ["csv", "inter", "parquet"])
def test_all_bad_rows_are_counted_and_the_first_ten_shown(suffix: str, tmp_path: Path) -> None:
    n, path = 30, tmp_path / f"t.{suffix}"
    ratings = [("good" if k % 2 else "5") for k in range(n)]
    times = [("soon" if k == 4 else "2020-01-01" if suffix != "inter" else "3") for k in range(n)]
    users, items = [f"u{k}" for k in range(n)], [f"i{k}" for k in range(n)]
    columns = {"user_id": users, "item_id": items, "rating": ratings, "timestamp": times}
    if suffix == "parquet":
        parquet.write_table(pa.table(columns), path)
    else:
        kinds = ["token", "token", "float", "float"] if suffix == "inter" else []
        names = [f"{x}:{kind}" for x, kind in zip(columns, kinds, strict=False)] or list(columns)
        lines = [names, *zip(*columns.values(), strict=True)]
        path.write_text("\n".join(("\t" if kinds else ",").join(x) for x in lines))
    with pytest.raises(DataError) as error:
        read_interactions(path)
    text, label, first = str(error.value), *(("row", 0) if suffix == "parquet" else ("line", 2))
    assert f"{label} {first + 1}, column 'rating" in text
    assert "'good' is not a number; correct the row or drop it; 16 rows cannot be used (" in text
    shown = sorted([*range(1, n, 2), 4])[:10]
    labels = ", ".join(f"{label} {first + k}" for k in shown)
    assert f"({labels}, ...; 15 whose rating is not a finite number, 1 whose timestamp" in text


def test_gaps_and_bad_values_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user_id,item_id,rating\na,1,x\n,2,3\nb,,3\nc,1,inf\nd,1,4\n")
    with pytest.raises(DataError) as error:
        read_interactions(path)
    counts = "1 without user_id, 1 without item_id"
    assert (
        f"line 3, column 'user_id': the value is missing in 2 rows (line 3, line 4; {counts})"
        in (str(error.value))
    )
    other = "2 other rows cannot be used (line 2, line 5; 2 whose rating is not a finite number)"
    assert str(error.value).endswith(other)
    with (
        pytest.warns(UserWarning, match="2 rows dropped"),
        pytest.raises(DataError, match=r"line 2, .*; 2 rows cannot be used \(line 2, line 5; 2"),
    ):
        read_interactions(path, missing="drop")


def test_a_warning_points_at_the_line_that_called_the_library(tmp_path: Path) -> None:
    path = write_file(tmp_path, "t.csv", "userId,movieId,stars\na,1,2\na,1,3\n")
    table = pa.table({"user_id": ["a", None], "item_id": ["i", "j"]})
    recommender = Recommender.from_factors([[2], [1]], item_ids="ab", implicit=True)
    for call in (
        lambda: read_interactions(path),
        lambda: read_interactions(table, missing="drop"),
        lambda: Recommender("popularity", key_threshold=1).fit(str(path)),
        lambda: recommender.recommend(["unknown"]),
        lambda: recommender.embed(["unknown"]),
    ):
        with pytest.warns(DataWarning) as caught, suppress(DataError):
            call()
        assert {x.filename for x in caught} == {__file__}


def test_a_sparse_matrix_is_a_table_and_a_batch_of_histories() -> None:
    rng = np.random.default_rng(0)
    dense = rng.integers(0, 6, (30, 12)) * (rng.random((30, 12)) < 0.7)
    dense[:, 5] = 0  # nobody has item 5
    users, items = dense.nonzero()
    columns = {"user_id": users, "item_id": items, "rating": dense[users, items]}
    expected = read_interactions(pa.table(columns))
    for matrix in (csr_array(dense), coo_array(dense), csr_matrix(dense.astype(np.int8))):
        table = read_interactions(matrix)
        assert (table.users, table.items, table.implicit) == (
            expected.users, expected.items, False
        )  # fmt: skip
        for name in ("user", "item", "rating"):
            np.testing.assert_array_equal(getattr(table, name), getattr(expected, name))
    clicks = read_interactions(csr_array(dense), implicit=True)
    assert clicks.implicit
    assert set(clicks.rating) == {1.0}
    with pytest.raises(DataError, match="sparse matrix: no rows"):
        read_interactions(csr_array((3, 3)))
    recommender = Recommender("als", device="cpu", embedding_size=2, reg=5.0).fit(csr_array(dense))
    few = np.zeros((3, 12))
    few[0, [1, 2]], few[2, 5] = (5, 1), 4
    with pytest.warns(DataWarning, match="no item of user 2 is known"):
        lists = recommender.recommend(csr_array(few), n=3)
    assert lists[0] == recommender.recommend({1: 5.0, 2: 1.0}, n=3)
    assert lists[1] == recommender.recommend({}, n=3)
    assert recommender.embed(csr_array(few[:2])).shape[0] == 2


@pytest.mark.parametrize("suffix", ["csv", "parquet", "pandas", "polars"])
def test_missing_ratings_are_clicks_where_ratings_are_left_aside(
    suffix: str, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"user_id": [1, 1, 2], "item_id": [7, 8, 7], "rating": [4.0, None, None]})
    source: Any = tmp_path / f"t.{suffix}"
    if suffix == "csv":
        frame.to_csv(source, index=False)
    elif suffix == "parquet":
        frame.to_parquet(source)
    else:
        source = frame if suffix == "pandas" else pl.from_pandas(frame)
    table = read_interactions(source, implicit=True)
    assert (len(table), table.implicit, table.weight) == (3, True, None)
    with pytest.raises(DataError, match="the value is missing"):
        read_interactions(source)
