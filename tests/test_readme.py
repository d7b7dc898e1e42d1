"""The README as written: its Python runs, its commands run, its targets exist.

python tests/test_readme.py --write    # write the list that the example prints, and the main table
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import readme_table
import results_page

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
    """A folder with the tables that the README and the executed pages of the site use."""
    write_tables(tmp_path)
    return tmp_path


def write_tables(folder: Path) -> None:
    location = ROOT / "docs" / "_ext" / "example_data.py"
    spec = importlib.util.spec_from_file_location("example_data", location)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_example_files(folder)


def run(words: list[str], folder: Path) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


ROW = re.compile(r"(\d+) (\S+) (\d+)% (\d\.\d) ± (\d\.\d)")
# the values depend on the processor: the chain of the default model draws others
PROBABILITY_TOLERANCE, RATING_TOLERANCE, STD_TOLERANCE = 0.015, 0.2, 0.15
SCORE_TOLERANCE = 0.05  # relative; items whose scores are closer may change positions
LONGER_LIST = """
import json
best = recommender.recommend(history, n=20, return_std=True)
print(json.dumps({x.item_id: [x.score, x.probability, x.rating, x.std] for x in best}))
"""


def shown_list() -> str:
    return next(block for block in blocks("text") if "±" in block and "──►" not in block)


def parse_list(text: str) -> list[tuple[str, float, float, float]]:
    """Item, probability, rating and standard deviation of each row; the ranks count from 1."""
    rows = []
    for rank, line in enumerate(text.splitlines(), 1):
        match = ROW.fullmatch(line)
        assert match, line
        assert int(match[1]) == rank
        rows.append((match[2], int(match[3]) / 100, float(match[4]), float(match[5])))
    return rows


def check_list(shown: str, printed: str, here: dict[str, list[float]]) -> None:
    """Compare the list of the page with values {item: [score, probability, rating, std]} computed
    here: each number within a tolerance, and the order where scores are clearly apart."""
    rows = parse_list(shown)
    assert len(parse_list(printed)) == len(rows)
    tolerances = (PROBABILITY_TOLERANCE, RATING_TOLERANCE, STD_TOLERANCE)
    remaining = {item: score for item, (score, *_) in here.items()}
    for item, *numbers in rows:
        assert item in remaining, f"{item} is not among the best {len(here)}"
        for number, value, tolerance in zip(numbers, here[item][1:], tolerances, strict=True):
            assert value == pytest.approx(number, abs=tolerance), item
        best = max(remaining.values())
        assert remaining.pop(item) >= best - SCORE_TOLERANCE * abs(best), f"{item} is too high"


def test_the_python_prints_what_the_page_shows(folder: Path) -> None:
    (code,) = blocks("python")
    *lines, values = run(
        [sys.executable, "-W", "error", "-c", code + LONGER_LIST], folder
    ).splitlines()
    check_list(shown_list(), "\n".join(lines), json.loads(values))


def test_a_list_differs_if_numbers_or_items_do() -> None:
    shown = "1 a 20% 4.0 ± 0.5\n2 b 10% 4.5 ± 0.5\n"
    here = {"a": [0.6, 0.2, 4.0, 0.5], "b": [0.5, 0.1, 4.5, 0.5], "c": [0.3, 0.1, 3.0, 0.5]}
    check_list(shown, shown, here)
    check_list(shown, shown, here | {"b": [0.61, 0.11, 4.6, 0.55]})  # before "a", but hardly
    changes: list[dict[str, list[float]]] = [
        {"b": [0.7, 0.1, 4.5, 0.5]},
        {"c": [0.55, 0.1, 4.5, 0.5]},
        {"a": [0.6, 0.25, 4.0, 0.5]},
        {"a": [0.6, 0.2, 4.3, 0.5]},
        {"a": [0.6, 0.2, 4.0, 0.8]},
    ]
    for change in changes:
        with pytest.raises(AssertionError):
            check_list(shown, shown, here | change)
    for printed in (shown[:18], shown.replace("2 b", "3 b"), shown.replace("%", "")):
        with pytest.raises(AssertionError):
            check_list(shown, printed, here)


def test_the_commands_run_in_order(folder: Path) -> None:
    """Each command reads what the ones before it wrote; the server answers the request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    server: subprocess.Popen[bytes] | None = None
    n_requests = 0
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
                with urllib.request.urlopen(words[2], body, timeout=10) as response:
                    items = json.load(response)["items"]
                assert len(items) == 3
                assert items[0]["source"] == "posterior"
                n_requests += 1
    finally:
        if server:
            server.terminate()
            server.wait(10)
    assert n_requests == 1


def _await(address: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{address} does not answer")


def test_the_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make (\w+)`", TEXT))
    assert {"demo", "test", "docs"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_linked_files_exist() -> None:
    for path in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / path).exists(), path


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) <= 120


def shown_table() -> str:
    (table,) = re.findall(r"\n(\| \| Douban.*?)\n\n", TEXT, re.S)
    return str(table)


def test_the_table_shows_the_committed_rows() -> None:
    """Every cell is a mean with its interval, or the number that the paper printed."""
    assert shown_table() == readme_table.main_table(), "python tests/test_readme.py --write"


def test_the_sentence_below_the_table_is_that_of_the_rows() -> None:
    text = " ".join(TEXT.split())
    for name in ("Douban", "ML-100K", "ML-1M"):
        assert f"{readme_table.lead(name)} on {name}" in text, readme_table.lead(name)
    n_draws = {name: readme_table.n_draws(name) for name in readme_table.NAMES}
    assert n_draws["Douban"] == 0
    single = [name for name, n in n_draws.items() if name != "Douban" and not n]
    for name in single:
        assert f"{name} is one split (" in text


def test_the_shares_of_lists_and_intervals_are_those_of_the_rows() -> None:
    text = " ".join(TEXT.split())
    rows = [x for x in report_rows("lists") if x.get("dataset") == "ml-100k" and "order" in x]
    share = {
        order: round(100 * fmean(x["recall"] for x in rows if x["order"] == order))
        for order in ("default", "popularity", "stars")
    }
    assert f"the first twenty items hold {share['default']} % by default" in text
    assert f"{share['popularity']} % in order of popularity" in text
    assert f"{share['stars']} % in the order of expected ratings" in text
    coverage = [
        100 * row.value
        for dataset in ("douban", "ml-100k", "ml-1m")
        for row in results_page.rows_of(dataset, "idcf-bayes", "new", "cover90")
    ]
    assert f"hold {min(coverage):.0f} to {max(coverage):.0f} % of new users' ratings" in text


def test_speeds_are_those_of_the_rows() -> None:
    (section,) = re.findall(r"## How fast\?\n(.*?)\n## ", TEXT, re.S)
    section = " ".join(section.split())
    speed, load = ({x["name"]: x["value"] for x in report_rows(name)} for name in ("speed", "load"))
    one, many = "one new user p50", "batch, dicts in and lists out"
    ten = f"{speed[f'default list {one}']:.2f} ms"
    assert f"{ten}, with standard deviations" in section
    for name, text in (
        (f"default list with deviations {one}", "with standard deviations {:.2f} ms"),
        (f"default list {many}", "{:,.0f} users/s."),
        (f"default list of 100,000 items {one}", "100,000 items {:.2f} ms"),
        (f"default list of 1,000,000 items {one}", "from a million {:.1f} ms"),
        (f"ML-1M: als of idcf {one}", "`als` {:.2f} ms"),
        (f"ML-1M: als of idcf {many}", "and {:,.0f} users/s, `implicit`"),
        (f"ML-1M: implicit {one}", "from a ready matrix, {:.2f} ms"),
        ("ML-1M: implicit batch, rows in and out", "and {:,.0f}."),
    ):
        assert text.format(speed[name]) in section, name
    for name, text in (
        ("idcf-bayes over HTTP", "{:,.0f} lists a second, p99 {:.0f} ms, {:.0f} % of"),
        ("idcf-dot over HTTP", "`idcf-dot` {:,.0f}, {:.0f} ms, {:.0f} %"),
        ("implicit behind FastAPI over HTTP", "plain FastAPI {:,.0f}, {:.0f} ms"),
    ):
        name += ", 64 connections"
        share = 100 * load[f"{name}, of in process"]
        assert text.format(load[name], load[f"{name}, p99"], share) in section, name


def report_rows(name: str) -> list[dict[str, Any]]:
    """Return the rows of a file of benchmarks/reports."""
    text = (ROOT / f"benchmarks/reports/{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(x) for x in text.splitlines()]


def main(arguments: list[str]) -> None:
    """Write what the example of the README prints, and the main table, into the README."""
    if arguments != ["--write"]:
        raise SystemExit(f"usage: {sys.argv[0]} --write")
    (code,) = blocks("python")
    with tempfile.TemporaryDirectory() as name:
        write_tables(Path(name))
        printed = run([sys.executable, "-W", "error", "-c", code], Path(name))
    text = TEXT.replace(f"```text\n{shown_list()}```", f"```text\n{printed}```")
    text = text.replace(shown_table(), readme_table.main_table())
    (ROOT / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
