"""Tables of one to four items, and of users with one row, are fitted and served."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from idcf import Recommender

OPTIONS: dict[str, dict[str, Any]] = {"idcf-bayes": {"sweeps": 8, "burn_in": 4}}
MODELS = ("idcf-bayes", "als", "ease", "item-knn")


def rows(n_items: int) -> pd.DataFrame:
    """Ratings of most items by twelve users."""
    rng = np.random.default_rng(n_items)
    cells = [(u, i, float(rng.integers(1, 6))) for u in range(12) for i in range(n_items)]
    kept = rng.random(len(cells)) < 0.9
    return pd.DataFrame(cells, columns=["user_id", "item_id", "rating"])[kept]


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("n_items", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_few_items(name: str, n_items: int, implicit: bool) -> None:
    model = Recommender(name, device="cpu", **OPTIONS.get(name, {}) if not implicit else {})
    model.fit(rows(n_items), implicit=implicit)
    history: Any = [0] if implicit else {0: 5.0}
    assert len(model.recommend(history, n=5)) == n_items - 1
    listed = model.recommend(history, n=5, filter_seen=False)
    assert all(np.isfinite(x.score) for x in listed)
    assert len(listed) == n_items


def test_ten_rows() -> None:
    table = pd.DataFrame(
        {
            "user_id": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4],
            "item_id": [0, 1, 0, 2, 1, 2, 0, 3, 2, 3],
            "rating": [1, 2, 3, 4, 5, 4, 3, 2, 1, 5],
        }
    )
    model = Recommender(device="cpu", **OPTIONS["idcf-bayes"]).fit(table)
    assert len(model.recommend({0: 5.0}, n=5)) == 3


@pytest.mark.parametrize("implicit", [False, True])
def test_users_with_one_row(implicit: bool) -> None:
    table = pd.DataFrame(
        {
            "user_id": range(40),
            "item_id": [7 * u % 5 for u in range(40)],
            "rating": [float(u % 5 + 1) for u in range(40)],
        }
    )
    options = {} if implicit else OPTIONS["idcf-bayes"]
    model = Recommender(device="cpu", **options).fit(table, implicit=implicit)
    assert len(model.recommend([0] if implicit else {0: 5.0}, n=5)) == 4
