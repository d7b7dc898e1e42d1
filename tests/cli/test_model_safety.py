"""What the command line does about models that hold training rows, that diverge, or that break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calls import call, call_with_error


def test_training_rows_are_saved_only_on_request(
    ratings_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder = tmp_path / "m"
    train = ("train", str(ratings_file()), "--out", str(folder), "--model", "idcf-gc", "-o")
    train = (*train, "epochs=1", "--key-threshold", "15", "--no-card-metrics", "--device", "cpu")
    code, text = call_with_error(monkeypatch, capsys, *train)
    assert (code, folder.exists()) == (2, False)
    assert "'idcf-gc' reads the rows that it was trained on" in text
    assert "--allow-training-rows" in text
    call(*train, "--allow-training-rows")
    assert "Holds training rows" in (folder / "card.md").read_text()
    checks = json.loads(call("doctor", str(folder), "--json"))["checks"]
    (held,) = [x for x in checks if x["name"] == "model holds"]
    assert held["status"] == "note"
    assert "Holds training rows" in held["message"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "blocks=0"), "option 'blocks' is 0: it must be from 1 to 64"),
        (("--model", "als", "-o", "reg=nan"), "option 'reg' is nan: it must be above 0"),
        (("--model", "idcf-nn", "-o", "learning_rate=1e6"), "it must be from 1e-12 to 10"),
        (("--model", "idcf-nn", "-o", "embedding_size=0"), "'embedding_size' is 0"),
        (("--model", "bias", "-o", "shrinkage=-5"), "option 'shrinkage' is -5: it must be from 0"),
    ],
)
def test_options_are_checked_before_the_table_is_read(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    train = ("train", str(tmp_path / "no-such-table.csv"), "--out", str(tmp_path / "m"))
    code, text = call_with_error(monkeypatch, capsys, *train, *options)
    assert code == 2
    assert message in text
