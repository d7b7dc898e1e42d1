"""`idcf forget`: the new model, files of results, shards, and no word of whom was forgotten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders import board, write_csv
from calls import OPTIONS, call, call_with_error
from pyarrow import parquet

from idcf.data.shards import ShardedTable

USER = "u40"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(board(60, 80, 9, 24), tmp_path_factory.mktemp("forget") / "ratings.csv")


def without_user(path: Path) -> Path:
    """Write the table without the user beside it."""
    lines = path.read_text().splitlines(keepends=True)
    rest = path.with_name("rest.csv")
    rest.write_text("".join(x for x in lines if not x.startswith(f"{USER},")))
    return rest


def train(table: Path, folder: Path) -> dict[str, bytes]:
    """Train a model and return the files of its folder."""
    call("train", str(table), "--out", str(folder), *OPTIONS, "--no-card-metrics")
    return {x.name: x.read_bytes() for x in folder.iterdir()}


@pytest.mark.filterwarnings("ignore:.*not ordered by user")
def test_model_and_results_lose_the_user(table: Path, tmp_path: Path) -> None:
    train(table, tmp_path / "old")
    expected = train(without_user(table), tmp_path / "expected")
    lists, ids = tmp_path / "lists.csv", tmp_path / "ids.txt"
    ids.write_text(USER + "\n")
    call(
        *("recommend", str(tmp_path / "old"), "--histories", str(table), "--out", str(lists)),
        *("-n", "2"),
    )
    forget = ("forget", str(table), "--user-file", str(ids), "--model", str(tmp_path / "old"))
    forget = (*forget, "--out", str(tmp_path / "old"), "--outputs", str(lists), "--device", "cpu")
    output = call(*forget, "--json")
    values = json.loads(output)
    assert values["removed_rows"] == {str(lists): 2}
    assert values["n_users"] == 1
    assert values["may_hold_traces"]
    assert USER not in output
    saved = {x.name: x.read_bytes() for x in (tmp_path / "old").iterdir()}
    assert saved == expected
    assert USER.encode() not in saved["config.json"] + saved["card.md"]
    assert len(lists.read_text().splitlines()) == 1 + 2 * 59


def test_shards_alone(table: Path, tmp_path: Path) -> None:
    call("shard", str(table), "--out", str(tmp_path / "s"), "--memory", "8GiB")
    text = call("forget", str(tmp_path / "s"), USER)
    assert USER not in text
    assert "1 user forgotten" in text
    written = ShardedTable.open(tmp_path / "s")
    written.verify()
    assert written.n_users == 59
    assert USER not in written.user_ids(0)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["u1"], 2, "is no folder of shards: give --model and --out"),
        (["u1", "--model", "old"], 2, "--model FOLDER and --out FOLDER go together"),
        ([], 2, "no user to forget was given"),
        (["u1", "--model", "old", "--out", "new"], 3, "no saved model at"),
        (["u1", "--model", "old", "--out", "ratings.csv"], 3, "is a file"),
        (["u1", "--model", "old", "--out", "new", "--outputs", "none.csv"], 2, "none.csv"),
    ],
)
def test_errors(
    arguments: list[str], code: int, message: str, table: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(table.parent)
    result, text = call_with_error(monkeypatch, capsys, "forget", str(table), *arguments)
    assert (result, message in text) == (code, True), text


def test_a_user_without_rows_is_not_named(
    table: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    train(table, tmp_path / "old")
    forget = ("forget", str(table), "secret-7", "--model", str(tmp_path / "old"))
    code, text = call_with_error(
        monkeypatch, capsys, *forget, "--out", str(tmp_path / "new"), "--json"
    )
    assert code == 2
    assert "1 of the 1 users to forget have no rows there" in text
    assert "secret-7" not in text
    assert not (tmp_path / "new").exists()


def test_a_file_of_shards_or_of_a_model_is_no_output(
    table: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    shards, model = tmp_path / "s", tmp_path / "model"
    call("shard", str(table), "--out", str(shards), "--memory", "8GiB")
    train(table, model)
    shard = next(x for x in shards.rglob("*.parquet") if x.name != "items.parquet")
    inside = model / "lists.csv"
    inside.write_text(f"user_id,item_id\n{USER},i1\n")
    for path, message in ((shard, f"use `idcf forget {shards}`"), (inside, "folder of a model")):
        content = path.read_bytes()
        arguments = ("forget", str(shards), USER, "--outputs", str(path))
        code, text = call_with_error(monkeypatch, capsys, *arguments)
        assert (code, message in text) == (2, True), text
        assert path.read_bytes() == content
    ShardedTable.open(shards).verify()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_users_of_outputs_need_no_rows_in_shards(
    ending: str, table: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    call("shard", str(table), "--out", str(tmp_path / "s"), "--memory", "8GiB")
    lists, ids = tmp_path / f"lists.{ending}", tmp_path / "ids.txt"
    rows = pa.table({"user_id": ["gone", "u1"], "item_id": ["i1", "i2"]})
    if ending == "parquet":
        parquet.write_table(rows, lists)
    elif ending == "csv":
        lists.write_text("user_id,item_id\ngone,i1\nu1,i2\n")
    else:
        lists.write_text("".join(json.dumps(x) + "\n" for x in rows.to_pylist()))
    ids.write_text("gone\nsecret-1\n\nsecret-2\n")
    forget = ("forget", str(tmp_path / "s"), "--user-file", str(ids), "--outputs", str(lists))
    code, text = call_with_error(monkeypatch, capsys, *forget)
    assert code == 2
    assert f"2 of the 3 users to forget have no rows there; check lines 2 and 4 of {ids}" in text
    assert "secret" not in text
    ids.write_text(f"gone\n{USER}\n")
    assert json.loads(call(*forget, "--json"))["removed_rows"] == {str(lists): 1}
    assert ShardedTable.open(tmp_path / "s").n_users == 59
    ids.write_text("u1\n")
    assert json.loads(call(*forget, "--json"))["removed_rows"] == {str(lists): 1}
    assert ShardedTable.open(tmp_path / "s").n_users == 58


def test_users_of_outputs_need_no_rows_in_the_table_of_a_model(table: Path, tmp_path: Path) -> None:
    expected = train(table, tmp_path / "model")
    lists = tmp_path / "lists.csv"
    lists.write_text("user_id,item_id\ngone,i1\n")
    call(
        *("forget", str(table), "gone", "--model", str(tmp_path / "model"), "--device", "cpu"),
        *("--out", str(tmp_path / "new"), "--outputs", str(lists)),
    )
    assert {x.name: x.read_bytes() for x in (tmp_path / "new").iterdir()} == expected
    assert lists.read_text() == "user_id,item_id\n"
