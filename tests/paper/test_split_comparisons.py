"""Several splits of one dataset: runs, differences to the reference, their correction, the page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from tables_world import copy_results, small_dataset

from idcf.data.datasets.catalog import load_dataset
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import ModelAssignment, compute_metrics
from idcf.evaluation.protocol import TEST_SHARE, TEST_SHARE_BY_DATASET, standard_split
from idcf.metrics import difference_over_splits, holm
from idcf.paper import pages, results_store, split_comparisons, table_spec
from idcf.paper.reproduce import describe_progress, missing_runs, reproduce
from idcf.paper.results_store import PairedDifference, SplitDifference, StoredRow
from idcf.paper.run_plan import Run, plan_runs
from idcf.paper.split_pages import SplitResults
from idcf.paper.table_spec import find_table, load_tables
from idcf.rng import random_stream
from idcf.training.train import TrainingJob, train

TABLES_FOLDER = table_spec._FOLDER
N_DRAWS, RATIO = 3, 0.25
TABLE = f"""
title = "Several splits"
shows = "x"
datasets = ["ml-100k"]
groups = ["new"]
metrics = ["rmse", "ndcg"]
reference = "bias"
[repeats]
ml-100k = {{ draws = {N_DRAWS}, test_to_train = {RATIO} }}
[systems]
item-mean = ["clean"]
popularity = ["clean"]
bias = ["clean"]
"""
RMSE_KEY = ("several", "ml-100k", "bias", "item-mean", "new", "rmse")


@pytest.fixture(scope="module", autouse=True)
def one_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the table above the only one."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "several.toml").write_text(TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_spec, "_FOLDER", folder)
        load_tables.cache_clear()
        yield
    load_tables.cache_clear()


@pytest.fixture(scope="module")
def split_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results of the table; copy it before writing to it."""
    results = tmp_path_factory.mktemp("split-results")
    assert not reproduce(planned_runs(), results, load_dataset=small_dataset).failed
    return results


def planned_runs() -> list[Run]:
    return plan_runs(load_tables().values())


def read_differences(results: Path) -> dict[tuple[object, ...], SplitDifference]:
    return results_store.read_lines(results, SplitDifference, "ml-100k")


def test_a_run_is_planned_for_each_draw() -> None:
    runs = planned_runs()
    names = [f"random-20%-seed{n}, delta=30" for n in range(1, N_DRAWS + 1)]
    assert [r.split for r in runs if r.model == "bias"] == names
    assert {r.seed for r in runs} == {0}
    assert len({str(r) for r in runs}) == len(runs) == 3 * N_DRAWS
    assert [r.groups() for r in runs] == [["new"]] * len(runs)
    few = plan_runs(load_tables().values(), n_draws=2)
    assert {r.split for r in few} == set(names[:2])


def test_a_difference_is_paired_within_each_draw(split_results: Path) -> None:
    lines = read_differences(split_results)
    line = lines[RMSE_KEY]
    assert line.n_runs == N_DRAWS
    pairs, differences = [], []
    for draw in range(1, N_DRAWS + 1):
        split, _ = standard_split(small_dataset("ml-100k"), draw=draw)
        evaluation_set = EvaluationSet.from_split(split, split.query_users)
        results = {}
        for name in ("bias", "item-mean"):
            model = train(name, TrainingJob(split)).model
            metrics = compute_metrics(evaluation_set, [ModelAssignment(model, split.query_users)])
            results[name] = metrics["rmse"]
        ours, other = results["bias"], results["item-mean"]
        differences.append(ours.interval.value - other.interval.value)
        assert ours.per_user is not None
        assert other.per_user is not None
        pairs.append((ours.per_user, other.per_user))
    assert line.difference == pytest.approx(np.mean(differences), abs=1e-5)
    expected = difference_over_splits(
        pairs, statistic="rmse", test_to_train=RATIO, rng=random_stream(0, "bootstrap")
    )
    assert (line.low, line.high) == pytest.approx(expected.difference[1:], abs=1e-4)
    assert line.p_value == pytest.approx(expected.p_value, abs=1e-3)
    # popularity predicts no ratings; the reference is not compared with itself
    assert {(x.model, x.metric) for x in lines.values()} == {
        ("item-mean", "rmse"),
        ("item-mean", "ndcg"),
        ("popularity", "ndcg"),
    }
    # no differences to the best simple system within one draw
    assert results_store.read_lines(split_results, PairedDifference, "ml-100k") == {}


def change_rows(results: Path, model: str, shift: float) -> None:
    rows = [
        replace(r, value=r.value + shift) if r.model == model else r
        for r in results_store.latest_rows(results, "ml-100k")
    ]
    results_store.rewrite_lines(results, StoredRow, "ml-100k", rows)


def test_a_difference_of_changed_rows_is_marked_until_it_is_computed_again(
    split_results: Path, tmp_path: Path
) -> None:
    """The settings are equal, but the code may have changed."""
    results = copy_results(split_results, tmp_path)
    assert split_comparisons.update_differences(results, "ml-100k") == 0  # nothing changed
    change_rows(results, "item-mean", 0.5)
    assert "] †" in pages.render_pages(results)["several.md"]
    change_rows(results, "item-mean", -0.5)
    assert "] †" not in pages.render_pages(results)["several.md"]
    wrong = [replace(x, difference=9.0) for x in read_differences(results).values()]
    results_store.rewrite_lines(results, SplitDifference, "ml-100k", wrong)
    assert split_comparisons.update_differences(results, "ml-100k") == 3
    assert read_differences(results) == read_differences(split_results)
    for path in (results / ".per-user").rglob("*.npz"):
        path.unlink()
    results_store.rewrite_lines(results, SplitDifference, "ml-100k", wrong)
    assert split_comparisons.update_differences(results, "ml-100k") == 0
    assert {x.difference for x in read_differences(results).values()} == {9.0}


def test_the_page_shows_means_and_corrected_p_values(split_results: Path) -> None:
    page = pages.render_pages(split_results)["several.md"]
    section = next(x for x in page.split("\n## ") if x.startswith("ml-100k") and "rmse" in x[:99])
    lines = {x.split(" | ")[0].strip("| "): x for x in section.splitlines() if x[:1] == "|"}
    rows = [
        r
        for r in results_store.latest_rows(split_results, "ml-100k")
        if (r.model, r.metric) == ("item-mean", "rmse")
    ]
    assert f"{fmean(r.value for r in rows):.3f} [" in lines["item-mean"]
    assert lines["item-mean"].endswith(f"| {N_DRAWS} |")
    assert "reference" in lines["bias"]
    assert "not run" in lines["popularity"]
    differences = read_differences(split_results)
    corrected = SplitResults.load(split_results, find_table("several")).corrected_p_values
    expected = holm([x.p_value for x in differences.values()])
    assert list(corrected.values()) == pytest.approx(expected)
    assert "3 comparisons with bias are corrected for" in page


def test_runs_of_fewer_draws_are_counted(split_results: Path, tmp_path: Path) -> None:
    results = copy_results(split_results, tmp_path)
    rows = [r for r in results_store.latest_rows(results, "ml-100k") if "seed3" not in r.split]
    results_store.rewrite_lines(results, StoredRow, "ml-100k", rows)
    page = pages.render_pages(results)["several.md"]
    assert f"2 of {N_DRAWS} |" in page
    runs = planned_runs()
    missing = missing_runs(runs, results)
    [state] = describe_progress(load_tables().values(), runs, missing)
    assert (state.name, state.n_runs, state.n_done, len(state.missing)) == ("several", 9, 6, 3)
    assert state.lines()[0] == "several: 6 of 9 runs done"
    assert "random-20%-seed3, delta=30: bias" in "".join(state.lines())


def test_the_ratio_of_test_to_training_rows_is_that_of_the_protocol() -> None:
    for path in TABLES_FOLDER.glob("splits*.toml"):
        table = table_spec.load_table(path)
        for dataset, repeats in table.repeats.items():
            if not repeats.draws:
                continue
            if dataset in ("ml-100k", "ml-1m"):
                share = TEST_SHARE_BY_DATASET.get(dataset, TEST_SHARE)
                assert repeats.test_to_train == pytest.approx(share / (1 - share), abs=1e-4)


@pytest.mark.accuracy
@pytest.mark.skipif(not os.environ.get("IDCF_DATA"), reason="IDCF_DATA names no folder")
def test_the_ratio_of_amazon_beauty() -> None:
    split, _ = standard_split(load_dataset("amazon-beauty", progress=False), draw=1)
    path = TABLES_FOLDER / "splits-implicit.toml"
    ratio = table_spec.load_table(path).repeats["amazon-beauty"].test_to_train
    assert len(split.test) / len(split.train) == pytest.approx(ratio, abs=1e-4)
