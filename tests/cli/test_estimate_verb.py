"""`idcf estimate`, and the limit of `idcf train`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders import board
from calls import call, call_with_error
from pyarrow import parquet

from idcf.data import readers
from idcf.data.parquet_reader import count_ids
from idcf.training.fit_cost import _FORMULAS


def write_parquet(folder: Path, **columns: str) -> Path:
    """Write a checkerboard as Parquet, with other names of columns."""
    table = board(60, 80, 9, 24)
    names = {"user_id": "user_id", "item_id": "item_id", "rating": "rating", **columns}
    users = [table.users.ids[n] for n in table.user]
    items = [table.items.ids[n] for n in table.item]
    arrays = [users, items, table.rating]
    path = folder / "rows.parquet"
    parquet.write_table(pa.table(dict(zip(names.values(), arrays, strict=True))), path)
    return path


def test_a_file_and_its_parquet_have_one_estimate(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    text = json.loads(call("estimate", str(ratings_file()), "--json"))
    path = write_parquet(tmp_path)
    assert json.loads(call("estimate", str(path), "--json")) | {"free_bytes": 0} == text | {
        "free_bytes": 0
    }
    assert text["users"] == 60
    assert text["items"] == 80
    assert text["key_rows"] < text["rows"]
    assert text["memory_bytes"] > 10**8
    assert "needs about" in call("estimate", str(path))


def test_of_parquet_the_ids_are_counted_without_a_table(tmp_path: Path, monkeypatch) -> None:
    path = write_parquet(tmp_path, user_id="who", rating="stars")
    table = readers.read_interactions(path, columns={"user_id": "who", "rating": "stars"})
    monkeypatch.setattr(readers, "interactions_from_rows", lambda *a, **k: pytest.fail("read"))
    counted = count_ids(path, {"user_id": "who", "rating": "stars"}, None)
    assert counted is not None
    counts, n_items, implicit = counted
    assert sorted(counts.tolist()) == sorted(table.user_counts().tolist())
    assert (n_items, implicit) == (80, False)
    renamed = ("--column", "user_id=who", "--column", "rating=stars")
    result = json.loads(call("estimate", str(path), *renamed, "--json"))
    assert (result["users"], result["implicit"]) == (60, False)
    assert json.loads(call("estimate", str(path), *renamed, "--implicit", "--json"))["implicit"]


def test_numbers_instead_of_a_file() -> None:
    numbers = ("--users", "1e6", "--items", "1e5", "--rows", "2e7")
    result = json.loads(call("estimate", *numbers, "--json", "--no-card-metrics"))
    assert result["rows"] == 20_000_000
    assert result["model"] == "idcf-bayes"
    assert json.loads(call("estimate", *numbers, "--json"))["seconds"] > result["seconds"]
    threads = call("estimate", *numbers, "--json", "--threads", "2", "--no-card-metrics")
    assert json.loads(threads)["seconds"] < result["seconds"]
    assert json.loads(call("estimate", *numbers, "--implicit", "--json"))["model"] == "idcf-takeup"
    assert "20,000,000 rows" in call("estimate", *numbers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give DATASET, or also --users and --items and --rows"),
        (("--users", "5"), "give DATASET, or also --items and --rows"),
        (("x.csv", "--rows", "5"), "--rows and DATASET exclude each other"),
        (
            ("--users", "50", "--items", "50", "--rows", "500", "--model", "als"),
            "the cost of model 'als' is not known",
        ),
    ],
)
def test_errors(monkeypatch, capsys, arguments: tuple[str, ...], message: str) -> None:
    code, text = call_with_error(monkeypatch, capsys, "estimate", *arguments)
    assert code == 2
    assert message in text


def test_train_refuses_what_needs_too_much(
    monkeypatch, capsys, ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    arguments = ("train", str(ratings_file()), "--out", str(tmp_path / "m"), "--memory", "10MB")
    code, text = call_with_error(monkeypatch, capsys, *arguments)
    assert code == 2
    assert "more than the limit, 0.0 GiB" in text
    assert not (tmp_path / "m").exists()


def test_the_help_names_models_with_an_estimate() -> None:
    words = call("estimate", "--help").replace(",", " ").replace(".", " ").split()
    assert set(_FORMULAS) <= set(words)
    assert "als" not in words
