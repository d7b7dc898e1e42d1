"""A service in shared memory gives the same lists to the last bit, and its memory can be freed."""

from __future__ import annotations

import gc
import os
import weakref

import pytest
from serve_world import EVEN_HISTORY, fitted, history_body

from idcf.server.schemas import HistoryItem, RecommendRequest, encode_json
from idcf.server.service import RecommendationService
from idcf.server.shared_service import read_service, write_service

HISTORY = [HistoryItem(x["item_id"], x["rating"]) for x in history_body(EVEN_HISTORY)]
REQUESTS = [RecommendRequest(history=HISTORY[:k], n=9) for k in range(4)] * 4
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers need Linux")


def answers(service: RecommendationService) -> list[bytes]:
    """Return lists as JSON, computed together and one by one."""
    parsed = [service.parse_request(x) for x in REQUESTS]
    single = [y for x in parsed for y in service.recommend_batch([x])]
    return [encode_json(x) for x in [*service.recommend_batch(parsed), *single]]


@pytest.mark.parametrize(
    "name", ["idcf-dot", "idcf-nn", "idcf-bayes", "als", "bias", "ease", "item-knn", "popularity"]
)
def test_a_shared_service_is_the_service(name: str) -> None:
    service = RecommendationService(fitted(name))
    descriptor = write_service(service)
    try:
        shared, other = read_service(descriptor), read_service(descriptor)
    finally:
        os.close(descriptor)
    assert answers(shared) == answers(service)
    for tensor in shared.predictor.artifact.model.state_dict().values():
        tensor.zero_()  # private: a process does not change what the others see
    assert answers(other) == answers(service)


@pytest.mark.parametrize("name", ["idcf-dot", "idcf-bayes", "als", "ease"])
def test_a_service_that_is_replaced_frees_its_memory_at_once(name: str) -> None:
    """Workers freeze the garbage collector, so there must be no cycle of references."""
    descriptor = write_service(RecommendationService(fitted(name)))
    service = read_service(descriptor)
    os.close(descriptor)
    answers(service)
    gc.disable()
    try:
        model = weakref.ref(service.predictor.artifact.model)
        del service
        assert model() is None
    finally:
        gc.enable()
