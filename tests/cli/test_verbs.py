"""The verbs train, recommend, embed and doctor."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from calls import OPTIONS, call, call_with_error, read_histories
from pyarrow import parquet
from typer.testing import CliRunner

from idcf import DataError, Recommender
from idcf.cli import app


def test_train_prints_a_summary(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    output = call("train", str(ratings_file()), "--out", str(tmp_path / "m"), *OPTIONS)
    assert re.search(r"als: [\d,]+ rows of 60 users \(\d+ key users with at least 15 rows", output)
    assert f"saved in {tmp_path / 'm'}" in output


def test_recommend_by_title(model: Path) -> None:
    ratings = ("--rate", "Film 2, The (1912)=5", "--rate", "i4=5", "--rate", "film 7, the (1917)=1")
    result = json.loads(call("recommend", str(model), *ratings, "-n", "4", "--json"))
    expected = Recommender.load(model).recommend({"i2": 5, "i4": 5, "i7": 1}, n=4)
    assert [x["item_id"] for x in result["items"]] == [x.item_id for x in expected]
    fields = {
        "item_id",
        "score",
        "rank",
        "title",
        "std",
        "source",
        "probability",
        "rating",
        "rating_if_shown",
    }
    assert set(result["items"][0]) == fields
    lines = call("recommend", str(model), *ratings, "-n", "4").splitlines()
    assert [x.split("  ")[-1] for x in lines] == [x.title for x in expected]
    result = json.loads(
        call("recommend", str(model), *ratings, "--exclude", expected[0].title or "", "--json")
    )
    assert expected[0].item_id not in [x["item_id"] for x in result["items"]]
    lines = call("recommend", str(model)).splitlines()  # popular items
    assert (len(lines), lines[-1]) == (11, "basis: popularity")


def test_recommend_notes_ignored_ratings(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    folder = str(tmp_path / "m")
    call("train", str(ratings_file()), "--out", folder, *OPTIONS, "--implicit")
    result = CliRunner().invoke(app, ["recommend", folder, "--rate", "i2=5", "--json"])
    assert "trained on implicit feedback: the rating 5 of 'i2' is ignored" in result.stderr
    items = [x["item_id"] for x in json.loads(result.stdout)["items"]]
    assert items == [x.item_id for x in Recommender.load(folder).recommend(["i2"])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "Flim 2, The (1912)=5"], "did you mean 'Film 2, The (1912)'"),
        (["--rate", "Film 2, The (1912)"], "write the rating too"),
        (["--rate", "i2=good"], "'good' is not a number"),
        (["--rate", "i2=77"], "outside the scale"),
        (["--rate", "qqqqqq=3"], "no item named 'qqqqqq'"),
        (["--feature", "age=3"], "features: the model was trained without any"),
        (["-n", "0"], "-n"),
    ],
)
def test_recommend_rejects_bad_options(
    model: Path, monkeypatch: Any, capsys: Any, options: list[str], message: str
) -> None:
    code, output = call_with_error(monkeypatch, capsys, "recommend", str(model), *options)
    assert code == 2
    assert message in output


def test_words_of_a_single_title_are_enough_and_noted(model: Path) -> None:
    result = CliRunner().invoke(app, ["recommend", str(model), "--rate", "1925=4"])
    assert "note: '1925' is taken for 'Film 15, The (1925)'" in result.stderr


def test_a_model_that_is_missing_or_damaged_is_exit_code_3(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    (tmp_path / "x.csv").touch()
    histories = str(tmp_path / "x.csv")
    for verb, *arguments in (["recommend"], ["serve"], ["embed", histories, "--out", "y.parquet"]):
        code, _ = call_with_error(monkeypatch, capsys, verb, str(tmp_path), *arguments)
        assert code == 3


def write_histories(path: Path, n_users: int, unknown_items: bool = True) -> Path:
    """Write histories of five items; with `unknown_items`, two further users have some."""
    rng = np.random.default_rng(3)
    rows = [(f"n{u:06}", f"i{i}", float(rng.integers(1, 6))) for u in range(n_users) for i in
            rng.choice(80, 5, replace=False)]  # fmt: skip
    if unknown_items:
        rows += [("x1", "nowhere", 3.0), ("x2", "nowhere", 3.0), ("x2", "i3", 4.0)]
    names = ("user_id", "item_id", "rating")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pa.table(columns), path)
    return path


def test_embed(model: Path, tmp_path: Path) -> None:
    path, out = write_histories(tmp_path / "h.parquet", 300), tmp_path / "new" / "v.parquet"
    report = json.loads(call("embed", str(model), str(path), "--out", str(out), "--json"))
    assert (report["n_users"], report["embedding_size"]) == (302, 5)  # 4 factors and a bias
    assert (report["n_users_without_known_items"], report["n_unknown_items"]) == (1, 2)
    table = parquet.read_table(out)
    assert table.column_names == ["user_id", "embedding", "n_known_items", "n_unknown_items"]
    rows = {x["user_id"]: x for x in table.to_pylist()}
    assert rows["x1"]["embedding"] is None
    assert (rows["x2"]["n_known_items"], rows["x2"]["n_unknown_items"]) == (1, 1)
    recommender = Recommender.load(model)
    np.testing.assert_allclose(rows["x2"]["embedding"], recommender.embed({"i3": 4.0}), rtol=1e-4)
    user_rows = parquet.read_table(path).filter(pa.compute.field("user_id") == "n000007")
    history = {x["item_id"]: x["rating"] for x in user_rows.to_pylist()}
    np.testing.assert_allclose(rows["n000007"]["embedding"], recommender.embed(history), rtol=1e-4)
    assert not list(out.parent.glob(".*"))


@pytest.mark.parametrize("n_rows", [1, 100])  # per batch
def test_unsorted_files_are_sorted(
    n_rows: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idcf.data.user_chunks.ROWS_PER_READ", n_rows)
    recommender = Recommender.load(model)
    for rows in ([("b", "i1"), ("a", "i2")], [("a", "i1"), ("b", "i2"), ("b", "i4"), ("a", "i3")]):
        path, out = tmp_path / "h.parquet", tmp_path / "v.parquet"
        users, items = zip(*rows, strict=True)
        columns = {"user_id": users, "item_id": items, "rating": [3.0] * len(rows)}
        parquet.write_table(pa.table(columns), path)
        with pytest.warns(UserWarning, match="rows are not ordered by user"):
            call("embed", str(model), str(path), "--out", str(out))
        table = parquet.read_table(out).to_pylist()
        assert [x["user_id"] for x in table] == ["a", "b"]
        for row in table:
            history = {item: 3.0 for user, item in rows if user == row["user_id"]}
            np.testing.assert_allclose(row["embedding"], recommender.embed(history), rtol=1e-4)


def test_ids_of_csv_files_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "histories.csv"
    path.write_text("user_id,item_id,rating,note\n007,01,3,\n8,NA,4.5,x\n10,1e3,2,\n")
    assert list(read_histories(path, implicit=False)) == [
        ("007", [("01", 3.0)]),
        ("8", [("NA", 4.5)]),
        ("10", [("1e3", 2.0)]),
    ]


@pytest.mark.parametrize(
    ("users", "is_sorted"),
    [
        (["10", "2", "a"], True),  # as text
        (["2", "10", "a"], True),  # as numbers
        (["007", "7"], True),
        (["2", "10", "1"], False),
        (["1", "2", "1"], False),
        (["b", "10", "2"], False),
    ],
)
def test_history_files_are_sorted_as_text_or_as_numbers(
    tmp_path: Path, users: list[str], is_sorted: bool
) -> None:
    path = tmp_path / "histories.csv"
    path.write_text("user_id,item_id\n" + "".join(f"{user},i1\n" for user in users))
    if is_sorted:
        assert [user for user, _ in read_histories(path, implicit=True)] == users
    else:
        with pytest.raises(DataError, match="sort the file by user_id"):
            list(read_histories(path, implicit=True))


def test_a_row_without_user_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "histories.csv"
    path.write_text("user_id,item_id\na,i1\n,i2\n")
    with pytest.raises(DataError, match="without user_id"):
        list(read_histories(path, implicit=True))


def test_train_and_embed_keep_leading_zeros(tmp_path: Path) -> None:
    """Items 007 and 7 are two items, from the training file to the embedding file."""
    rng = np.random.default_rng(0)
    ids = ["007", "7", *(f"{n:03}" for n in range(20, 48))]
    rows = [
        f"{user:04},{ids[item]},{1 + (user + item) % 5}"
        for user in range(40)
        for item in rng.choice(30, 20, replace=False)
    ]
    (tmp_path / "ratings.csv").write_text("\n".join(["user_id,item_id,rating", *rows]) + "\n")
    titles = "".join(f"{x},Film {x}\n" for x in ids)
    (tmp_path / "titles.csv").write_text(f"item_id,title\n{titles}")
    folder, out = str(tmp_path / "m"), tmp_path / "embeddings.parquet"
    call(
        *("train", str(tmp_path / "ratings.csv"), "--out", folder, *OPTIONS),
        *("--items", str(tmp_path / "titles.csv"), "--no-card-metrics"),
    )
    recommender = Recommender.load(folder)
    assert {"007", "7"} <= set(recommender.predictor.item_ids)
    assert "Film 007" in recommender.predictor.titles
    (tmp_path / "h.csv").write_text("user_id,item_id,rating\n007,007,5\n7,7,5\n")
    call("embed", folder, str(tmp_path / "h.csv"), "--out", str(out))
    table = parquet.read_table(out).to_pylist()
    assert [x["user_id"] for x in table] == ["007", "7"]
    for row in table:
        expected = recommender.embed({row["user_id"]: 5.0})
        np.testing.assert_allclose(row["embedding"], expected, rtol=1e-4)


def test_embed_streams(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times as many users need no more memory."""
    monkeypatch.setattr("idcf.data.user_chunks.ROWS_PER_READ", 1000)
    monkeypatch.setattr("idcf.data.user_chunks.USERS_PER_CHUNK", 200)
    peaks = []
    for n_users in (1000, 1000, 5000):  # the first run fills caches
        path = write_histories(tmp_path / f"{n_users}.parquet", n_users, unknown_items=False)
        tracemalloc.start()
        report = call(
            "embed", str(model), str(path), "--out", str(tmp_path / "v.parquet"), "--json"
        )
        assert json.loads(report)["n_users"] == n_users
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.3 * peaks[1]


def test_recommend_to_a_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idcf.data.user_chunks.USERS_PER_CHUNK", 7)
    path, out = write_histories(tmp_path / "h.parquet", 20), tmp_path / "new" / "r.parquet"
    arguments = ("recommend", str(model), "--histories", str(path), "--out", str(out), "-n", "4")
    report = json.loads(call(*arguments, "--exclude", "i5", "--json"))
    assert (report["n_users"], report["n_unknown_items"]) == (22, 2)
    assert report["n_users_without_known_items"] == 1
    table = parquet.read_table(out)
    columns = [
        "item_id",
        "score",
        "rank",
        "std",
        "source",
        "probability",
        "rating",
        "rating_if_shown",
    ]
    assert table.column_names == ["user_id", *columns]
    rows = table.to_pylist()
    assert len(rows) == 22 * 4
    assert "i5" not in {x["item_id"] for x in rows}
    assert {x["source"] for x in rows if x["user_id"] == "x1"} == {"popular"}
    pairs = [(x["item_id"], x["rating"]) for x in parquet.read_table(path).to_pylist()]
    expected = Recommender.load(model).recommend(dict(pairs[35:40]), n=4, exclude=["i5"])
    result = [x["item_id"] for x in rows if x["user_id"] == "n000007"]
    assert result == [x.item_id for x in expected]
    assert "22 users, up to 4 items each" in call(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--histories", "h.csv"], "go together"),
        (["--out", "h.parquet"], "go together"),
        (
            ["--histories", "h.csv", "--out", "x", "--rate", "i2=5"],
            "--rate, --feature and --explain are for one user",
        ),
        (["--histories", "none.csv", "--out", "x.parquet"], "none.csv cannot be read"),
        (["--histories", "h.csv", "--out", "x"], "x has no ending; name the file .parquet, .csv"),
        (["--histories", "h.csv", "--out", "x.txt"], "x.txt ends in '.txt'; name the file .parq"),
        (["--column", "user_id=x"], "--column is for --histories; leave it out"),
        (["--engine", "local"], "--engine is for a folder of histories; leave it out, or give"),
        (
            ["--histories", "h.csv", "--out", "x.csv", "--overwrite"],
            "--overwrite is for a folder of histories; h.csv is no folder: leave it out",
        ),
        (["--histories", ".", "--out", "x", "--workers", "2"], "--workers needs --engine; give"),
        (
            ["--histories", ".", "--out", "x", "--threads", "2"],
            "--threads 2 is for one file; for a folder take --engine processes --workers 2",
        ),
        (["--histories", "tests", "--out", "x"], "no .parquet file in this folder"),
    ],
)
def test_recommend_to_a_file_rejects_bad_options(
    model: Path,
    monkeypatch: Any,
    capsys: Any,
    tmp_path: Path,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h.csv").touch()
    (tmp_path / "tests").mkdir()
    code, output = call_with_error(monkeypatch, capsys, "recommend", str(model), *options)
    assert code == 2
    assert message in output


def test_train_with_features(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    """A table of user features, and one of item titles and features."""
    users = "\n".join(f"u{n},{20 + n % 40},{'ab'[n % 2]}" for n in range(60))
    items = "\n".join(f"i{n},Film {n},{1950 + n}" for n in range(80))
    (tmp_path / "users.csv").write_text(f"user_id,age,group\n{users}\n")
    (tmp_path / "items.csv").write_text(f"item_id,title,year\n{items}\n")
    call(
        *("train", str(ratings_file()), "--out", str(tmp_path / "m"), "--device", "cpu", "--json"),
        *("--model", "idcf-bayes", "-o", "sweeps=4", "--option", "burn_in=2"),
        *("--user-features", str(tmp_path / "users.csv"), "--items", str(tmp_path / "items.csv")),
    )
    recommender = Recommender.load(tmp_path / "m")
    expected = recommender.recommend(features={"group": "a", "age": 30}, n=3)
    assert [x.source for x in expected] == ["features"] * 3
    assert expected[0].title == f"Film {expected[0].item_id[1:]}"
    options = ("--feature", "group=a", "--feature", "age=30", "-n", "3", "--json")
    result = json.loads(call("recommend", str(tmp_path / "m"), *options))
    assert [x["item_id"] for x in result["items"]] == [x.item_id for x in expected]
    options = ("--rate", "i2=5", "--feature", "group=a", "--feature", "age=30", "--json")
    result = json.loads(call("recommend", str(tmp_path / "m"), *options, "-n", "1", "--explain"))
    item = result["items"][0]
    explanation = recommender.explain(
        {"i2": 5}, item["item_id"], features={"group": "a", "age": 30}
    )
    assert item["reasons"][0]["effect"] == pytest.approx(explanation.reasons[0].effect)
    assert item["cohorts"][0]["weight"] == pytest.approx(explanation.cohorts[0].weight)


def test_doctor(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = json.loads(call("doctor", str(model), "--json"))
    assert result["ok"]
    checks = {x["name"]: x for x in result["checks"]}
    message = checks["model"]["message"]
    assert message.startswith("<Recommender als: ")
    assert ", 80 items> recommends" in message
    assert checks["[serve]"]["status"] == checks["numpy"]["status"] == "ok"
    assert "[dev]" not in checks
    assert "no problems" in call("doctor")
    (tmp_path / "config.json").write_text("{}")
    assert "!! model" in call("doctor", str(tmp_path), code=1)
    monkeypatch.setenv("IDCF_DATA", str(tmp_path / "none"))
    assert "is not a folder" in call("doctor", code=1)


def test_choice_of_key_users(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    arguments = ("train", str(ratings_file()), "--out", str(tmp_path / "m"), *OPTIONS)
    arguments += ("--key-users", "informative")
    summary = json.loads(call(*arguments, "--n-key-users", "12", "--json"))
    assert (summary["n_key_users"], summary["key_user_choice"]) == (12, 12)
    assert "chosen by informative" in call(*arguments)
    output = call(
        *("evaluate", str(ratings_file()), "--models", "als", "--key-threshold", "15"),
        *("--device", "cpu", "--key-users", "random"),
    )
    assert "key_users=random" in output
