"""Differences to the best simple system: paired over users, kept, and marked when they are old."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tables_world import copy, small

from idcf.data.datasets.catalog import SOURCES
from idcf.evaluation.measure import Exam, Part, measure
from idcf.evaluation.protocol import Cut, split_name, standard_split
from idcf.metrics import auc_interval, auc_parts, difference
from idcf.paper import pages, paired_differences, results_store
from idcf.paper.results_store import Pair
from idcf.training.train import Job, train


def test_differences_are_paired_over_users(made: Path) -> None:
    lines = results_store.read(made, Pair, "ml-100k")
    place = ("ml-100k", split_name(SOURCES["ml-100k"], Cut()))
    found = lines[(*place, "bias", "clean", "new", "rmse")]
    assert (found.baseline, found.seeds) == ("item-mean", 2)  # nobody is harsh in this world
    split, _ = standard_split(small("ml-100k"))
    exam = Exam.of(split, split.query_users)
    gaps = []
    for seed in range(2):
        models = [train(name, Job(split, seed=seed)).model for name in ("bias", "item-mean")]
        one, two = (measure(exam, [Part(m, split.query_users)])["rmse"] for m in models)
        gaps.append(one.interval.value - two.interval.value)
    assert found.difference == pytest.approx(np.mean(gaps), abs=1e-5)
    assert found.low <= found.difference <= found.high
    mine = {p.model for p in lines.values() if (p.users, p.metric) == ("new", "rmse")}
    assert mine == {"bias"}


def test_differences_stay_where_the_values_are_gone(made: Path, tmp_path: Path) -> None:
    results = copy(made, tmp_path)
    before = results_store.read(results, Pair, "ml-100k")
    assert paired_differences.update(results, "ml-100k") == 0  # nothing is computed twice
    for path in (results / ".per-user").rglob("*.npz"):
        path.unlink()
    (results / "ml-100k.paired.jsonl").write_text(
        "".join(json.dumps({**asdict(x), "options": "old"}) + "\n" for x in before.values())
    )
    assert paired_differences.update(results, "ml-100k") == 0
    assert results_store.read(results, Pair, "ml-100k").keys() == before.keys()


def test_the_seeds_at_hand_are_paired_where_they_are_more_than_before(
    made: Path, tmp_path: Path
) -> None:
    results = copy(made, tmp_path)
    whole = results_store.read(results, Pair, "ml-100k")
    one, two = (sorted((results / ".per-user").rglob(f"bias.clean.new.{x}.*")) for x in (0, 1))
    kept = one[0].read_bytes()
    one[0].unlink()
    assert paired_differences.update(results, "ml-100k") == 0
    assert results_store.read(results, Pair, "ml-100k") == whole  # two seeds are more than one
    (results / "ml-100k.paired.jsonl").unlink()
    assert paired_differences.update(results, "ml-100k")
    [place] = [x for x in whole if x[2:] == ("bias", "clean", "new", "rmse")]
    half = results_store.read(results, Pair, "ml-100k")[place]
    assert half.seeds == 1
    two[0].unlink()
    one[0].write_bytes(kept)
    assert paired_differences.update(results, "ml-100k") == 0  # another one is not more either
    assert results_store.read(results, Pair, "ml-100k")[place] == half


def test_a_difference_to_a_run_of_the_past_is_marked(made: Path, tmp_path: Path) -> None:
    results = copy(made, tmp_path)
    assert "†" not in _differences(results)
    lines = [
        replace(x, options="old/old") for x in results_store.read(results, Pair, "ml-100k").values()
    ]
    results_store.rewrite(results, Pair, "ml-100k", lines)
    assert _differences(results).count("†") == len({x.users for x in lines if x.model == "bias"})


def _differences(results: Path) -> str:
    """The last but one column of the lines that say how `bias` does."""
    text = pages.render(results)["table4.md"]
    return "".join(x.split("|")[-3] for x in text.splitlines() if x.startswith("| bias"))


def test_pooled_auc_can_be_paired() -> None:
    """What users add averages to the AUC, and its bootstrap is as wide as the known interval."""
    rng = np.random.default_rng(0)
    user, label = np.repeat(np.arange(300), 12), rng.random(3600) < 0.3
    score = label + rng.normal(0, 1.5, 3600) + np.repeat(rng.normal(0, 0.5, 300), 12)
    each, whole = auc_parts(user, score, label), auc_interval(user, score, label)
    assert each.mean() == pytest.approx(whole.value)
    worse = auc_parts(user, np.zeros(3600), label)
    found = difference(each, worse, rng=np.random.default_rng(1))
    assert found.value == pytest.approx(whole.value - 0.5)
    assert found.high - found.low == pytest.approx(whole.high - whole.low, rel=0.1)
