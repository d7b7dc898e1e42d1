"""What the grid of a solver is searched for with implicit feedback."""

from __future__ import annotations

import numpy as np
import pytest
from builders import board

from idcf.models.registry import configure, model_entry
from idcf.training.solvers import SolverContext
from idcf.training.validation import grid_search_validation


def test_the_metric_of_a_grid_decides_between_options() -> None:
    """NDCG and AUC are different losses of one model; each is the same whenever it is asked."""
    table = board(60, 80, 16, 24, implicit=True)
    options = {"reg": 1.0, "embedding_size": 4, "popularity_weight": 0.3}
    losses = {}
    for metric in ("ndcg", "auc"):
        rows, validate = grid_search_validation(table, 0, metric)  # type: ignore[arg-type]
        assert len(rows) < len(table)
        name = "als-popularity"
        model = model_entry(name).load_solver()(configure(name, options), rows, SolverContext())
        losses[metric] = validate(model)
        assert validate(model) == losses[metric]  # the negatives are equal for every model
    assert all(0 < loss < 1 for loss in losses.values())
    assert losses["auc"] != pytest.approx(losses["ndcg"], abs=1e-3)
    assert np.isfinite([*losses.values()]).all()


def test_popularity_is_weighed_by_the_auc() -> None:
    entry = model_entry("als-popularity")
    assert entry.implicit_grid_metric == "auc"
    assert "popularity_weight" in entry.grid_for(implicit=True)
    assert model_entry("als").implicit_grid_metric == "ndcg"
