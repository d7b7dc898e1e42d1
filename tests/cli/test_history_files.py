"""Files of histories: what is read, in which order, and what each bad file is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import write_file
from calls import call, call_with_error, read_histories
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from idcf import DataError, Recommender

HEADER = "user_id,item_id,rating\n"
BAD_FILES = {
    "": "cannot be read",
    HEADER: "has no rows; nothing was written",
    "usr,item_id,rating\na,i1,3\n": "named 'user_id'; did you mean 'usr'? known: item_id",
    "user_id,item_id,rtings\na,i1,3\n": "no column named 'rating'; did you mean 'rtings'",
    f"{HEADER}a,i1,good\n": "cannot be read",
    f"{HEADER}a,i1,\n": "i1",
    f"{HEADER}a,i1,1e9\n": "outside the scale",
    f"{HEADER},i1,3\n": "a row without user_id after user None",
}


@pytest.mark.parametrize("text", BAD_FILES)
@pytest.mark.parametrize("verb", ["embed", "recommend"])
def test_a_bad_file_is_one_line_and_writes_nothing(
    verb: str, text: str, model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    path, out = write_file(tmp_path, "h.csv", text), tmp_path / "out.parquet"
    histories = [str(path)] if verb == "embed" else ["--histories", str(path)]
    arguments = [verb, str(model), *histories, "--out", str(out)]
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert output.startswith("error: ")
    assert BAD_FILES[text] in output
    assert [x.name for x in tmp_path.iterdir()] == ["h.csv"]


def test_a_missing_file_and_a_parquet_file_that_is_none(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    text_file = write_file(tmp_path, "h.parquet", f"{HEADER}a,i1,3\n")
    for path in (tmp_path / "none.csv", tmp_path / "none.parquet", text_file):
        arguments = ["embed", str(model), str(path), "--out", str(tmp_path / "v.parquet")]
        code, output = call_with_error(monkeypatch, capsys, *arguments)
        assert code == 2
        assert f"{path} cannot be read" in output


@pytest.mark.parametrize("verb", ["embed", "recommend"])
def test_missing_histories_are_named_before_the_ending_of_the_output(
    verb: str, model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    path = tmp_path / "none"
    histories = [str(path)] if verb == "embed" else ["--histories", str(path)]
    arguments = [verb, str(model), *histories, "--out", str(tmp_path / "out")]
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert f"{path} cannot be read: there is no file or folder there" in output


def test_an_output_that_cannot_be_written_is_refused_at_once(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    path = write_file(tmp_path, "h.csv", f"{HEADER}a,i1,3\n")
    for out, message in ((tmp_path, "is a folder"), (path / "v.parquet", "cannot be written")):
        arguments = ["embed", str(model), str(path), "--out", str(out)]
        code, output = call_with_error(monkeypatch, capsys, *arguments)
        assert code == 2
        assert message in output


def test_an_output_that_exists_is_replaced_only_on_success(model: Path, tmp_path: Path) -> None:
    out = write_file(tmp_path, "v.parquet", "old")
    bad = write_file(tmp_path, "bad.csv", f"{HEADER}a,i1,3\nb,i1,900\n")
    with pytest.raises(DataError):
        call("embed", str(model), str(bad), "--out", str(out))
    assert out.read_text() == "old"
    good = write_file(tmp_path, "good.csv", f"{HEADER}a,i1,3\n")
    text = call("embed", str(model), str(good), "--out", str(out))
    assert text.startswith("1 users, embedding size 5; 0 users without a known item, 0 unknown")
    assert text.endswith(f"written to {out}\n")
    assert parquet.read_table(out)["user_id"].to_pylist() == ["a"]


def test_unknown_items_count_once_for_each_row(model: Path, tmp_path: Path) -> None:
    path = write_file(tmp_path, "h.csv", f"{HEADER}a,x,3\na,x,4\na,i1,4\nb,y,1\nc,i1,4\n")
    out = tmp_path / "v.parquet"
    report = json.loads(call("embed", str(model), str(path), "--out", str(out), "--json"))
    assert report.pop("seconds") >= 0
    assert report == {
        "n_users": 3,
        "n_users_without_known_items": 1,
        "n_unknown_items": 3,
        "file": str(out),
        "embedding_size": 5,
    }
    rows = parquet.read_table(out).to_pylist()
    assert [x["n_known_items"] for x in rows] == [1, 0, 1]
    assert [x["n_unknown_items"] for x in rows] == [2, 1, 0]
    assert rows[0]["embedding"] == rows[2]["embedding"]
    assert rows[1]["embedding"] is None


def test_the_last_rating_of_an_item_counts(model: Path, tmp_path: Path) -> None:
    path = write_file(tmp_path, "h.csv", f"{HEADER}a,i1,1\na,i1,5\nb,i1,5\n")
    call("embed", str(model), str(path), "--out", str(tmp_path / "v.parquet"))
    first, second = parquet.read_table(tmp_path / "v.parquet")["embedding"].to_pylist()
    assert first == second


@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_the_size_of_a_chunk_does_not_change_the_result(
    chunk: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.data.user_chunks.USERS_PER_CHUNK", chunk)
    rows = "".join(f"{user},i{n},{n}\n" for user in "abcde" for n in (2, 5))
    path = write_file(tmp_path, "h.csv", HEADER + rows)
    out = tmp_path / "r.parquet"
    arguments = ["recommend", str(model), "--histories", str(path), "--out", str(out), "-n", "3"]
    assert "5 users, up to 3 items each; 0 users without" in call(*arguments)
    lists = parquet.read_table(out).to_pylist()
    expected = Recommender.load(model).recommend({"i2": 2.0, "i5": 5.0}, n=3)
    assert [x["user_id"] for x in lists] == [user for user in "abcde" for _ in range(3)]
    assert [x["item_id"] for x in lists] == [x.item_id for x in expected] * 5
    assert [x["rank"] for x in lists] == [1, 2, 3] * 5


def test_implicit_files_need_no_ratings(tmp_path: Path) -> None:
    path = write_file(tmp_path, "h.csv", "item_id,user_id\ni1,a\ni2,a\ni1,b\n")
    expected = [("a", [("i1", 1.0), ("i2", 1.0)]), ("b", [("i1", 1.0)])]
    assert list(read_histories(path, implicit=True)) == expected
    with pytest.raises(DataError, match="no column named 'rating'"):
        list(read_histories(path, implicit=False))


def test_numbers_in_parquet_files_stay_numbers(tmp_path: Path) -> None:
    columns = {"user_id": [2, 2, 10], "item_id": [7, 8, 7], "rating": [1.0, 2.0, 3.0]}
    parquet.write_table(pa.table(columns), tmp_path / "h.parquet")
    expected = [(2, [(7, 1.0), (8, 2.0)]), (10, [(7, 3.0)])]
    assert list(read_histories(tmp_path / "h.parquet", implicit=False)) == expected


@given(st.lists(st.integers(0, 10**20), min_size=1, max_size=6, unique=True), st.booleans())
def test_a_file_is_accepted_if_and_only_if_it_is_sorted(
    tmp_path_factory: pytest.TempPathFactory, users: list[int], as_text: bool
) -> None:
    folder = tmp_path_factory.mktemp("sorted")
    names = [str(x) for x in (sorted(users, key=str) if as_text else users)]
    by_number = sorted(names, key=lambda x: (0, int(x), x) if len(x) <= 18 else (1, 0, x))
    is_sorted = names in (sorted(names), by_number)
    lines = "".join(f"{x},i1\n" for x in names)
    path = write_file(folder, "h.csv", f"user_id,item_id\n{lines}")
    try:
        assert [user for user, _ in read_histories(path, implicit=True)] == names
    except DataError:
        assert not is_sorted
    else:
        assert is_sorted
