"""The comparison of list systems: how options are chosen, how a run goes on, what it writes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from idcf.data.split import Split, split_by_threshold
from idcf.metrics import PerUserMetric, paired_difference
from idcf.rng import random_stream
from idcf.testing.synthetic import checkerboard

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TABLE = checkerboard(
    120, 60, np.random.default_rng(0), rows_per_light_user=20, rows_per_heavy_user=40
)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module `benchmarks/list_baselines.py`."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("list_baselines")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of ratings."""
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    rows = zip(TABLE.user, TABLE.item, TABLE.rating, strict=True)
    lines = [f"u{u},i{i},{r:g}\n" for u, i, r in rows]
    path.write_text("user_id,item_id,rating\n" + "".join(lines), encoding="utf-8")
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark in its own process."""
    command = [sys.executable, str(FOLDER / "list_baselines.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file."""
    return [json.loads(x) for x in path.read_text(encoding="utf-8").splitlines()]


def split() -> Split:
    """A split whose test rows are the last quarter of the table."""
    is_test = np.random.default_rng(1).random(len(TABLE)) < 0.25
    return split_by_threshold(TABLE.where(~is_test), TABLE.where(is_test), 25)


def test_options_are_chosen_on_light_key_users_only(benchmark: ModuleType) -> None:
    whole = split()
    tuning = benchmark.light_user_split(whole, seed=0)
    counts, n_users = whole.train.user_counts(), len(TABLE.users)
    held_out = np.setdiff1d(whole.key_users, tuning.key_users)
    assert len(held_out) == round(len(whole.key_users) / 4)
    assert counts[held_out].max() <= counts[tuning.key_users].min()
    assert len(tuning.query_users) == benchmark.MAX_CUTS * len(held_out)
    assert tuning.query_users.min() == n_users
    rows_of = {u: set(whole.train.item[whole.train.user == u]) for u in held_out}
    new_lengths = counts[whole.query_users]
    for n, cut in enumerate(tuning.query_users):
        user = held_out[n // benchmark.MAX_CUTS]
        history, targets = (set(x.item[x.user == cut]) for x in (tuning.train, tuning.test))
        assert history | targets <= rows_of[user]
        assert not history & targets
        n_rows = len(rows_of[user])
        unknown = max(2, round(0.1 * n_rows))
        assert len(history) == n_rows - unknown if n % 2 else len(history) <= new_lengths.max()
        assert len(targets) == min(benchmark.MAX_TARGETS, n_rows - len(history))
    others = np.isin(tuning.train.user, tuning.key_users)
    assert others.sum() == counts[tuning.key_users].sum()
    assert set(tuning.train.user) == set(tuning.key_users) | set(tuning.query_users)
    other = benchmark.light_user_split(whole, seed=1)
    assert not np.array_equal(other.test.item, tuning.test.item)


def test_each_stage_starts_from_the_best_options(benchmark: ModuleType) -> None:
    task = benchmark.Task.from_split(split())

    def ndcg(**options: Any) -> float:
        model = benchmark.fit("ease", task.implicit, options, 0)
        train = task.implicit.train
        top = benchmark.top_unseen_items(model, task.users, train, benchmark.K, anonymous=True)
        return round(float(benchmark.metrics(top, task)["ndcg@20"].mean()), 4)

    regs, neighbors = (0.01, 3000.0, 30.0), (60, 1)
    first = {x: ndcg(reg=x, neighbors=2) for x in regs}
    best_reg = max(first, key=first.__getitem__)
    second = {x: ndcg(reg=best_reg, neighbors=x) for x in neighbors}
    stages = ({"reg": regs}, {"neighbors": neighbors})
    system = benchmark.System("ease", stages, {"neighbors": 2})
    options, trials = benchmark.choose_options(system, task, 0)
    assert trials == [
        *({"reg": k, "ndcg@20": v} for k, v in first.items()),
        *({"neighbors": k, "ndcg@20": v} for k, v in second.items()),
    ]
    assert options == {"neighbors": max(second, key=second.__getitem__), "reg": best_reg}
    assert len(set(first.values())) == 3
    assert len(set(second.values())) == 2


def test_a_run_goes_on_where_it_ended(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "lists.jsonl"
    first = run(str(file), "--systems", "popularity,ease,ease-ratings", "--out", str(out))
    assert first.returncode == 0, first.stderr
    before = rows(out)
    assert [x["system"] for x in before] == ["popularity", "ease", "ease-ratings"]
    systems = "popularity,ease,idcf-takeup,implicit ALS"
    second = run(str(file), "--systems", systems, "--out", str(out))
    assert second.returncode == 0, second.stderr
    after = rows(out)
    assert after[:3] == before
    assert [x["system"] for x in after[3:5]] == ["idcf-takeup", "implicit ALS"]
    by_system = {x["system"]: x for x in after if "seed" in x}
    assert by_system["ease"]["ndcg@20"] > by_system["popularity"]["ndcg@20"]
    best = max(by_system["ease"]["trials"], key=lambda x: x["ndcg@20"])
    assert by_system["ease"]["options"]["reg"] == best["reg"]
    differences = {x["system"]: x for x in after if "seeds" in x}
    assert set(differences) >= {"popularity", "ease", "ease-ratings"}
    value, low, high = differences["popularity"]["idcf-takeup minus it, ndcg@20"]
    assert low <= value <= high
    expected = by_system["idcf-takeup"]["ndcg@20"] - by_system["popularity"]["ndcg@20"]
    assert value == pytest.approx(expected, abs=2e-4)
    table = run("--table", str(out)).stdout
    assert all(f"| {x} |" in table for x in ("idcf-takeup", "popularity", "ease"))
    assert f"{by_system['ease']['ndcg@20']:.4f}" in table


def test_a_system_that_cannot_run_says_why(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = benchmark.Task.from_split(split())
    monkeypatch.setenv("IDCF_PEERS", "")
    dense = benchmark.System("x", max_dense_items=50)
    assert benchmark.reason_not_to_run(dense, task) == "a dense matrix of 60 x 60 items"
    slow = benchmark.System("x", max_items=50)
    assert "60 items takes too long" in benchmark.reason_not_to_run(slow, task)
    missing = benchmark.System("x", library="no_such_library")
    assert "is not installed: set IDCF_PEERS" in benchmark.reason_not_to_run(missing, task)
    implicit = benchmark.Task(task.implicit, task.implicit, task.users)
    rated = benchmark.System("ease", reads_ratings=True)
    assert benchmark.reason_not_to_run(rated, implicit) == "the dataset has no ratings"
    assert benchmark.reason_not_to_run(rated, task) is None


def test_differences_average_the_seeds_of_a_user(benchmark: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "lists.jsonl"
    rng = np.random.default_rng(0)
    users = [np.arange(0, 30), np.arange(10, 40)]
    values: dict[str, list[np.ndarray]] = {"idcf-takeup": [], "ease": []}
    for seed, part in enumerate(users):
        for system, drawn in values.items():
            row = {"dataset": "d", "seed": seed, "system": system}
            drawn.append(rng.random(30))
            path = benchmark.user_file(out, row)
            path.parent.mkdir(exist_ok=True)
            np.savez(path, users=part, **dict.fromkeys(benchmark.METRICS, drawn[-1]))
            benchmark.append_row(out, row)
    benchmark.add_differences(out)
    averages = []
    for first, second in values.values():
        mean = [
            np.mean([*first[users[0] == u], *second[users[1] == u]]) for u in range(40)
        ]  # users 10 to 29 have two values
        averages.append(PerUserMetric.from_values(np.array(mean)))
    expected = paired_difference(*averages, rng=random_stream(0, "bootstrap"))
    (row,) = (x for x in rows(out) if "seeds" in x)
    assert row["seeds"] == [0, 1]
    assert row["idcf-takeup minus it, recall@20"] == pytest.approx(list(expected), abs=1e-4)


def test_an_unknown_system_is_an_error(tmp_path: Path) -> None:
    process = run("ml-100k", "--systems", "easy", "--out", str(tmp_path / "lists.jsonl"))
    assert process.returncode == 2
    assert "no system named easy; known: idcf-takeup" in process.stderr


def test_another_library_gives_the_lists_of_the_same_method(benchmark: ModuleType) -> None:
    """Cosines of whole columns: `implicit` and item-kNN without shrinkage."""
    if not benchmark.has_library("implicit"):
        pytest.skip("IDCF_PEERS names no Python with implicit")
    task = benchmark.Task.from_split(split())
    peer = benchmark.System("CosineRecommender", library="implicit")
    system = benchmark.System("item-knn")
    (theirs,) = benchmark.rank(peer, task, [{"K": 60}], 0)
    (ours,) = benchmark.rank(system, task, [{"neighbors": 60, "reg": 0.0}], 0)
    assert (theirs.top == ours.top).mean() > 0.95  # the order of close scores may differ
    history = task.implicit.train.history(task.users)
    for row, items in zip(
        theirs.top, np.split(history.items.numpy(), history.offsets[1:-1]), strict=True
    ):
        assert not set(row) & set(items)
