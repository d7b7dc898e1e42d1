"""How many requests share a batch: the same lists, and numbers that differ in the last digit."""

from __future__ import annotations

import numpy as np
import pytest
from serve_world import fitted

from idcf.server import schemas as s
from idcf.server.service import RecommendationService

BOUND = 2e-4  # docs/howto/server.md states it
NUMBERS = ("score", "std", "probability", "rating", "rating_if_shown")


def random_requests(n: int) -> list[s.RecommendRequest]:
    """Return requests with histories of 0 to 12 items."""
    rng = np.random.default_rng(0)
    rows = [rng.choice(40, rng.integers(0, 13), replace=False) for _ in range(n)]
    return [
        s.RecommendRequest(
            history=[s.HistoryItem(f"i{x}", float(rng.choice([1.0, 5.0]))) for x in items]
        )
        for items in rows
    ]


@pytest.mark.parametrize("name", ["idcf-dot", "als", "bias", "idcf-bayes", "item-knn", "ease"])
def test_the_size_of_a_batch_changes_no_list_and_numbers_in_the_last_digit(name: str) -> None:
    service = RecommendationService(fitted(name))
    requests = [service.parse_request(x) for x in random_requests(192)]
    single = [service.recommend_batch([x])[0].items for x in requests]
    for size in (2, 3, 8, 33, 64):
        starts = range(0, len(requests), size)
        batched = [y for k in starts for y in service.recommend_batch(requests[k : k + size])]
        for expected, response in zip(single, batched, strict=True):
            assert [x.item_id for x in response.items] == [x.item_id for x in expected]
            for number in NUMBERS:
                values, others = (
                    [getattr(x, number) for x in items] for items in (expected, response.items)
                )
                if None in values:
                    assert values == others
                else:
                    np.testing.assert_allclose(values, others, rtol=0, atol=BOUND)


def test_the_same_batch_gives_the_same_bytes() -> None:
    service = RecommendationService(fitted("idcf-bayes"))
    requests = [service.parse_request(x) for x in random_requests(64)]
    first, second = (s.encode_json(service.recommend_batch(requests)) for _ in range(2))
    assert first == second
