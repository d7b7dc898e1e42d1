"""Call the command line inside the test process."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from idcf.cli import app, main
from idcf.data.user_chunks import HistoryFile, read_user_chunks

OPTIONS = ("--model", "als", "--key-threshold", "15", "--device", "cpu")


def call(*arguments: str, code: int = 0) -> str:
    """Run a command, check its exit code and return its standard output."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def call_with_error(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, *arguments: str
) -> tuple[int, str]:
    """Run a command that fails; return its exit code and its standard error."""
    monkeypatch.setattr(sys, "argv", ["idcf", *arguments])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with pytest.raises(SystemExit) as stop:
        main()
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    return int(str(stop.value.code)), output.err


def read_histories(path: Path, implicit: bool) -> Iterator[tuple[Any, list[tuple[Any, float]]]]:
    """Yield each user id of a history file with its (item id, rating) pairs, user by user."""
    for chunk in read_user_chunks(HistoryFile(path), implicit):
        items = chunk.items.to_pylist()
        ratings = [1.0] * len(items) if implicit else chunk.ratings.to_pylist()
        offsets, pairs = chunk.offsets.tolist(), list(zip(items, ratings, strict=True))
        for n, user in enumerate(chunk.user_ids.to_pylist()):
            yield user, pairs[offsets[n] : offsets[n + 1]]
