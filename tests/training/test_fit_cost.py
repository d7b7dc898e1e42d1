"""The estimates of memory against fits in processes of their own, and the check of a limit."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import board

from idcf import ConfigError, Recommender
from idcf.data.split import default_key_threshold, split_by_threshold
from idcf.training import fit_cost, memory
from idcf.training.fit_cost import (
    FitCost,
    TableSize,
    estimate_fit,
    format_seconds,
)
from idcf.training.memory import check_memory, free_memory, parse_memory

GIB = 2**30
SIZE = TableSize.from_numbers(1_000_000, 20_000, 10_000, implicit=False)
FIT = """
import re, sys
import numpy as np, torch
torch.set_num_threads(1)
from idcf import Recommender
from idcf.data.interactions import Interactions, Vocab
from idcf.training.fit_cost import TableSize, estimate_fit
n_users, n_items, n_rows, has_ratings = map(int, sys.argv[2:])
rng = np.random.default_rng(0)
item = np.minimum(n_items * rng.random(n_rows) ** 3, n_items - 1).astype(np.int64)
pairs = np.unique(rng.integers(n_users, size=n_rows) * n_items + item)
rating = rng.integers(1, 6, len(pairs)) if has_ratings else np.ones(len(pairs))
table = Interactions(Vocab(range(n_users)), Vocab(range(n_items)), pairs // n_items,
    pairs % n_items, rating.astype(np.float32), None, not has_ratings)
options = {"sweeps": 3, "burn_in": 1} if sys.argv[1] == "idcf-bayes" else {}
counts = table.user_counts()
size = TableSize.from_user_counts(counts, n_items, int(np.median(counts)), table.implicit)
cost = estimate_fit(sys.argv[1], size, options)
Recommender(sys.argv[1], device="cpu", **options).fit(table)
# not ru_maxrss, which begins with the memory of the process that started this one
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
print(cost.memory, int(peak[1]) * 1024)
"""


@pytest.mark.parametrize(
    ("model", "numbers"),
    [
        ("idcf-bayes", (4_000, 8_000, 200_000, 1)),  # both models; nearest items
        ("idcf-bayes", (6_000, 60_000, 150_000, 1)),  # a large catalogue: blocks of rows
        ("idcf-takeup", (4_000, 2_000, 100_000, 0)),  # one matrix of items
    ],
)
def test_the_memory_is_right_within_a_factor_of_two(
    model: str, numbers: tuple[int, int, int, int]
) -> None:
    command = [sys.executable, "-c", FIT, model, *map(str, numbers)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    estimated, peak = map(float, out.split())
    assert 0.5 < estimated / peak < 2, f"{estimated / GIB:.2f} of {peak / GIB:.2f} GiB"


def cost(size: TableSize = SIZE, name: str = "idcf-bayes", **options: object) -> FitCost:
    estimated = estimate_fit(name, size, options)
    assert estimated is not None
    return estimated


def test_costs_grow_with_the_table_and_the_options() -> None:
    base = cost()
    for field in ("rows", "items", "users"):
        larger = replace(SIZE, **{field: 4 * getattr(SIZE, field)})
        assert cost(larger).memory > base.memory
    assert cost(replace(SIZE, key_rows=1_100_000)).seconds > base.seconds
    assert cost(embedding_size=40).memory > base.memory
    assert cost(sweeps=320).seconds > 1.5 * base.seconds
    with_card = estimate_fit("idcf-bayes", SIZE, card_metrics=True)
    assert with_card is not None
    assert with_card.seconds > 1.5 * base.seconds
    assert estimate_fit("als", SIZE) is None


def test_without_ratings_the_model_that_would_be_fitted_is_estimated() -> None:
    size = TableSize.from_numbers(100_000, 2_000, 1_000, implicit=True)
    assert cost(size).model == "idcf-takeup"
    assert cost(size).memory == cost(size, "idcf-takeup").memory


def test_large_tables_cost_no_more_than_linear() -> None:
    sizes = [TableSize.from_numbers(20 * n, n, n // 10, implicit=False) for n in (10**6, 10**7)]
    first, second = map(cost, sizes)
    assert second.memory < 10.5 * first.memory
    assert second.seconds < 10.5 * first.seconds


def test_sizes_of_a_split_and_of_counts_agree() -> None:
    table = board(40, 24, 6, 14)
    split = split_by_threshold(table, table.where(np.zeros(len(table), bool)), 10)
    size = TableSize.from_split(split)
    assert size.key_users == len(split.key_users)
    assert size.key_rows == len(table.for_users(split.key_users))
    assert TableSize.from_user_counts(table.user_counts(), 24, 10, False) == size


def test_default_threshold() -> None:
    assert default_key_threshold(np.array([0, 3, 5, 9])) == 5
    assert default_key_threshold(np.array([100, 200])) == 30


def test_the_line_of_a_fit() -> None:
    line = str(FitCost("idcf-bayes", replace(SIZE, rows=1_000_209, key_users=5114), GIB, 200.0))
    expected = "1,000,209 rows, 5,114 key users, 10,000 items; needs about 1.0 GiB and 3 min"
    assert line == f"idcf-bayes: {expected}"
    texts = [format_seconds(x) for x in (0.1, 89, 100, 6000)]
    assert texts == ["1 s", "89 s", "2 min", "1.7 h"]


def test_a_fit_that_needs_too_much_is_refused_before_it_begins(monkeypatch) -> None:
    monkeypatch.setattr("idcf.training.train.train", lambda *a, **k: pytest.fail("was trained"))
    with pytest.raises(ConfigError, match=r"needs about 0\.\d GiB, more than the limit, 0\.0 GiB"):
        Recommender(device="cpu").fit(board(40, 24, 6, 14), memory="1MB")
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    monkeypatch.setattr(memory, "_resident", lambda: 0)
    with pytest.raises(ConfigError, match=r"half of what is free.*--memory.*key_users"):
        Recommender(device="cpu").fit(board(40, 24, 6, 14))


def test_the_cost_is_printed_with_progress(capsys) -> None:
    recommender = Recommender(device="cpu", sweeps=3, burn_in=1)
    recommender.fit(board(40, 24, 6, 14), progress=True, memory=64 * GIB)
    line = capsys.readouterr().err.splitlines()[0]
    assert re.match(r"idcf-bayes: \d+ rows, \d+ key users, 24 items; needs about 0\.\d GiB", line)
    recommender.fit(board(40, 24, 6, 14), memory="64 GiB")
    assert "needs about" not in capsys.readouterr().err


def test_without_numbers_of_the_system_nothing_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    check_memory(replace(cost(), memory=10**15), None)
    with pytest.raises(ConfigError):
        check_memory(replace(cost(), memory=10**15), "1TB")


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("4GiB", 4 * GIB), ("500mb", 500_000_000), ("1e9", 10**9), (7, 7), ("2 KiB", 2048)],
)
def test_texts_of_memory(text: str | int, n_bytes: int) -> None:
    assert parse_memory(text) == n_bytes


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "4 GG", "1.2.3GB", "nan", float("inf")])
def test_texts_that_are_no_memory(text: object) -> None:
    with pytest.raises(ConfigError, match="a text such as '4GiB'"):
        parse_memory(text)  # type: ignore[arg-type]


def write_system(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Make `memory` read a system of these files."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(memory, "_PROC", folder / "proc")
    monkeypatch.setattr(memory, "_CGROUP", folder / "cgroup")


MEMINFO = "MemTotal: 900 kB\nMemAvailable:     800 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 800 * 1024),
        ({"proc/meminfo": MEMINFO, "cgroup/memory.max": "max\n"}, 800 * 1024),
        (
            {
                "proc/meminfo": MEMINFO,
                "cgroup/memory.max": "5000",
                "cgroup/memory.current": "3000",
                "cgroup/memory.stat": "anon 1\ninactive_file 400\n",
            },
            2400,
        ),
        (
            {
                "proc/self/cgroup": "0::/job\n",
                "cgroup/job/memory.max": "700",
                "cgroup/job/memory.current": "600",
            },
            100,
        ),
        (
            {
                "cgroup/memory/memory.limit_in_bytes": "700",
                "cgroup/memory/memory.usage_in_bytes": "900",
            },
            0,
        ),
    ],
)
def test_free_memory_is_the_least_of_system_and_container(
    tmp_path: Path, monkeypatch, files: dict[str, str], free: int | None
) -> None:
    write_system(tmp_path, monkeypatch, files)
    assert free_memory() == free


def test_every_formula_has_a_model() -> None:
    for name in fit_cost._FORMULAS:
        implicit = name != "idcf-bayes"
        assert cost(replace(SIZE, implicit=implicit), name).model == name
