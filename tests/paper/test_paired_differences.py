"""Differences to the best simple baseline: paired over users, stored, and marked when outdated."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from tables_world import copy_results, small_dataset

from idcf.data.datasets.catalog import DATASET_SOURCES
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import ModelAssignment, compute_metrics
from idcf.evaluation.protocol import SplitRule, split_name, standard_split
from idcf.metrics import auc_contributions, auc_interval, paired_difference
from idcf.paper import pages, paired_differences, results_store
from idcf.paper.results_store import PairedDifference
from idcf.training.train import TrainingJob, train

SPLIT = split_name(DATASET_SOURCES["ml-100k"], SplitRule())
BIAS_KEY = ("ml-100k", SPLIT, "bias", "clean", "new", "rmse")


def read_differences(results: Path) -> dict[tuple[object, ...], PairedDifference]:
    """Return the stored differences of the small ML-100K."""
    return results_store.read_lines(results, PairedDifference, "ml-100k")


def test_differences_are_paired_over_users(stored_results: Path) -> None:
    lines = read_differences(stored_results)
    line = lines[BIAS_KEY]
    assert (line.baseline, line.seeds) == ("item-mean", 2)  # users have no biases in this data
    split, _ = standard_split(small_dataset("ml-100k"))
    evaluation_set = EvaluationSet.from_split(split, split.query_users)
    differences = []
    for seed in range(2):
        rmse = {}
        for name in ("bias", "item-mean"):
            model = train(name, TrainingJob(split, seed=seed)).model
            metrics = compute_metrics(evaluation_set, [ModelAssignment(model, split.query_users)])
            rmse[name] = metrics["rmse"].interval.value
        differences.append(rmse["bias"] - rmse["item-mean"])
    assert line.difference == pytest.approx(np.mean(differences), abs=1e-5)
    assert line.low <= line.difference <= line.high
    models = {x.model for x in lines.values() if (x.users, x.metric) == ("new", "rmse")}
    assert models == {"bias"}


def test_differences_stay_where_per_user_values_are_missing(
    stored_results: Path, tmp_path: Path
) -> None:
    results = copy_results(stored_results, tmp_path)
    before = read_differences(results)
    assert paired_differences.update_differences(results, "ml-100k") == 0  # nothing changed
    for path in (results / ".per-user").rglob("*.npz"):
        path.unlink()
    (results / "ml-100k.paired.jsonl").write_text(
        "".join(json.dumps({**asdict(x), "options": "old"}) + "\n" for x in before.values())
    )
    assert paired_differences.update_differences(results, "ml-100k") == 0
    assert read_differences(results).keys() == before.keys()


def test_a_difference_is_replaced_only_by_one_of_more_seeds(
    stored_results: Path, tmp_path: Path
) -> None:
    results = copy_results(stored_results, tmp_path)
    before = read_differences(results)
    first, second = (
        sorted((results / ".per-user").rglob(f"bias.clean.new.{seed}.*"))[0] for seed in (0, 1)
    )
    first_values = first.read_bytes()
    first.unlink()
    assert paired_differences.update_differences(results, "ml-100k") == 0
    assert read_differences(results) == before  # one seed does not replace two
    (results / "ml-100k.paired.jsonl").unlink()
    assert paired_differences.update_differences(results, "ml-100k")
    one_seed = read_differences(results)[BIAS_KEY]
    assert one_seed.seeds == 1
    second.unlink()
    first.write_bytes(first_values)
    assert paired_differences.update_differences(results, "ml-100k") == 0
    assert read_differences(results)[BIAS_KEY] == one_seed  # nor does one other seed replace one


def test_an_outdated_difference_is_marked(stored_results: Path, tmp_path: Path) -> None:
    results = copy_results(stored_results, tmp_path)
    assert "†" not in _bias_difference_cells(results)
    lines = [replace(x, options="old/old") for x in read_differences(results).values()]
    results_store.rewrite_lines(results, PairedDifference, "ml-100k", lines)
    metrics = {x.metric for x in lines if (x.model, x.users) == ("bias", "new")}
    assert _bias_difference_cells(results).count("†") == len(metrics)


def _bias_difference_cells(results: Path) -> str:
    """Return the cells of the column "against" of `bias`, joined."""
    text = pages.render_pages(results)["table4.md"]
    return "".join(x.split("|")[-3] for x in text.splitlines() if x.startswith("| bias"))


def test_pooled_auc_can_be_paired() -> None:
    """Users' contributions average to the AUC, and their bootstrap is as wide as its interval."""
    rng = np.random.default_rng(0)
    user, label = np.repeat(np.arange(300), 12), rng.random(3600) < 0.3
    score = label + rng.normal(0, 1.5, 3600) + np.repeat(rng.normal(0, 0.5, 300), 12)
    contributions, pooled = auc_contributions(user, score, label), auc_interval(user, score, label)
    assert contributions.mean() == pytest.approx(pooled.value)
    constant = auc_contributions(user, np.zeros(3600), label)
    difference = paired_difference(contributions, constant, rng=np.random.default_rng(1))
    assert difference.value == pytest.approx(pooled.value - 0.5)
    width = pooled.high - pooled.low
    assert difference.high - difference.low == pytest.approx(width, rel=0.1)
