"""The file formats of the public datasets, on small files."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from builders import id_rows, write_file
from hypothesis import given
from hypothesis import strategies as st

from idcf.data.datasets import formats
from idcf.data.readers import read_interactions
from idcf.errors import ConfigError, DataError

BAD_RECBOLE = {
    "user_id\titem_id:token\na\t1\n": "line 1: no type named ''.*'user_id:token'",
    "user_id:tokens\titem_id:token\na\t1\n": "no type named 'tokens'; did you mean 'token'",
    "user_id:token,item_id:token\na,1\n": "line 1: expected 2 .* looks separated by ','",
    "user_id:token\titem_id:token\na\t1\nb\n": "line 3: expected 2 fields .* found 1",
    "user_id:token\titem_id:token\trating:float\na\t1\tx\n": "line 2, column 'rating': 'x' is not",
    "user_id:token\titem_id:token\n": "a header but no rows",
}


@pytest.mark.parametrize("text", BAD_RECBOLE)
def test_bad_recbole_files(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=BAD_RECBOLE[text]):
        read_interactions(write_file(tmp_path, "x.inter", text))


def test_movielens_formats(tmp_path: Path) -> None:
    expected = [(1, 20, 4.0, 7), (2, 10, 3.0, 8)]
    tab = write_file(tmp_path, "u.data", "1\t20\t4\t7\n2\t10\t3\t8\n")
    dat = write_file(tmp_path, "ratings.dat", "1::20::4::7\n2::10::3::8\n")
    assert id_rows(read_interactions(tab)) == id_rows(read_interactions(dat)) == expected
    packed = tmp_path / "ratings.csv.gz"
    packed.write_bytes(gzip.compress(b"user_id,item_id,rating\n1,20,4\n2,10,3\n"))
    without_time = [(*r[:3], None) for r in expected]
    assert (
        id_rows(formats.read_movielens(packed))
        == id_rows(read_interactions(packed))
        == without_time
    )
    assert (
        id_rows(formats.read_movielens(write_file(tmp_path, "u1.base", "1\t20\t4\n2\t10\t3\n")))
        == without_time
    )


BAD_TAB = {
    "1,20,4,7\n": "line 1: expected 4 fields .* found 1; it looks separated by ','",
    "1\t2\t3\t4\n\n1\t5\n": "line 3: expected 4 fields",
    "1\t2\t3\t4\nx\t5\t3\t4\n": "line 2, column 'user_id': 'x' is not an integer id",
    "1\t2\t3\t4\n1\t5\tnan\t4\n": "line 2, column 'rating': nan is not a finite",
    "1\t2\tthree\t4\n": "line 1, column 'rating': 'three' is not a number",
}


@pytest.mark.parametrize("text", BAD_TAB)
def test_bad_movielens_files(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="u.data, " + BAD_TAB[text]):
        formats.read_movielens(write_file(tmp_path, "u.data", text))


def test_pairs_and_adjacency_lines(tmp_path: Path) -> None:
    table = formats.read_user_item_pairs(write_file(tmp_path, "Beauty.txt", "1 5\n1 3\n2 5\n"))
    assert table.implicit
    assert [r[:2] for r in id_rows(table)] == [(1, 5), (1, 3), (2, 5)]
    table = formats.read_adjacency(write_file(tmp_path, "train.txt", "0 5 3\n7 \n\n2 5\n"))
    assert [r[:2] for r in id_rows(table)] == [(0, 5), (0, 3), (2, 5)]
    assert table.users.ids == (0, 2, 7)


def test_bad_pairs_and_adjacency_lines(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2: expected 2 fields separated by white space"):
        formats.read_user_item_pairs(write_file(tmp_path, "x.txt", "1 5\n1 5 6\n"))
    with pytest.raises(DataError, match=r"line 1: .* found 1; it looks separated by ','"):
        formats.read_user_item_pairs(write_file(tmp_path, "x.txt", "1,5\n"))
    with pytest.raises(DataError, match=r"line 3, column 'item_id': 'six' is not an integer id"):
        formats.read_adjacency(write_file(tmp_path, "x.txt", "0 5 3\n1\n2 5 six\n"))
    with pytest.raises(DataError, match=r"line 2, column 'user_id': '1,2' is not an integer id"):
        formats.read_adjacency(write_file(tmp_path, "x.txt", "0 5 3\n1,2\n"))
    with pytest.raises(DataError, match=r"no rows; give at least one"):
        formats.read_adjacency(write_file(tmp_path, "x.txt", "0\n1\n"))


def test_douban_is_transposed_and_keeps_users_without_ratings(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rating = np.array([[5, 0, 3], [0, 0, 0]], float)  # 2 users x 3 items
    path = tmp_path / "x.mat"
    with h5py.File(path, "w") as file:
        file["M"], file["Otraining"] = rating.T, (rating == 5).T.astype(float)
        file["Otest"] = (rating == 3).T.astype(float)
    train, test = formats.read_douban(path)
    assert id_rows(train) == [(0, 0, 5.0, None)]
    assert id_rows(test) == [(0, 2, 3.0, None)]
    assert train.users is test.users
    assert len(train.users) == 2
    assert len(train.items) == 3
    with h5py.File(path, "w") as file:
        file["M"] = rating
    with pytest.raises(DataError, match="not Monti's HDF5 file"):
        formats.read_douban(path)
    with pytest.raises(DataError, match="not Monti's HDF5 file"):
        formats.read_douban(write_file(tmp_path, "y.mat", "text"))


def test_the_douban_friend_graph(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path, links = tmp_path / "x.mat", np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], float)
    with h5py.File(path, "w") as file:
        file["W_users"] = links.T
    assert formats.read_douban_friends(path).tolist() == links.tolist()
    with h5py.File(path, "w") as file:
        file["M"] = links
    assert formats.read_douban_friends(path) is None


def test_without_h5py_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install 'idcf\[hdf5\]'"):
        formats.read_douban(tmp_path / "x.mat")


def test_side_tables_and_titles(tmp_path: Path) -> None:
    flags = "|0" * 19
    text = f"1|Café (1995)|01-Jan-1995||http://x{flags}\n2|B: A (1990)|||{flags}\n"
    assert formats.read_titles(write_file(tmp_path, "u.item", text, "latin-1"))[1] == "Café (1995)"
    movies = write_file(tmp_path, "movies.dat", "1::Été (1999)::Drama|Comedy\n", "latin-1")
    assert formats.read_titles(movies) == {1: "Été (1999)"}
    head = "item_id:token\tmovie_title:token_seq\trelease_year:token\n"
    recbole = write_file(tmp_path, "x.item", head + "1\tToy Story\t1995\n2\tunknown\t\n")
    assert formats.read_titles(recbole) == {1: "Toy Story (1995)", 2: "unknown"}
    users = formats.read_side_columns(write_file(tmp_path, "u.user", "1|24|M|technician|85711\n"))
    assert users["occupation"] == ["technician"]
    with pytest.raises(DataError, match="not a side table"):
        formats.read_side_columns(write_file(tmp_path, "x.txt", "1"))


def test_raw_formats_need_neither_arrow_nor_narwhals(tmp_path: Path) -> None:
    write_file(tmp_path, "u.data", "1\t20\t4\t7\n")
    text = "user_id:token\titem_id:token\na\t1\nb\t1\na\t2\n"
    write_file(tmp_path, "x.inter", text)
    code = (
        "import sys; from pathlib import Path\n"
        "for name in ('pyarrow', 'narwhals', 'pandas', 'polars'): sys.modules[name] = None\n"
        "import idcf.data.datasets.catalog\n"
        "from idcf.data.readers import read_interactions\n"
        "for name in sys.argv[1:]: print(len(read_interactions(name)))\n"
    )
    files = [str(tmp_path / "u.data"), str(tmp_path / "x.inter")]
    result = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True)
    assert result.stdout.split() == ["1", "3"], result.stderr


INTEGER_ROWS = st.lists(
    st.tuples(
        st.integers(-50, 50), st.integers(0, 10**17), st.integers(1, 10), st.integers(0, 9**9)
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row[:2],
)


@given(INTEGER_ROWS, st.sampled_from(["u.data", "ratings.dat", "ratings.csv"]), st.data())
def test_every_row_of_a_movielens_file_is_read(
    rows: list[tuple[int, ...]], name: str, data: st.DataObject
) -> None:
    """Blank lines anywhere, any end of the file, ratings in halves."""
    delimiter = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}[name]
    lines = [delimiter.join(map(str, (u, i, r / 2, t))) for u, i, r, t in rows]
    if name == "ratings.csv":
        lines.insert(0, "user_id,item_id,rating,timestamp")
    at = data.draw(st.integers(0, len(lines)))
    text = "\n".join([*lines[:at], " ", "", *lines[at:]]) + data.draw(st.sampled_from(["", "\n"]))
    with TemporaryDirectory() as folder:
        table = formats.read_movielens(write_file(Path(folder), name, text))
    assert id_rows(table) == [(u, i, r / 2, t) for u, i, r, t in rows]
    assert table.users.ids == tuple(sorted({r[0] for r in rows}))


@given(st.dictionaries(st.integers(0, 30), st.sets(st.integers(0, 30)), min_size=1, max_size=8))
def test_adjacency_lines_and_pairs_hold_the_same(items_by_user: dict[int, set[int]]) -> None:
    pairs = [(u, i) for u, items in items_by_user.items() for i in sorted(items)]
    adjacency = [" ".join(map(str, (u, *sorted(x)))) for u, x in items_by_user.items()]
    with TemporaryDirectory() as folder:
        lines = write_file(Path(folder), "train.txt", "\n".join(adjacency) + "\n")
        if not pairs:
            with pytest.raises(DataError, match="no rows"):
                formats.read_adjacency(lines)
            return
        table = formats.read_adjacency(lines)
        text = "".join(f"{u} {i}\n" for u, i in pairs)
        as_pairs = formats.read_user_item_pairs(write_file(Path(folder), "x.txt", text))
    assert id_rows(table) == id_rows(as_pairs) == [(u, i, 1.0, None) for u, i in pairs]
    assert table.users.ids == tuple(sorted(items_by_user)), "users without items are kept"


@pytest.mark.parametrize("text", ["user_id,item_id\n", "\n\n", ""])
def test_a_file_without_rows_is_rejected(text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x.csv.*(no rows|empty)"):
        formats.read_movielens(write_file(tmp_path, "x.csv", text))


def test_the_line_of_an_error_counts_blank_lines(tmp_path: Path) -> None:
    text = "\n1\t2\t3\t4\n\n\n1\t5\tx\t4\n"
    with pytest.raises(DataError, match=r"u.data, line 5, column 'rating': 'x'"):
        formats.read_movielens(write_file(tmp_path, "u.data", text))
    with pytest.raises(DataError, match="line 4, column 'item_id': 'x' is not an integer"):
        formats.read_adjacency(write_file(tmp_path, "a.txt", "\n0 1 2\n\n3 4 x 5\n"))


def test_wrong_widths_name_the_delimiter_that_was_probably_meant(tmp_path: Path) -> None:
    for text, hint in {"1;2;3;4": "';'", "1|2|3|4": "'|'", "1::2::3::4": "'::'"}.items():
        with pytest.raises(DataError) as error:
            formats.read_movielens(write_file(tmp_path, "u.data", text))
        assert f"found 1; it looks separated by {hint}: correct the line {text!r}" in str(
            error.value
        )
    with pytest.raises(DataError) as error:
        formats.read_movielens(write_file(tmp_path, "u.data", "1\t2\t3\t4\t5"))
    assert "expected 4 fields separated by '\\t', found 5: correct" in str(error.value)
    long_line = "1" * 500
    with pytest.raises(DataError) as error:
        formats.read_user_item_pairs(write_file(tmp_path, "x.txt", long_line))
    assert long_line not in str(error.value), "a long line is cut short"
    assert "separated by white space, found 1: correct" in str(error.value)


def test_recbole_columns_may_have_other_names_and_a_missing_role(tmp_path: Path) -> None:
    text = "who:token\twhat:token\tpoints:float\tnote:token_seq\na\tx\t2.5\tso so\nb\ty\t4\t\n"
    path = write_file(tmp_path, "x.inter", text)
    names = {"user_id": "who", "item_id": "what", "rating": "points"}
    table = read_interactions(path, columns=names)
    assert id_rows(table) == [("a", "x", 2.5, None), ("b", "y", 4.0, None)]
    del names["rating"]
    assert read_interactions(path, columns=names).implicit
    with pytest.raises(DataError, match=r"no column named 'rating'"):
        read_interactions(path, columns=names, implicit=False)
    with pytest.raises(
        ConfigError, match=r"columns: no role named 'ratings'; did you mean 'rating'"
    ):
        read_interactions(path, columns={**names, "ratings": "points"})


def test_text_ids_are_integers_only_where_all_of_them_are(tmp_path: Path) -> None:
    head = "user_id:token\titem_id:token\n"
    for users, ids in {
        ("1", "2"): (1, 2),
        ("-3", "0"): (-3, 0),
        ("1", "b"): ("1", "b"),
        ("007", "7"): ("007", "7"),
        ("+1", "2"): ("+1", "2"),
        ("-0", "1"): ("-0", "1"),
        ("1" * 19, "2"): ("1" * 19, "2"),
        ("1" * 18, "2"): (2, int("1" * 18)),
    }.items():
        text = head + "".join(f"{u}\t5\n" for u in users)
        table = read_interactions(write_file(tmp_path, "x.inter", text))
        assert table.users.ids == tuple(sorted(ids)), users  # type: ignore[type-var]
        assert table.items.ids == (5,)


def test_a_rating_of_douban_that_is_not_a_number_names_the_cell(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    rating = np.array([[5, np.nan], [1, 2]])
    path = tmp_path / "x.mat"
    with h5py.File(path, "w") as file:
        file["M"], file["Otraining"], file["Otest"] = rating.T, np.ones((2, 2)), np.eye(2)
    with pytest.raises(DataError, match=r"user 0, item 1, column 'rating': nan is not a finite"):
        formats.read_douban(path)
