"""Runs as values: names, keys, the groups that they serve, and when stored rows cover them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tables_world import fast_runs

from idcf.evaluation.groups import USER_GROUPS
from idcf.paper import results_store, run_plan
from idcf.paper.run_plan import is_done, lacks_preset, plan_runs
from idcf.paper.table_spec import (
    find_table,
    is_paper_split,
    load_tables,
    paper_numbers,
    table_metrics,
)

ALL_RUNS = plan_runs(load_tables().values())


def test_names_and_keys_of_runs_are_unique() -> None:
    assert len({str(run) for run in ALL_RUNS}) == len(ALL_RUNS)
    assert len({run.key() for run in ALL_RUNS}) == len(ALL_RUNS)
    assert str(fast_runs()[0]) == "ml-100k delta=30: random (clean), new, seed 0"


def test_every_run_serves_a_group_of_its_training_mode() -> None:
    for run in ALL_RUNS[::7]:
        groups = run.groups()
        assert groups
        assert {USER_GROUPS[group] for group in groups} == {run.users}


def test_a_table_that_is_given_twice_gives_its_runs_once() -> None:
    table = find_table("table4")
    assert plan_runs([table, table], n_seeds=1) == plan_runs([table], n_seeds=1)
    assert plan_runs([]) == []


def test_random_has_one_seed_and_the_others_as_many_as_asked() -> None:
    for run_seeds in (1, 4):
        seeds = {run.model: run.seed for run in fast_runs(n_seeds=run_seeds)}
        assert seeds["random"] == 0
        assert seeds["bias"] == run_seeds - 1


def test_slow_systems_do_not_rank_the_catalogue() -> None:
    pairs_only = {model for table in load_tables().values() for model in table.pairs_only}
    assert pairs_only
    for run in ALL_RUNS[::5]:
        assert run.ranks_catalog() is (run.model not in pairs_only)


def test_only_the_preset_clean_is_never_lacking() -> None:
    assert lacks_preset("als", "published")
    assert not lacks_preset("nnmf", "published")
    assert not lacks_preset("als", "clean")
    assert not lacks_preset("random", "published")  # it has no settings at all


def test_rows_cover_a_run_only_if_they_are_complete_and_current(stored_results: Path) -> None:
    [*_, run] = fast_runs()
    rows = [
        row
        for row in results_store.latest_rows(stored_results, "ml-100k")
        if row.run_key() == run.key()
    ]
    assert is_done(run, rows)
    assert not is_done(run, [])
    assert not is_done(run, rows[1:])
    assert not is_done(run, [*rows[1:], replace(rows[0], options="old")])
    # complete by number, but another group of users is missing
    assert not is_done(run, [replace(row, users="all") for row in rows])


@dataclass
class _Options:
    size: int = 4
    sizes: tuple[int, ...] = (1, 2)
    names: list[str] = field(default_factory=lambda: ["a"])
    folder: Path | None = None


def test_only_changed_settings_are_in_the_fingerprint() -> None:
    assert run_plan._changed_fields(_Options()) == {}
    changed = _Options(size=5, sizes=(1,), names=["a", "b"], folder=Path("x"))
    expected = {"size": 5, "sizes": [1], "names": ["a", "b"], "folder": "x"}
    assert run_plan._changed_fields(changed) == expected


@pytest.mark.parametrize(
    ("dataset", "split", "expected"),
    [
        ("ml-100k", "u1, delta=30", True),
        ("ml-100k", "u2, delta=30", False),
        ("ml-100k", "u1, delta=50", False),
        ("ml-1m", "random-10%-seed7, delta=30", True),
        ("ml-1m", "random-10%-seed7, gamma=0.5", False),
        ("amazon-books", "official, delta=20", False),  # our copy is not the paper's
        ("my-data", "", False),
    ],
)
def test_the_splits_of_the_paper(dataset: str, split: str, expected: bool) -> None:
    assert is_paper_split(dataset, split) is expected


def test_numbers_of_other_splits_are_not_references() -> None:
    """Table 6 prints numbers of several splits; only the other tables are of the standard one."""
    values = {
        model: value
        for (dataset, users, metric, model), value in paper_numbers().numbers.items()
        if (dataset, users, metric) == ("ml-1m", "new", "rmse")
    }
    assert values["idcf-nn"] == 0.994
    assert "auc" in table_metrics("amazon-books")
    assert "auc" not in table_metrics("douban")
    assert table_metrics("no-such-dataset") == set()


def test_the_reason_with_the_most_names_decides() -> None:
    table = replace(
        find_table("table4"),
        not_run={"igmc": "slow", "igmc ml-1m": "slower", "ml-1m igmc published": "slowest"},
    )
    assert table.not_run_reason("ml-100k", "igmc", "clean") == "slow"
    assert table.not_run_reason("ml-1m", "igmc", "clean") == "slower"
    assert table.not_run_reason("ml-1m", "igmc", "published") == "slowest"
    assert table.not_run_reason("ml-1m", "bias", "clean") == ""


@pytest.mark.parametrize("model", ["gcmc", "idcf-gc"])
def test_a_revision_of_the_code_makes_the_rows_that_it_concerns_outdated(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digests() -> dict[tuple[str, str], str]:
        return {
            (preset, dataset): run_plan.settings_fingerprint(model, preset, dataset, "few-shot")
            for preset in ("clean", "published")
            for dataset in ("ml-100k", "ml-1m", "douban")
        }

    present = digests()
    monkeypatch.setattr(run_plan, "REVISIONS", ())
    changed = {key for key, value in digests().items() if value != present[key]}
    # `published` hides no edge, and on Douban `clean` drops none
    assert changed == {("clean", "ml-100k"), ("clean", "ml-1m")}
