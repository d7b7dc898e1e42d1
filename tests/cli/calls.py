"""Call the command line inside the test process."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
from typer.testing import CliRunner

from idcf.cli import app, main

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
