"""Weights of clicks in training: who reads them, and what they are good for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from builders import board
from typer.testing import CliRunner

import idcf
from idcf import Recommender
from idcf.cli import app
from idcf.data.interactions import Interactions
from idcf.data.readers import read_interactions
from idcf.errors import ConfigError
from idcf.models.registry import configure, model_entry
from idcf.testing.synthetic import checkerboard
from idcf.training.solvers import SolverContext

N_ITEMS, N_GROUPS = 60, 5


@cache
def clicks(n_users: int = 200) -> pd.DataFrame:
    """Return clicks of users who stay on four items of one group, and click on eight others, mostly
    popular ones, by mistake."""
    rng, rows = np.random.default_rng(0), []
    by_mistake = 1 / (2 + np.arange(N_ITEMS) % 20)
    for user in range(n_users):
        group = np.flatnonzero(np.arange(N_ITEMS) % N_GROUPS == user % N_GROUPS)
        wanted = rng.choice(group, size=4, replace=False)
        p = by_mistake.copy()
        p[wanted] = 0
        others = rng.choice(N_ITEMS, size=8, replace=False, p=p / p.sum())
        rows += [(user, item, 30 + rng.exponential(60)) for item in wanted]
        rows += [(user, item, 1 + rng.exponential(2)) for item in others]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "dwell"])


def share_of_group(recommender: Recommender) -> float:
    """Return the share of lists of ten that is of the group of the only item of a history."""
    lists = recommender.recommend([[item] for item in range(N_ITEMS)], n=10)
    in_group = [[x.item_id % N_GROUPS == n % N_GROUPS for x in row] for n, row in enumerate(lists)]
    return float(np.mean(in_group))


@pytest.mark.parametrize(("model", "options"), [("idcf-bayes", {}), ("item-knn", {"reg": 3.0})])
def test_time_spent_tells_interest_from_mistakes(model: str, options: dict[str, float]) -> None:
    def new() -> Recommender:
        return Recommender(model, key_threshold=3, device="cpu", **options)

    plain = new().fit(clicks().drop(columns="dwell"))
    weighted = new().fit(clicks(), weight="dwell")
    assert share_of_group(weighted) > 0.9 > 0.7 > share_of_group(plain)
    name = "idcf-takeup" if model == "idcf-bayes" else model
    assert weighted.manifest.details[name]["weight_power"] in (0.5, 1.0)
    assert "weight_power" not in plain.manifest.details.get(name, {})
    assert "dwell" not in weighted.manifest.columns.values()


def test_the_quality_in_the_card_counts_every_held_out_click_once() -> None:
    """Weights that grow with popularity hardly change its order."""
    table = board(320, 60, 30, 40, implicit=True)
    table = table.where(np.random.default_rng(0).random(len(table)) < 0.4 + table.item / 100)
    weight = table.item_counts()[table.item].astype(np.float32) ** 8
    model, values = Recommender("popularity", key_threshold=3, device="cpu"), []
    for x in (table, replace(table, weight=weight)):
        curve = model.fit(x, card_metrics=True).manifest.new_user_curve
        assert curve
        values.append([point.value for point in curve.points])
    np.testing.assert_allclose(values[1], values[0], rtol=0.02)


def test_repeated_clicks_count() -> None:
    repeated = clicks().loc[np.repeat(clicks().index, np.where(clicks().dwell > 30, 5, 1))]
    recommender = Recommender("item-knn", key_threshold=3, reg=3.0, neighbors=20, device="cpu")
    recommender.fit(repeated[["user_id", "item_id"]], duplicates="count")
    assert share_of_group(recommender) > 0.7  # .45 where every click counts once


def weighted_table() -> Interactions:
    table = checkerboard(40, 14, np.random.default_rng(0), implicit=True)
    weight = np.random.default_rng(1).lognormal(size=len(table)).astype(np.float32)
    return replace(table, weight=weight)


@pytest.mark.parametrize("size", [3, 12])  # histories are longer, or shorter, than vectors
def test_als_solves_for_confidences(size: int) -> None:
    """After the last step, the factors of items are the least squares solution for those of users:
    here, the users' are solved for the factors of one step less."""
    table, solve = weighted_table(), model_entry("als").load_solver()
    options = {"embedding_size": size, "alpha": 3.0, "reg": 2.0}
    before, after = (
        solve(configure("als", {**options, "epochs": n}), table, SolverContext()) for n in (4, 5)
    )
    assert table.weight is not None
    confidence = np.zeros((len(table.users), len(table.items)))
    confidence[table.user, table.item] = 3.0 * table.weight

    def solve_side(fixed: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Return the solution of Hu, Koren and Volinsky, one row at a time."""
        shared = fixed.T @ fixed + 2.0 * np.eye(size)
        return np.stack(
            [
                np.linalg.solve(shared + (fixed.T * row) @ fixed, fixed.T @ ((1 + row) * (row > 0)))
                for row in c
            ]
        )

    users = solve_side(before.factors.double().numpy(), confidence)
    expected = solve_side(users, confidence.T)
    np.testing.assert_allclose(after.factors.numpy(), expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["als", "ease", "idcf-takeup", "item-knn", "popularity"])
def test_equal_weights_change_nothing(name: str) -> None:
    table = weighted_table()
    equal = replace(table, weight=np.full(len(table), 7.0, np.float32)).weights_raised_to(1)
    solve, options = model_entry(name).load_solver(), {"epochs": 3} if name == "als" else {}
    with_weights, without = (
        solve(configure(name, options), x, SolverContext()).state_dict()
        for x in (equal, replace(table, weight=None))
    )
    for key, value in without.items():
        torch.testing.assert_close(with_weights[key], value)


def test_popularity_is_the_sum_of_the_weights() -> None:
    table = weighted_table()
    model = model_entry("popularity").load_solver()(configure("popularity"), table, SolverContext())
    expected = np.bincount(table.item, table.weight, len(table.items))
    np.testing.assert_allclose(model.counts, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["idcf-odds", "slim", "idcf-dot", "pmf"])
def test_other_models_refuse_weights(name: str) -> None:
    sentence = (
        f"model '{name}' counts every click once; leave the weights out, or fit a model that reads "
        "them: als, ease, idcf-takeup, item-knn, popularity"
    )
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        Recommender(name, key_threshold=3, device="cpu").fit(clicks(), weight="dwell")


@pytest.mark.filterwarnings("ignore:.*repeat a")
def test_weights_on_the_command_line(tmp_path: Path) -> None:
    path, out = tmp_path / "clicks.csv", tmp_path / "model"
    clicks(60).to_csv(path, index=False)
    arguments = ["--model", "item-knn", "--weight", "dwell", "--device", "cpu", "--json"]
    arguments += ["--key-threshold", "3", "--no-card-metrics", "--out", str(out)]
    result = CliRunner().invoke(app, ["train", str(path), *arguments])
    assert result.exit_code == 0, result.output
    assert "weight_power" in Recommender.load(out).manifest.details["item-knn"]
    comparison = idcf.evaluate(
        path, "item-knn", weight="dwell", key_users="random", key_threshold=1, device="cpu"
    )
    assert "item-knn" in comparison.models
    read = read_interactions(path, duplicates="count")
    assert read.weight is None  # no row is repeated


def test_shards_have_no_weights(tmp_path: Path) -> None:
    path, shards = tmp_path / "clicks.csv", tmp_path / "shards"
    clicks(60).to_csv(path, index=False)
    # the process of the tests holds more than the memory that a shard takes by default
    arguments = ["shard", str(path), "--out", str(shards), "--memory", "8GiB"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    model = Recommender("als", key_threshold=3, device="cpu")
    for argument, text in (("weight", "weight"), ("duplicates", "duplicates='count'")):
        value = {argument: "dwell" if argument == "weight" else "count"}
        with pytest.raises(ConfigError, match=f"{text} needs the table in memory; leave it out"):
            model.fit(shards, engine="local", **value)
        with pytest.raises(ConfigError, match=f"shards hold no weights, .* leave out {text}, or"):
            model.fit(shards, **value)
    arguments = ["train", str(shards), "--engine", "local", "--weight", "dwell"]
    arguments += ["--out", str(tmp_path / "model")]
    result = CliRunner().invoke(app, arguments)
    assert "--weight is for a table, not for a folder of shards" in str(result.exception)
