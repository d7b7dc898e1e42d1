"""Tables of a handful of rows, which newcomers try first, give an answer or one clear error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from idcf import Recommender
from idcf.errors import DataError

MODELS = ("idcf-bayes", "idcf-odds", "als", "item-knn", "idcf-dot", "popularity")


def tiny(n_users: int, n_items: int, *, every_second: bool, implicit: bool) -> pa.Table:
    """Return the rows of all pairs, or of every second one."""
    cells = [(u, i) for u in range(n_users) for i in range(n_items)]
    cells = [(u, i) for u, i in cells if (u + i) % 2 == 0 or not every_second]
    columns = {"user_id": [u for u, _ in cells], "item_id": [i for _, i in cells]}
    ratings = {} if implicit else {"rating": [1.0 + (u + i) % 5 for u, i in cells]}
    return pa.table(columns | ratings)


@pytest.mark.parametrize("implicit", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_three_users_are_enough(name: str, implicit: bool) -> None:
    if name == "idcf-odds" and not implicit:
        pytest.skip("for clicks alone")
    options = {"idcf-bayes": {} if implicit else {"sweeps": 4, "burn_in": 1}}
    options["idcf-dot"] = {"epochs": 1}
    for n_items, every_second in ((1, False), (2, False), (2, True), (3, True)):
        table = tiny(4, n_items, every_second=every_second, implicit=implicit)
        recommender = Recommender(name, key_threshold=1, device="cpu", **options.get(name, {}))
        recommender.fit(table)
        history = [0] if implicit else {0: 3}
        assert len(recommender.recommend(history)) == n_items - 1
        assert len(recommender.recommend()) == n_items


def test_two_users_are_too_few() -> None:
    table = tiny(2, 3, every_second=False, implicit=False)
    with pytest.raises(DataError, match="at least 3 key users are needed: lower key_threshold or"):
        Recommender("als", device="cpu").fit(table)
