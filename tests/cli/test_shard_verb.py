"""`idcf shard`, and its folder in place of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calls import OPTIONS, call, call_with_error

from idcf import Recommender
from idcf.data.columns import DataWarning
from idcf.data.readers import read_interactions

MEMORY = ("--memory", "8GiB")  # the test process holds more than a command would


def test_a_folder_of_shards_is_read_like_the_file(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    file, out = str(ratings_file()), str(tmp_path / "shards")
    arguments = ("shard", file, "--out", out, "--block-users", "7", "--shards", "3", *MEMORY)
    values = json.loads(call(*arguments, "--json"))
    assert (values["n_users"], values["n_items"], values["feedback"]) == (60, 80, "explicit")
    assert (values["n_blocks"], values["n_shards"], values["was_complete"]) == (9, 3, False)
    assert values["n_rows"] == len(read_interactions(file))
    assert "already complete, nothing was written" in call(*arguments)
    for verb in ("estimate", "data describe"):
        one, other = (json.loads(call(*verb.split(), x, "--json")) for x in (file, out))
        volatile = {"name": "", "free_bytes": 0}
        assert one | volatile == other | volatile
    assert json.loads(call("estimate", out, "--implicit", "--json"))["implicit"]
    model = str(tmp_path / "model")
    call("train", out, "--out", model, *OPTIONS, "-o", "embedding_size=4", "--no-card-metrics")
    options: dict[str, Any] = {"embedding_size": 4, "key_threshold": 15, "device": "cpu"}
    expected = Recommender("als", **options).fit(out).recommend({"i3": 4.0, "i5": 2.0}, n=5)
    history = ("recommend", model, "--rate", "i3=4", "--rate", "i5=2", "-n", "5", "--json")
    rows = json.loads(call(*history))
    assert [x["item_id"] for x in rows["items"]] == [x.item_id for x in expected]


def test_columns_queries_and_overwriting(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("who,item_id,n\n007,1,2\n8,1,0\n8,2,1\n")
    out = str(tmp_path / "shards")
    columns = ("--column", "user_id=who", "--column", "rating=n", "--implicit")
    with pytest.warns(DataWarning, match="x.csv: 1 rows of weight 0 dropped"):
        call("shard", str(tmp_path / "x.csv"), "--out", out, *columns, *MEMORY)
    table = read_interactions(out)
    assert table.implicit
    assert (table.users.ids, table.items.ids, len(table)) == (("007", "8"), (1, 2), 2)
    query = f"SELECT who AS user_id, item_id FROM read_csv('{tmp_path}/x.csv', all_varchar=true)"
    text = call("shard", "--query", query, "--out", out, "--overwrite", *MEMORY)
    assert "3 rows of 2 users x 2 items, implicit feedback; 1 files" in text
    assert read_interactions(out).items.ids == ("1", "2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x.csv", "--memory", "1MiB"), "is too little: the program takes"),
        (("x.csv", "--memory", "much"), "memory must be a number of bytes"),
        (("x.csv",), "no file at x.csv"),
        ((), "give either a file or folder to read, or a query"),
        (("x.csv", "--query", "SELECT 1"), "give either a file or folder to read, or a query"),
        (("x.csv", "--column", "user=uid"), "no role named 'user'"),
    ],
)
def test_errors_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Any,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--column" in arguments:
        (tmp_path / "x.csv").write_text("user_id,item_id\n1,2\n")
    limit = () if "--memory" in arguments else MEMORY
    code, text = call_with_error(monkeypatch, capsys, "shard", *arguments, "--out", "o", *limit)
    assert code == 2
    assert message in text
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert not (tmp_path / "o").exists()
