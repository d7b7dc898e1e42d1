"""The study of the cold start: epoch times, means over seeds, and its figures from rows."""

from __future__ import annotations

import numpy as np
import pytest

from idcf.data.datasets.cold_start import SUPPORT_SIZES
from idcf.data.split import split_by_threshold
from idcf.errors import DataError
from idcf.evaluation.results import ResultRow
from idcf.evaluation.run import make_evaluation_sets
from idcf.paper import cold_start, figures
from idcf.testing import synthetic_world

SPLIT = synthetic_world(features=True).split


def row(model: str, users: str, value: float, seed: int = 0) -> ResultRow:
    low, high = value - 0.01, value + 0.01
    numbers = (value, low, high, 5, 50, seed, 1.0)
    return ResultRow("ml-1m-cold", "s", model, "clean", users, "rmse", *numbers)


ROWS = [
    row(model, group, 1 - 0.01 * n, seed)
    for model in cold_start.HAND_OVER_SYSTEMS
    for n, group in enumerate(["new", *SUPPORT_SIZES])
    for seed in range(2)
]


@pytest.mark.parametrize("model", ["wide-deep", "idcf-hy"])
def test_the_time_of_an_epoch_is_that_of_all_stages(model: str) -> None:
    time = cold_start.time_epochs(model, SPLIT, "")
    assert time.seconds == pytest.approx(sum(time.seconds_by_stage.values()), abs=1e-3)
    assert ("hybrid" in time.seconds_by_stage) is (model == "idcf-hy")
    share = 10 * len(SPLIT.key_users) / len(SPLIT.train)
    assert time.seconds_per_task_epoch == pytest.approx(time.seconds * share, abs=1e-3)
    assert time.as_row()["model"] == model


def test_means_are_over_seeds() -> None:
    rows = [row("melu", "new", 1.0, 0), row("melu", "new", 0.9, 1), row("melu", "cold-0", 3.0)]
    means = cold_start.mean_by_system(rows, "new")
    assert {model: mean.value for model, mean in means.items()} == {"melu": pytest.approx(0.95)}


def test_the_figures_are_drawn_from_rows() -> None:
    epochs = [{"model": "melu", "seconds": 9.0}, {"model": "idcf-hy", "seconds": 0.5}]
    figure = cold_start.plot_cold_start(ROWS, epochs)
    assert [len(axis.patches) for axis in figure.axes] == [0, 0, 2]
    assert figures.to_png(figure, dpi=40).startswith(b"\x89PNG")
    [axis] = cold_start.plot_hand_over(ROWS).axes
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in axis.get_lines()}
    assert set(lines) == set(cold_start.HAND_OVER_SYSTEMS)
    assert all(len(values) == 5 and (np.diff(values) < 0).all() for values in lines.values())


def test_other_datasets_have_no_groups_of_cold_users() -> None:
    split = split_by_threshold(SPLIT.train, SPLIT.test, 14)
    with pytest.raises(DataError, match="only the dataset ml-1m-cold has the group 'cold-5'"):
        make_evaluation_sets(split, ["cold-5"])
