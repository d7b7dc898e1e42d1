"""The command line, called from within."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from idcf.cli import app, main

OPTIONS = ("--model", "als", "--key-threshold", "15", "--device", "cpu")


def call(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def refused(monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["idcf", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err
    return int(str(stop.value.code)), said.err
