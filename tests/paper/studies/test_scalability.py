"""Times of epochs, on a small world."""

from __future__ import annotations

import numpy as np
import pytest
from tables_world import small_dataset

from idcf.paper.studies import scalability
from idcf.paper.studies.study import select
from idcf.training.job import LOCAL_RUNTIME

DATA = small_dataset("ml-100k")


@pytest.mark.parametrize(
    ("model", "stages"), [("gcmc", ["training"]), ("idcf-gc", ["training", "adaption"])]
)
def test_each_stage_is_timed(model, stages):
    points = scalability.scalability_points("ml-100k", 1)
    point = select(points, model=model, share=0.4)[0]
    rows = scalability.measure_scalability(point, DATA, LOCAL_RUNTIME)
    assert [row["stage"] for row in rows] == stages
    assert all(row["seconds_per_epoch"] > 0 for row in rows)
    assert len({row["n_ratings"] for row in rows}) == 1


def test_stages_are_added_and_slopes_are_those_of_powers():
    rows = [
        {"model": "idcf-gc", "stage": stage, "n_ratings": n, "seconds_per_epoch": (n / 100) ** 2}
        for n in (100, 200, 400)
        for stage in ("training", "adaption")
    ]
    assert scalability.epoch_seconds(rows, "idcf-gc") == [(100, 2.0), (200, 8.0), (400, 32.0)]
    assert scalability.log_slope(rows, "idcf-gc") == pytest.approx(2)
    assert scalability.microseconds_per_rating(rows, "idcf-gc") == pytest.approx(8e4)


def test_seconds_are_those_of_the_faster_later_epoch():
    brief = scalability._brief(
        scalability.stage_configs("gcmc", preset="clean", dataset="ml-100k")["gcmc"]
    )
    assert (brief.train.epochs, brief.validation, brief.refit_on_all) == (3, 0.0, False)
    assert np.isclose(brief.train.learning_rate, 0.002)  # the rest is that of the preset
