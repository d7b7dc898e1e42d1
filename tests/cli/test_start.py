"""What a command needs before it answers: torch, which takes most of the start, only to compute."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from builders import board, write_csv

RUN = """
import sys
from idcf.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("torch" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [
        *("--help", "--version", "train --help"),
        *("data list", "data describe {table}", "shard {table} --out {table}-shards"),
        *("models", "models idcf-bayes", "models idcf-nn", "models melu"),
        *("estimate {table}", "estimate --users 1e6 --items 1e5 --rows 1e8"),
    ],
)
def test_torch_is_not_imported(arguments: str, tmp_path: Path) -> None:
    write_csv(board(20, 10, 3, 8), tmp_path / "table.csv")
    words = arguments.format(table=tmp_path / "table.csv").split()
    process = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=True
    )
    assert process.stderr.splitlines()[-1] == "False"
    assert process.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_at_the_top_level(shell: str) -> None:
    code = "import sys; sys.argv = ['idcf', *sys.argv[1:]]; from idcf.cli import main; main()"
    command, environment = [sys.executable, "-c", code], {"_IDCF_COMPLETE": f"source_{shell}"}
    script = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    assert "_IDCF_COMPLETE=complete_" in script.stdout.replace(" ", "").replace("\n", "")
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--install-completion" in shown
    assert "--show-completion" in shown
