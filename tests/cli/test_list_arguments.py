"""Options of `idcf recommend` that shape a list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import board, write_csv
from calls import call, call_with_error
from pyarrow import csv, parquet

from idcf import Recommender

RATINGS = ("--rate", "i2=5", "--rate", "i3=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model of clicks that was trained with a table of items."""
    files = tmp_path_factory.mktemp("options")
    write_csv(board(60, 40, 9, 24), files / "ratings.csv")
    rows = "\n".join(f"i{n},g{n % 3}|{'even' if n % 2 == 0 else 'odd'},{1990 + n // 20}"
                     for n in range(40))  # fmt: skip
    (files / "items.csv").write_text(f"item_id,group,year\n{rows}\n")
    arguments = ("--items", str(files / "items.csv"), "--key-threshold", "15", "--device", "cpu")
    options = ("-o", "sweeps=16", "-o", "burn_in=8", "-o", "embedding_size=4", "-o", "rank=6")
    out = files / "model"
    call("train", str(files / "ratings.csv"), "--out", str(out), *arguments, *options)
    return out


def test_lists_are_those_of_the_python_recommender(folder: Path, tmp_path: Path) -> None:
    arguments = ("--where", "group=g1", "--where", "group=g2", "--where", "year=1991")
    arguments += ("--diversity", "0.5", "--damping", "0.5", "--quality", "0.2", "--recency", "0.4")
    options: dict[str, Any] = {"where": {"group": ["g1", "g2"], "year": "1991"}}
    options |= {"diversity": 0.5, "damping": 0.5, "quality": 0.2, "recency": 0.4}
    expected = Recommender.load(folder).recommend({"i2": 5, "i3": 1}, **options)
    output = call("recommend", str(folder), *RATINGS, *arguments, "--json", "--explain")
    items = json.loads(output)["items"]
    assert [x["item_id"] for x in items] == [x.item_id for x in expected]
    assert items[0]["reasons"]
    histories = tmp_path / "histories.csv"
    histories.write_text("user_id,item_id,rating\nu,i2,5\nu,i3,1\n")
    out = tmp_path / "lists.parquet"
    files = ("--histories", str(histories), "--out", str(out))
    call("recommend", str(folder), *arguments, *files)
    listed = parquet.read_table(out)["item_id"].to_pylist()
    assert listed == [x.item_id for x in expected]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_history_file_is_in_the_order_of_its_times(
    folder: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / "out.parquet"
    files = ("--histories", str(tmp_path / f"histories{suffix}"), "--out", str(out))
    table = pa.table({"user_id": ["u", "u", "u", "v"], "item_id": ["i2", "i3", "x", "i2"]})
    for columns, history in (
        ({}, {"i2": 5, "i3": 4}),
        ({"timestamp": [2, 1, 3, 1]}, {"i3": 4, "i2": 5}),
        ({"timestamp": [f"2020-01-0{n}" for n in (2, 1, 3, 1)]}, {"i3": 4, "i2": 5}),
    ):
        rows = table.append_column("rating", [[5, 4, 3, 2]])
        for name, values in columns.items():
            rows = rows.append_column(name, [values])
        write = csv.write_csv if suffix == ".csv" else parquet.write_table
        write(rows, tmp_path / f"histories{suffix}")
        lists = {}
        for recency in ("0", "0.5"):
            call("recommend", str(folder), *files, "--recency", recency)
            written = parquet.read_table(out).to_pylist()
            lists[recency] = [(x["item_id"], x["score"]) for x in written if x["user_id"] == "u"]
            expected = Recommender.load(folder).recommend(history, recency=float(recency))
            assert [x for x, _ in lists[recency]] == [x.item_id for x in expected]
            scores = pytest.approx([x.score for x in expected], rel=1e-4)
            assert [x for _, x in lists[recency]] == scores
        assert lists["0"] != lists["0.5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--where", "group"), "--where 'group': write COLUMN=VALUE, as in genre=Comedy"),
        (("--where", "=g1"), "write COLUMN=VALUE"),
        (("--where", "gruop=g1"), "no column named 'gruop'; did you mean 'group'?"),
        (("--where", "group=g7"), "no item has group 'g7'"),
        (("--recency", "soon"), "--recency 'soon': write a number from 0 to below 1, or fitted"),
        (("--recency", "1"), "recency must be a number from 0 to below 1, or 'fitted', got 1.0"),
        (("--recency", "fitted"), "fitted without timestamps, so that no value was chosen"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, monkeypatch, capsys, arguments, message) -> None:
    code, error = call_with_error(monkeypatch, capsys, "recommend", str(folder), *arguments)
    assert code != 0
    assert message in error
