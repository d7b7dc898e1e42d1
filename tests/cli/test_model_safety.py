"""What the command line does about models that hold training rows, that diverge, or that break."""

from __future__ import annotations

import json
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import board
from calls import call, call_with_error

from idcf import Recommender
from idcf.cli import train as train_verb
from idcf.errors import ArtifactError


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


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond 2,000 bytes, as on a full disk."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, old)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_model_that_cannot_be_saved_keeps_the_old_one(tmp_path: Path, small_files: None) -> None:
    table = board(60, 80, 9, 24)
    folder = (
        Recommender("popularity", key_threshold=15, device="cpu").fit(table).save(tmp_path / "m")
    )
    model = Recommender("als", key_threshold=15, device="cpu").fit(table)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    with pytest.raises(ArtifactError, match="cannot be written"):
        model.save(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert Recommender.load(folder).manifest.model == "popularity"
    assert [x.name for x in tmp_path.iterdir()] == ["m"]


def test_a_trained_model_is_kept_where_the_message_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = Recommender("popularity", key_threshold=15, device="cpu").fit(board(60, 80, 9, 24))
    out = tmp_path / "taken"
    out.write_text("a file that came while the model was trained")
    with pytest.raises(ArtifactError, match="the trained model was saved in ") as caught:
        train_verb.save_or_keep(model, out, False)
    kept = str(caught.value).rpartition(" ")[2]
    assert Recommender.load(kept).manifest.model == "popularity"


def test_where_to_save_is_checked_before_the_table_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "file").touch()
    for out, code in (("file", 3), ("file/model", 2), ("n" * 300, 2)):
        train = ("train", "no-such-table.csv", "--out", str(tmp_path / out))
        result, text = call_with_error(monkeypatch, capsys, *train)
        assert result == code
        assert "no-such-table" not in text
