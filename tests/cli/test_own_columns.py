"""Columns named once, in training: histories, items and users of those names, in every verb."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from builders import board, write_csv
from calls import OPTIONS, call, call_with_error
from pyarrow import parquet

from idcf import Recommender
from idcf.testing.synthetic import checkerboard

COLUMNS = {"user_id": "customer", "item_id": "sku", "rating": "note", "timestamp": "day"}
MAPPING = [x for role, name in COLUMNS.items() for x in ("--column", f"{role}={name}")]
HISTORIES = "day,customer,note,sku\n3,b,5,i2\n4,a,1,i5\n5,b,2,i4\n"
EXPECTED = {"a": {"i5": 1.0}, "b": {"i2": 5.0, "i4": 2.0}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model that was trained on tables with names of their own."""
    folder = tmp_path_factory.mktemp("columns")
    write_csv(board(60, 30, 9, 24), folder / "ratings.csv")
    table = pd.read_csv(folder / "ratings.csv").rename(columns=COLUMNS)
    table.assign(day=range(len(table))).to_csv(folder / "ratings.csv", index=False)
    items = {"sku": [f"i{n}" for n in range(30)], "title": [f"Film {n}" for n in range(30)]}
    pd.DataFrame(items | {"genre": ["a", "b", "c"] * 10}).to_csv(folder / "items.csv", index=False)
    call(
        *("train", str(folder / "ratings.csv"), "--out", str(folder / "model"), *OPTIONS, *MAPPING),
        *("--items", str(folder / "items.csv"), "-o", "embedding_size=4", "--no-card-metrics"),
    )
    return folder / "model"


def histories_of(recommender: Recommender) -> dict[str, list[Any]]:
    """Return the items of the lists of the histories of this module."""
    return {
        user: [x.item_id for x in recommender.recommend(history, n=3)]
        for user, history in EXPECTED.items()
    }


def test_the_mapping_is_kept_with_the_model(model: Path) -> None:
    recommender = Recommender.load(model)
    assert recommender.manifest.columns == COLUMNS
    assert recommender.predictor.titles[recommender.predictor.item_ids.index("i7")] == "Film 7"
    assert recommender.predictor.attribute_names == ["genre"]


def test_tables_of_histories_have_the_names_of_the_training_table(model: Path) -> None:
    recommender = Recommender.load(model)
    rows = [dict(zip(("day", "customer", "note", "sku"), x.split(","), strict=True))
            for x in HISTORIES.split()[1:]]  # fmt: skip
    table = pd.DataFrame(rows).astype({"day": int, "note": float})
    lists = recommender.recommend(table, n=3)
    expected = histories_of(recommender)
    assert {x.user_id: [y.item_id for y in x] for x in lists} == expected
    one = table[table["customer"] == "a"].drop(columns="customer")
    assert [x.item_id for x in recommender.recommend(one, n=3)] == expected["a"]
    assert recommender.embed(table).shape[0] == 2
    roles = table.rename(columns={name: role for role, name in COLUMNS.items()})
    assert recommender.recommend(roles, n=3) == lists  # the names of the roles are read, too


def test_a_column_of_the_training_table_wins_over_the_name_of_the_role(model: Path) -> None:
    table = pa.table({"sku": ["i2"], "item_id": ["i9"], "note": [5.0], "rating": [1.0]})
    recommender = Recommender.load(model)
    assert recommender.recommend(table) == recommender.recommend({"i2": 5.0})


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_files_of_histories_need_no_mapping_and_no_order(
    ending: str, model: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / f"h{ending}", tmp_path / "lists.parquet"
    (tmp_path / "text.csv").write_text(HISTORIES)
    frame = pd.read_csv(tmp_path / "text.csv")
    if ending == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ending == ".tsv" else ",")
    arguments = ("recommend", str(model), "--histories", str(path), "--out", str(out), "-n", "3")
    with pytest.warns(UserWarning, match="not ordered by user, so that the file is sorted"):
        call(*arguments)
    lists = parquet.read_table(out).to_pandas().groupby("user_id")["item_id"].apply(list).to_dict()
    assert lists == histories_of(Recommender.load(model))


def test_other_names_are_given_and_must_be_there(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    path, out = tmp_path / "h.csv", tmp_path / "v.parquet"
    path.write_text("who,movieId,note\na,i5,1\n")
    arguments = ("embed", str(model), str(path), "--out", str(out))
    code, output = call_with_error(monkeypatch, capsys, *arguments)
    assert (code, out.exists()) == (2, False)
    assert "no column named 'user_id'; known: movieId, note, who; name yours: --column" in output
    report = json.loads(call(*arguments, "--column", "user_id=who", "--json"))
    assert (report["n_users"], report["n_unknown_items"]) == (1, 0)
    code, output = call_with_error(
        monkeypatch, capsys, *arguments, "--column", "user_id=who", "--column", "rating=stars"
    )
    assert "no column named 'stars'" in output


def test_folders_of_histories_have_the_names_of_the_training_table(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    folder, out = tmp_path / "histories", tmp_path / "out"
    folder.mkdir()
    for name, users in (("p1", ["a", "b"]), ("p2", ["c", "d"])):
        table = pa.table({"customer": users, "sku": ["i1", "i2"], "note": [5.0, 1.0]})
        parquet.write_table(table, folder / f"{name}.parquet")
    arguments = ("embed", str(model), str(folder), "--out")
    assert json.loads(call(*arguments, str(out), "--json"))["n_users"] == 4
    parquet.write_table(table, folder / "p3.parquet")
    _, output = call_with_error(monkeypatch, capsys, *arguments, str(tmp_path / "twice"))
    assert "has rows in p2.parquet and in p3.parquet" in output
    parquet.write_table(table.cast(table.schema.set(0, pa.field("customer", pa.large_string()))),
                        folder / "p3.parquet")  # fmt: skip
    _, output = call_with_error(monkeypatch, capsys, *arguments, str(tmp_path / "types"))
    assert "column 'customer' is large_string, but string in p1.parquet" in output


def test_new_items_come_in_tables_of_the_same_names() -> None:
    table = checkerboard(30, 12, np.random.default_rng(0))
    fitted = Recommender(device="cpu", sweeps=4, burn_in=1).fit(table, columns=COLUMNS)
    new = pd.DataFrame({"customer": ["u0"], "sku": ["new"], "note": [5.0]})
    assert "new" in fitted.partial_fit_items(new).predictor.item_ids
    roles = new.rename(columns={"customer": "user_id", "sku": "item_id", "note": "rating"})
    assert "newer" in fitted.partial_fit_items(roles.assign(item_id="newer")).predictor.item_ids


def test_files_have_the_mode_of_the_umask(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("user_id,item_id,rating\na,i5,1\n")
    umask = os.umask(0o027)
    try:
        Recommender.load(model).save(tmp_path / "model")
        for ending in ("csv", "jsonl", "parquet"):
            call("embed", str(model), str(path), "--out", str(tmp_path / "out" / f"v.{ending}"))
    finally:
        os.umask(umask)
    files = [*(tmp_path / "model").iterdir(), *(tmp_path / "out").iterdir()]
    assert {x.name: stat.S_IMODE(x.stat().st_mode) for x in files} == dict.fromkeys(
        (x.name for x in files), 0o640
    )
    assert len(files) == 7


@pytest.mark.parametrize("engine", [[], ["--engine", "local"]])
def test_a_fit_over_shards_remembers_the_names_of_their_table(
    model: Path, tmp_path: Path, engine: list[str]
) -> None:
    ratings, shards, out = model.parent / "ratings.csv", tmp_path / "shards", tmp_path / "model"
    call("shard", str(ratings), "--out", str(shards), *MAPPING, "--memory", "8GiB")
    call(
        *("train", str(shards), "--out", str(out), *OPTIONS, *engine, "--no-card-metrics"),
        *("--items", str(model.parent / "items.csv"), "-o", "embedding_size=4"),
    )
    recommender = Recommender.load(out)
    assert recommender.manifest.columns == COLUMNS
    assert recommender.predictor.titles[recommender.predictor.item_ids.index("i7")] == "Film 7"
    history = pd.DataFrame({"sku": ["i2", "i4"], "note": [5, 2]})
    assert recommender.recommend(history, n=3) == recommender.recommend({"i2": 5, "i4": 2}, n=3)
