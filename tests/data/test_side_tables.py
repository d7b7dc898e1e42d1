"""Side tables of users and items in every accepted form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from builders import table_from_columns

from idcf.data.interactions import Vocab
from idcf.data.side_tables import add_side_tables, read_side_table
from idcf.errors import DataError

FRAME = pd.DataFrame(
    {
        "user_id": [3, 1, 2, 9],
        "age": [30, 20, 40, 50],
        "jobs": ["a", "a|b", "a|b", "b"],
    }
)


def as_csv(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "t.csv", index=False)
    return folder / "t.csv"


def as_parquet(frame: pd.DataFrame, folder: Path) -> str:
    frame.to_parquet(folder / "t.parquet", index=False)
    return str(folder / "t.parquet")


FORMS: list[Callable[[pd.DataFrame, Path], Any]] = [
    lambda frame, _: frame,
    lambda frame, _: pl.from_pandas(frame),
    lambda frame, _: pa.Table.from_pandas(frame),
    as_csv,
    as_parquet,
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("ids", [[1, 2, 3, 4], ["1", "2", "3", "4"]])
def test_every_form_reads_the_same(
    form: Callable[..., Any], ids: list[Any], tmp_path: Path
) -> None:
    expected, _ = read_side_table(FRAME, "user").encode(Vocab([1, 2, 3, 4]))
    features, encoder = read_side_table(form(FRAME, tmp_path), "user").encode(Vocab(ids))
    np.testing.assert_allclose(features, expected)
    assert not features[3].any()
    assert features[:3].any(1).all()
    assert encoder.feature_names == ["age", "jobs"]


def test_an_id_keeps_its_leading_zeros(tmp_path: Path) -> None:
    path = tmp_path / "users.csv"
    path.write_text("user_id,age\n007,30\n7,20\n01,25\n")
    features, _ = read_side_table(path, "user").encode(Vocab(["007", "01", "7"]))
    assert np.argsort(features[:, 0]).tolist() == [2, 1, 0]


def test_a_column_of_lists_is_words() -> None:
    table = pa.table({"item_id": list("abcd"), "genres": [["x", "y"], ["x"], ["y", "x"], ["y"]]})
    features, encoder = read_side_table(table, "item").encode(Vocab(list("abcd")))
    assert encoder.columns[0].words == ("x", "y")
    assert (features[:, 0] > 0).tolist() == [True, True, True, False]


def test_titles_are_not_features() -> None:
    table = table_from_columns(np.array([0, 1]), np.array([5, 6]), np.ones(2))
    names = pd.DataFrame({"item_id": ["5", "6"], "title": ["Five", None]})
    enriched = add_side_tables(table, None, names)
    assert enriched.titles == {"5": "Five"}
    assert enriched.feature_fields == ()
    assert enriched.interactions is table
    enriched = add_side_tables(table, None, names.assign(year=[1990, 2000]))
    assert enriched.feature_fields == ("item_features",)
    assert enriched.interactions.item_features is not None
    assert enriched.interactions.item_features.shape[0] == 2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (FRAME.rename(columns={"user_id": "code"}), "users: no column named 'user_id'"),
        (FRAME[:0], "the table has no rows"),
        (pd.concat([FRAME, FRAME]), "users: 3 has two rows"),
        (FRAME.assign(user_id=[11, 12, 13, 14]), "none of the 4 ids is among the interactions"),
        (FRAME[["user_id"]], "no column tells one user from another"),
        (FRAME[["user_id"]].assign(name=list("wxyz")), "columns: 'name'"),
        ({"user_id": [1]}, "cannot read dict"),
        ("nowhere.csv", "nowhere.csv"),
    ],
)
def test_tables_that_cannot_be_used(table: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_side_table(table, "user").encode(Vocab([1, 2, 3]))


def test_a_tsv_file_and_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FRAME.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    monkeypatch.setenv("HOME", str(tmp_path))
    table = read_side_table("~/t.tsv", "user")
    assert [int(x) for x in table.ids] == FRAME.user_id.tolist()
    assert table.columns["jobs"] == FRAME.jobs.tolist()


def test_a_title_of_a_user_is_a_feature_like_others() -> None:
    people = pd.DataFrame({"user_id": range(6), "title": ["Dr", "Dr", "Dr", "Mx", "Mx", "Mx"]})
    table = read_side_table(people, "user")
    assert table.titles == {}
    features, encoder = table.encode(Vocab(range(6)))
    assert encoder.feature_names == ["title"]
    assert (features[:, 0] > 0).tolist() == [True] * 3 + [False] * 3


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_missing_titles_are_left_out(missing: Any) -> None:
    frame = pd.DataFrame({"item_id": [1, 2], "title": [missing, "Two"]})
    assert read_side_table(frame, "item").titles == {2: "Two"}


def test_numbers_as_titles_become_text() -> None:
    frame = pd.DataFrame({"item_id": [1, 2], "title": [1984, 2001]})
    assert read_side_table(frame, "item").titles == {1: "1984", 2: "2001"}


def test_users_and_items_together() -> None:
    table = table_from_columns(np.array([1, 2, 3]), np.array([5, 6, 5]), np.ones(3))
    items = pd.DataFrame({"item_id": [5, 6, 7], "year": [1990, 2000, 2010], "title": list("abc")})
    enriched = add_side_tables(table, FRAME, items)
    assert enriched.feature_fields == ("user_features", "item_features")
    assert enriched.titles == {5: "a", 6: "b", 7: "c"}
    assert enriched.user_encoder is not None
    expected = read_side_table(FRAME, "user").encode(table.users)[0]
    assert enriched.interactions.user_features is not None
    np.testing.assert_array_equal(enriched.interactions.user_features, expected)
    assert enriched.interactions.item_features is not None
    years = enriched.interactions.item_features[:, 0]
    np.testing.assert_allclose(years, [-1, 1], atol=1e-6)
    assert table.user_features is None, "the given table is not changed"


def test_a_new_user_is_encoded_as_a_row_of_the_side_table() -> None:
    table = table_from_columns(np.array([1, 2, 3]), np.array([5, 6, 5]), np.ones(3))
    enriched = add_side_tables(table, FRAME, None)
    assert enriched.user_encoder is not None
    assert enriched.interactions.user_features is not None
    for row, user in enumerate(table.users.ids):
        given = FRAME[FRAME.user_id == user].iloc[0]
        np.testing.assert_allclose(
            enriched.user_encoder.transform_one({"age": int(given.age), "jobs": given.jobs}),
            enriched.interactions.user_features[row],
            atol=1e-6,
        )


def test_an_item_table_without_columns_or_titles_is_rejected() -> None:
    table = table_from_columns(np.array([1, 2]), np.array([5, 6]), np.ones(2))
    with pytest.raises(DataError, match=r"items: no column tells one item from another \(columns"):
        add_side_tables(table, None, pd.DataFrame({"item_id": [5, 6]}))
    only_gaps = pd.DataFrame({"item_id": [5, 6], "title": [None, None]})
    with pytest.raises(DataError, match="columns: none"):
        add_side_tables(table, None, only_gaps)


def test_ids_of_another_kind_are_shown_in_the_error() -> None:
    with pytest.raises(DataError, match=r"where they look like 'u1'; these look like 3"):
        read_side_table(FRAME, "user").encode(Vocab(["u1", "u2"]))


def test_attributes_are_no_features() -> None:
    table = table_from_columns(np.array([1, 1, 2]), np.array([10, 20, 20]), np.ones(3))
    frame = pd.DataFrame({"item_id": [20, 10, 30], "genre": ["Comedy|Drama", "War", "Comedy"]})
    by_id = {"genre": {"20": ["Comedy", "Drama"], 10: "War", 30: "Comedy"}}
    for attributes in (frame, by_id):
        data = add_side_tables(table, None, None, attributes=attributes)
        assert data.feature_fields == ()
        assert data.interactions is table
        assert data.attributes.rows({"genre": "Comedy"}).tolist() == [1]
        assert data.attributes.rows({"genre": ["War", "Drama"]}).tolist() == [0, 1]
    items = pd.DataFrame({"item_id": [10, 20], "genre": ["Opera", "War"], "long": ["yes", "no"]})
    data = add_side_tables(table, None, items, attributes=frame, reads_item_features=False)
    assert data.attributes.rows({"genre": "War", "long": "no"}).tolist() == [1]
    assert add_side_tables(table, None, None, attributes={}).attributes is None


def test_ids_of_a_column_that_is_named_stay_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("sku,title,year\n007,Bond,1962\n7,Seven,1995\n")
    table = read_side_table(tmp_path / "t.csv", "item", {"item_id": "sku", "user_id": "who"})
    assert table.ids == ["007", "7"]
    assert table.titles == {"007": "Bond", "7": "Seven"}
    assert list(table.columns) == ["year"]
    with pytest.raises(DataError, match="no column named 'item_id'"):
        read_side_table(tmp_path / "t.csv", "item")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"item_id": ["a", None], "title": ["x", "y"]}, "row 1: the id is missing"),
        ({"item_id": [["a"], ["b"]], "title": ["x", "y"]}, "row 0: .* is of type list"),
        ({"item_id": ["a", "b"], "title": [b"x", b"\xff"]}, "row 0, column 'title': .* bytes"),
        ({"item_id": ["a", "b"], "title": [["x"], ["y"]]}, "row 0, column 'title': .* list"),
        ({"item_id": ["a", "b"], "title": [{"x": 1}, {"x": 2}]}, "column 'title': .* dict"),
    ],
)
def test_ids_and_titles_of_other_kinds_are_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_side_table(pa.table(columns), "item")


def test_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("item_id,x,x\na,1,2\n")
    with pytest.raises(DataError, match=r"t\.csv: two columns are named 'x'"):
        read_side_table(path, "item")


@pytest.mark.parametrize("argument", ["items", "attributes"])
def test_a_table_of_other_items_is_refused(argument: str) -> None:
    table = table_from_columns(np.array(["u", "v"]), np.array(["a", "b"]), np.ones(2))
    other = pa.table({"item_id": [1, 2], "title": ["x", "y"], "genre": ["d", "e"]})
    arguments: dict[str, Any] = {"items": None, "attributes": None, argument: other}
    with pytest.raises(DataError, match="none of the 2 ids is among the interactions"):
        add_side_tables(table, None, **arguments, reads_item_features=False)
