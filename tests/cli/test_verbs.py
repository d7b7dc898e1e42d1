"""train, recommend, embed, serve, doctor: from a file of ratings to an answer over HTTP."""

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
from calls import OPTIONS, call, refused
from pyarrow import parquet
from typer.testing import CliRunner

from idcf import DataError, Recommender
from idcf.cli import app
from idcf.cli.embed import write
from idcf.cli.history_files import people


def test_train_says_what_it_did(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    said = call("train", str(ratings_file()), "--out", str(tmp_path / "m"), *OPTIONS)
    assert re.search(r"als: [\d,]+ rows of 60 users \(\d+ of them key users", said)
    assert f"saved in {tmp_path / 'm'}" in said


def test_recommend_by_title(model: Path) -> None:
    rated = ("--rate", "Film 2, The (1912)=5", "--rate", "i4=5", "--rate", "film 7, the (1917)=1")
    found = json.loads(call("recommend", str(model), *rated, "-n", "4", "--json"))
    told = {"i2": 5, "i4": 5, "i7": 1}
    want = Recommender.load(model).recommend(told, n=4)
    assert [x["item_id"] for x in found["items"]] == [x.item_id for x in want]
    assert set(found["items"][0]) == {"item_id", "score", "rank", "title", "std", "source"}
    lines = call("recommend", str(model), *rated, "-n", "4").splitlines()
    assert [x.split("  ")[-1] for x in lines] == [x.title for x in want]
    fewer = json.loads(
        call("recommend", str(model), *rated, "--exclude", want[0].title or "", "--json")
    )
    assert want[0].item_id not in [x["item_id"] for x in fewer["items"]]
    assert len(call("recommend", str(model)).splitlines()) == 10  # what is popular


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--rate", "Flim 2, The (1912)=5"], 2, "did you mean 'Film 2, The (1912)'"),
        (["--rate", "Film 2, The (1912)"], 2, "write the rating too"),
        (["--rate", "i2=good"], 2, "'good' is not a number"),
        (["--rate", "i2=77"], 2, "far outside the scale"),
        (["--rate", "qqqqqq=3"], 2, "no item named 'qqqqqq'"),
        (["--feature", "age=3"], 2, "features: the model was trained without any"),
        (["-n", "0"], 2, "-n"),
    ],
)
def test_recommend_refuses_with_a_reason(
    model: Path, monkeypatch: Any, capsys: Any, words: list[str], code: int, says: str
) -> None:
    got, said = refused(monkeypatch, capsys, "recommend", str(model), *words)
    assert got == code
    assert says in said


def test_words_that_mean_one_title_are_enough_and_said(model: Path, capfd: Any) -> None:
    call("recommend", str(model), "--rate", "1925=4")
    done = CliRunner().invoke(app, ["recommend", str(model), "--rate", "1925=4"])
    assert "note: '1925' is taken for 'Film 15, The (1925)'" in done.stderr


def test_a_model_that_is_missing_or_damaged_is_exit_code_3(
    model: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    for verb in (["recommend"], ["serve"], ["embed", "x.parquet", "--out", "y.parquet"]):
        words = [verb[0], str(tmp_path), *verb[1:]]
        assert refused(monkeypatch, capsys, *words)[0] == 3


def histories(path: Path, users: int, strange: bool = True) -> Path:
    rng = np.random.default_rng(3)
    rows = [(f"n{u:06}", f"i{i}", float(rng.integers(1, 6))) for u in range(users) for i in
            rng.choice(80, 5, replace=False)]  # fmt: skip
    if strange:
        rows += [("x1", "nowhere", 3.0), ("x2", "nowhere", 3.0), ("x2", "i3", 4.0)]
    names = ("user_id", "item_id", "rating")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pa.table(columns), path)
    return path


def test_embed(model: Path, tmp_path: Path) -> None:
    path, out = histories(tmp_path / "h.parquet", 300), tmp_path / "new" / "v.parquet"
    found = json.loads(call("embed", str(model), str(path), "--out", str(out), "--json"))
    assert (found["people"], found["nothing_known"], found["unknown_items"]) == (302, 1, 2)
    table = parquet.read_table(out)
    assert table.column_names == ["user_id", "vector", "known", "unknown"]
    rows = {x["user_id"]: x for x in table.to_pylist()}
    assert rows["x1"]["vector"] is None
    assert (rows["x2"]["known"], rows["x2"]["unknown"]) == (1, 1)
    recommender = Recommender.load(model)
    np.testing.assert_allclose(rows["x2"]["vector"], recommender.embed({"i3": 4.0}), rtol=1e-4)
    own = parquet.read_table(path).filter(pa.compute.field("user_id") == "n000007").to_pylist()
    told = {x["item_id"]: x["rating"] for x in own}
    np.testing.assert_allclose(rows["n000007"]["vector"], recommender.embed(told), rtol=1e-4)
    assert not list(out.parent.glob(".*"))


def test_embed_refuses_what_is_not_sorted_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    for rows in ("b,i1,3\na,i2,3\n", "a,i1,3\nb,i2,3\na,i3,3\n"):
        path, out = tmp_path / "h.csv", tmp_path / "v.parquet"
        path.write_text(f"user_id,item_id,rating\n{rows}")
        with pytest.raises(DataError, match=r"comes after .*; sort it by user_id"):
            call("embed", str(model), str(path), "--out", str(out))
        assert sorted(x.name for x in tmp_path.iterdir()) == ["h.csv"]
    path.write_text("user_id,item,rating\na,i1,3\n")
    with pytest.raises(DataError, match="no column named 'item_id'"):
        call("embed", str(model), str(path), "--out", str(out))


def test_embed_streams(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times the people, the same memory."""
    monkeypatch.setattr("idcf.cli.history_files.ROWS", 1000)
    monkeypatch.setattr("idcf.cli.history_files.PEOPLE", 200)
    desk = Recommender.load(model).desk
    peaks = []
    for users in (1000, 1000, 5000):  # the first is for what is made once
        path = histories(tmp_path / f"{users}.parquet", users, strange=False)
        tracemalloc.start()
        assert write(desk, people(path, implicit=False), tmp_path / "v.parquet")["people"] == users
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.3 * peaks[1]


def test_recommend_to_many(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idcf.cli.history_files.PEOPLE", 7)
    path, out = histories(tmp_path / "h.parquet", 20), tmp_path / "new" / "r.parquet"
    words = ("recommend", str(model), "--histories", str(path), "--out", str(out), "-n", "4")
    found = json.loads(call(*words, "--exclude", "i5", "--json"))
    assert (found["people"], found["nothing_known"], found["unknown_items"]) == (22, 1, 2)
    table = parquet.read_table(out)
    assert table.column_names == ["user_id", "item_id", "score", "rank", "std", "source"]
    rows = table.to_pylist()
    assert len(rows) == 22 * 4
    assert "i5" not in {x["item_id"] for x in rows}
    assert {x["source"] for x in rows if x["user_id"] == "x1"} == {"popular"}
    own = [(x["item_id"], x["rating"]) for x in parquet.read_table(path).to_pylist()]
    want = Recommender.load(model).recommend(dict(own[35:40]), n=4, exclude=["i5"])
    assert [x["item_id"] for x in rows if x["user_id"] == "n000007"] == [x.item_id for x in want]
    assert "22 people, up to 4 items each" in call(*words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--histories", "h.csv"], "go together"),
        (["--out", "h.parquet"], "go together"),
        (
            ["--histories", "h.csv", "--out", "x", "--rate", "i2=5"],
            "--rate, --feature and --explain for one",
        ),
        (["--histories", "none.csv", "--out", "x.parquet"], "none.csv cannot be read"),
    ],
)
def test_recommend_to_many_refuses(
    model: Path, monkeypatch: Any, capsys: Any, words: list[str], says: str
) -> None:
    code, said = refused(monkeypatch, capsys, "recommend", str(model), *words)
    assert code == 2
    assert says in said


def test_train_with_features(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    """A table of users and one of items, with titles in it."""
    users = "\n".join(f"u{n},{20 + n % 40},{'ab'[n % 2]}" for n in range(60))
    items = "\n".join(f"i{n},Film {n},{1950 + n}" for n in range(80))
    (tmp_path / "users.csv").write_text(f"user_id,age,group\n{users}\n")
    (tmp_path / "items.csv").write_text(f"item_id,title,year\n{items}\n")
    call(
        *("train", str(ratings_file()), "--out", str(tmp_path / "m"), "--device", "cpu", "--json"),
        *("--model", "idcf-bayes", "--set", "sweeps=4", "--set", "burn_in=2"),
        *("--users", str(tmp_path / "users.csv"), "--items", str(tmp_path / "items.csv")),
    )
    made = Recommender.load(tmp_path / "m")
    found = made.recommend(features={"group": "a", "age": 30}, n=3)
    assert [x.source for x in found] == ["features"] * 3
    assert found[0].title == f"Film {found[0].item_id[1:]}"
    words = ("--feature", "group=a", "--feature", "age=30", "-n", "3", "--json")
    said = json.loads(call("recommend", str(tmp_path / "m"), *words))
    assert [x["item_id"] for x in said["items"]] == [x.item_id for x in found]
    words = ("--rate", "i2=5", "--feature", "group=a", "--feature", "age=30", "--json")
    told = json.loads(call("recommend", str(tmp_path / "m"), *words, "-n", "1", "--explain"))
    because = made.explain(
        {"i2": 5}, told["items"][0]["item_id"], features={"group": "a", "age": 30}
    )
    assert told["items"][0]["reasons"][0]["effect"] == pytest.approx(because.reasons[0].effect)
    assert told["items"][0]["cohorts"][0]["weight"] == pytest.approx(because.cohorts[0].weight)


def test_doctor(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(call("doctor", str(model), "--json"))
    assert found["fine"]
    said = {x["what"]: x for x in found["findings"]}
    assert said["model"]["text"].startswith("<Recommender als, 80 items> answers")
    assert said["[serve]"]["state"] == "fine"
    assert "everything is in place" in call("doctor")
    (tmp_path / "config.json").write_text("{}")
    assert "!! model" in call("doctor", str(tmp_path), code=1)
    monkeypatch.setenv("IDCF_DATA", str(tmp_path / "none"))
    assert "is no folder" in call("doctor", code=1)


def test_fewer_key_users(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    words = ("train", str(ratings_file()), "--out", str(tmp_path / "m"), *OPTIONS)
    found = json.loads(call(*words, "--key-users", "12", "--json"))
    assert (found["key_users"], found["chosen"]) == (12, 12)
    assert "chosen: informative" in call(*words, "--key-users", "informative")
    shown = call(
        *("evaluate", str(ratings_file()), "--models", "als", "--key-threshold", "15"),
        *("--device", "cpu", "--key-users", "random"),
    )
    assert "key_users=random" in shown
