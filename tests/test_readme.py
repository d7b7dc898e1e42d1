"""The README as written: its Python runs, its commands run, its targets exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from idcf.models.registry import all_models
from idcf.paper import results_store
from idcf.paper.table_spec import load_all
from idcf.testing.synthetic import checkerboard

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


def commands() -> list[str]:
    lines = [
        line.partition("#")[0].strip() for block in blocks("bash") for line in block.split("\n")
    ]
    return [line for line in lines if line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A person's own table of ratings."""
    table = checkerboard(150, 40, np.random.default_rng(0))
    rows = [
        f"{table.users.ids[u]},{table.items.ids[i]},{r:g}"
        for u, i, r in zip(table.user, table.item, table.rating, strict=True)
    ]
    (tmp_path / "ratings.csv").write_text("\n".join(["user_id,item_id,rating", *rows]) + "\n")
    return tmp_path


def run(words: list[str], folder: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_python_runs_and_finds_the_newcomers_kind(folder: Path) -> None:
    (code,) = blocks("python")
    lines = run([sys.executable, "-W", "error", "-c", code], folder).splitlines()
    found = [line.split()[1] for line in lines]
    assert len(found) == 5
    assert sum(int(x[1:]) % 2 == 0 for x in found) >= 4  # likes 2 and 4, not 7: even items


def test_the_commands_run_in_order(folder: Path) -> None:
    """Each finds what those before it left; the server answers the request as written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server: subprocess.Popen[bytes] | None = None
    asked = 0
    try:
        for line in commands():
            words = shlex.split(line.replace("8000", port))
            if words[:2] == ["idcf", "serve"]:
                command = [sys.executable, "-m", "idcf", *words[1:]]
                env = {**os.environ, "OMP_NUM_THREADS": "1"}
                server = subprocess.Popen(command, cwd=folder, env=env)
                _await(f"http://127.0.0.1:{port}/ready")
            elif words[0] == "idcf":
                assert run([sys.executable, "-m", "idcf", *words[1:]], folder)
            elif words[0] == "curl":
                body = words[words.index("-d") + 1].encode()
                with urllib.request.urlopen(words[2], body, timeout=10) as answer:
                    found = json.load(answer)["items"]
                assert len(found) == 3
                assert found[0]["source"] == "posterior"
                asked += 1
    finally:
        if server:
            server.terminate()
            server.wait(10)
    assert asked == 1
    assert (folder / "rows.json").exists()


def _await(address: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} does not answer")


def test_the_targets_exist() -> None:
    made = [c.split()[1] for c in commands() if c.startswith("make ")]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert made == ["demo", "serve", "test"]
    for target in made:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_linked_files_exist() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / path).exists(), path


def test_the_table_says_what_the_rows_say() -> None:
    """And the paper's lines what the paper says. `idcf-dot` is in no table of the paper."""
    ours: dict[tuple[str, ...], list[float]] = {}
    for dataset in ("douban", "ml-100k", "ml-1m"):
        for r in results_store.records(ROOT / "experiments" / "results", dataset):
            if (r.preset, r.metric) == ("clean", "rmse") and r.split.endswith("delta=30"):
                ours.setdefault((r.model, dataset, r.users), []).append(r.value)
    theirs: dict[tuple[str, ...], float] = {}
    for block in (b for spec in ("table2", "table4") for b in load_all()[spec].paper):
        for name, values in block.systems.items():
            for column, value in zip(block.columns, values, strict=True):
                users, metric = column.split()
                if metric == "rmse" and isinstance(value, float):
                    theirs[name, block.dataset, users] = value
    columns = [(d, u) for d in ("douban", "ml-100k", "ml-1m") for u in ("new", "few-shot", "all")]
    (table,) = re.findall(r"\n\| \| Douban New.*?\n\n", TEXT, re.S)
    checked = set()
    for line in table.strip().splitlines()[2:]:
        label, *cells = (x.strip() for x in line.strip("|").split("|"))
        for (dataset, users), cell in zip(columns, cells, strict=True):
            if label == "paper, best of all its systems":
                value = min(v for (_, d, u), v in theirs.items() if (d, u) == (dataset, users))
            elif label.startswith("paper, "):
                value = theirs[label.removeprefix("paper, ").lower(), dataset, users]
            elif (
                name := re.sub(r"^[*`]*([a-z -]+).*", r"\1", label).replace(" ", "-")
            ) in all_models():
                if name == "idcf-dot":
                    continue
                value = float(np.mean(ours[name, dataset, users]))
            else:
                raise AssertionError(f"who is {label!r}?")
            checked.add(label)
            assert abs(float(cell.strip("*")) - value) < 0.00051, (label, dataset, users, value)
    assert len(checked) == 9
