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

from idcf.data.interactions import Interactions, Vocab
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
    table = Interactions.from_columns(np.array([0, 1]), np.array([5, 6]), np.ones(2))
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
        (FRAME.rename(columns={"user_id": "uid"}), "users: no column named 'user_id'"),
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
