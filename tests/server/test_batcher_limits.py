"""The request batcher at its limits: one request, sizes, order, cancellations and the loop."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from serve_world import EVEN_HISTORY, fitted, history_body

from idcf.errors import DataError, OverloadedError
from idcf.server.batcher import BatcherLimits, RequestBatcher, freeze_garbage_collector
from idcf.server.schemas import HistoryItem, RecommendRequest
from idcf.server.service import ParsedRequest

HISTORY = [HistoryItem(x["item_id"], x["rating"]) for x in history_body(EVEN_HISTORY)]
INVALID = RecommendRequest(history=[HistoryItem("i2", 500.0)])


def request(n: int = 5) -> RecommendRequest:
    return RecommendRequest(history=HISTORY, n=n)


def run(scenario: Callable[[RequestBatcher, list[int]], Awaitable[None]], **limits: Any) -> None:
    """Run a scenario with a batcher, and the list of the sizes of its batches."""

    async def whole() -> None:
        batcher, sizes = RequestBatcher(fitted("bias"), BatcherLimits(**limits)), []
        answer = batcher.service.recommend_batch

        def recommend_batch(requests: list[ParsedRequest]) -> Any:
            sizes.append(len(requests))
            return answer(requests)

        batcher.service.__dict__["recommend_batch"] = recommend_batch
        await scenario(batcher, sizes)
        assert batcher.queue_length == 0

    asyncio.run(whole())


@pytest.mark.parametrize("max_batch", [1, 2, 5, 64])
def test_no_batch_is_larger_than_the_limit_and_every_request_is_answered(max_batch: int) -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        responses = await asyncio.gather(*(batcher.recommend(request(n)) for n in range(1, 12)))
        assert [len(x.items) for x in responses] == list(range(1, 12))
        assert max(sizes) <= max_batch
        assert sum(sizes) == batcher.counts.n_answered == 11
        assert len(sizes) == batcher.counts.n_batches

    run(scenario, max_batch=max_batch)


def test_requests_one_after_the_other_are_not_batched() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        for n in (1, 2, 3):
            assert len((await batcher.recommend(request(n))).items) == n
        assert sizes == [1, 1, 1]

    run(scenario)


def test_an_invalid_request_is_refused_at_once_and_never_queued() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        with pytest.raises(DataError, match="500"):
            await batcher.recommend(INVALID)
        assert sizes == []
        assert (batcher.counts.n_answered, batcher.counts.n_rejected) == (0, 0)
        assert len((await batcher.recommend(request())).items) == 5

    run(scenario)


def test_a_full_queue_is_noticed_before_the_request_is_read() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        waiting = asyncio.create_task(batcher.recommend(request()))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="1 requests are waiting already"):
            await batcher.recommend(INVALID)
        assert batcher.counts.n_rejected == 1
        await waiting

    run(scenario, max_queue=1)


def test_a_batch_of_cancelled_requests_computes_nothing() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        tasks = [asyncio.create_task(batcher.recommend(request())) for _ in range(3)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(x, asyncio.CancelledError) for x in results)
        await asyncio.sleep(0.005)
        assert sizes == []
        assert len((await batcher.recommend(request())).items) == 5  # the next one is scheduled
        assert sizes == [1]

    run(scenario)


def test_an_error_of_a_batch_goes_to_each_of_its_requests() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        answer = batcher.service.recommend_batch

        def broken(requests: list[ParsedRequest]) -> Any:
            raise ZeroDivisionError("batch")

        batcher.service.__dict__["recommend_batch"] = broken
        tasks = (batcher.recommend(request()) for _ in range(4))
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(x) for x in results] == [ZeroDivisionError] * 4
        assert batcher.counts.n_answered == batcher.counts.n_batches == 0
        batcher.service.__dict__["recommend_batch"] = answer
        assert len((await batcher.recommend(request())).items) == 5

    run(scenario)


def test_a_thread_gives_its_place_back_after_an_error() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        def broken() -> None:
            raise KeyError("thread")

        for _ in range(3):
            with pytest.raises(KeyError, match="thread"):
                await batcher.run_in_thread(broken)
        assert await batcher.run_in_thread(lambda: 7) == 7
        assert batcher.counts.n_rejected == 0

    run(scenario, max_slow_requests=1)


def test_no_thread_at_all_is_a_limit_as_well() -> None:
    async def scenario(batcher: RequestBatcher, sizes: list[int]) -> None:
        with pytest.raises(OverloadedError, match="0 slow requests are open already; try again"):
            await batcher.run_in_thread(lambda: 7)
        assert batcher.counts.n_rejected == 1

    run(scenario, max_slow_requests=0)


def test_frozen_objects_are_not_collected() -> None:
    before = gc.get_freeze_count()
    try:
        freeze_garbage_collector()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()
