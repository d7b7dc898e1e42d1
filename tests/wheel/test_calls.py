"""Without an extra, what needs it names it, and no command imports torch before it does."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from calls import COMMANDS, EXTRAS, PYTHON, Call

from idcf.cli import app

BLOCK = "import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"  # None: import fails
COMMAND = """
from idcf.cli import main
sys.argv[1:] = {arguments!r}
try:
    main()
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""
CALLS = [x for x in (*COMMANDS, *PYTHON) if x.extra]


@pytest.mark.parametrize("call", CALLS, ids=lambda x: x.text[:40])
def test_the_missing_extra_is_named(call: Call, tmp_path: Path) -> None:
    modules = [module for group in EXTRAS.values() for module in group]
    code = call.text if call.is_code else COMMAND.format(arguments=shlex.split(call.text))
    (tmp_path / "rows").mkdir()
    process = subprocess.run(
        [sys.executable, "-c", BLOCK.format(modules=modules) + code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    lines = process.stderr.splitlines()
    sentence = f"is not installed; pip install 'idcf[{call.extra}]'"
    if call.is_code:
        assert process.returncode == 1
        assert lines[-1].startswith("idcf.errors.ConfigError: ")
        assert lines[-1].endswith(sentence)
        return
    assert process.returncode == 2, process.stderr
    assert lines[-2].startswith("error: ")
    assert sentence in lines[-2]
    assert lines[-1] == "False"  # torch was not imported


def test_every_command_is_called() -> None:
    names = {x.name or x.callback.__name__.replace("_", "-") for x in app.registered_commands}  # type: ignore[union-attr]
    called = {x.text.split()[0] for x in COMMANDS} - {"--version", "data"}
    assert called == names


def test_every_extra_is_missed() -> None:
    assert {x.extra for x in CALLS} == set(EXTRAS)
