"""The request batcher without HTTP: batches, limits, errors and model swaps."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from serve_world import EVEN_HISTORY, fitted, history_body

from idcf import ArtifactError, DataError
from idcf.errors import OverloadedError
from idcf.inference.ranking_query import Filters, RankingQuery
from idcf.server.batcher import BatcherLimits, RequestBatcher
from idcf.server.schemas import HistoryItem, RecommendRequest

HISTORY = [HistoryItem(x["item_id"], x["rating"]) for x in history_body(EVEN_HISTORY)]


def make_request(n: int = 5, history: list[HistoryItem] = HISTORY) -> RecommendRequest:
    return RecommendRequest(history=history, n=n)


def test_concurrent_requests_share_a_batch() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted(), BatcherLimits(max_batch=64))
        responses = await asyncio.gather(
            *(batcher.recommend(make_request(n)) for n in range(1, 41))
        )
        assert [len(x.items) for x in responses] == [*range(1, 38), 37, 37, 37]  # 40 less 3 seen
        assert batcher.counts.n_batches == 1
        assert (batcher.counts.n_answered, batcher.queue_length) == (40, 0)
        await asyncio.gather(*(batcher.recommend(make_request()) for _ in range(130)))
        assert batcher.counts.n_batches == 1 + 3

    asyncio.run(scenario())


def test_requests_of_a_posterior_model_may_differ_in_n() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted("idcf-bayes"))
        responses = await asyncio.gather(*(batcher.recommend(make_request(n)) for n in (1, 7, 3)))
        assert [len(x.items) for x in responses] == [1, 7, 3]
        assert all(item.std is not None for x in responses for item in x.items)
        assert batcher.counts.n_batches == 1

    asyncio.run(scenario())


def test_a_single_request_does_not_wait_and_a_smaller_batch_waits_once() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted(), BatcherLimits(max_delay_s=0.05))
        loop = asyncio.get_running_loop()
        for _ in range(3):
            start = loop.time()
            await batcher.recommend(make_request())
            assert loop.time() - start < 0.045
        await asyncio.gather(*(batcher.recommend(make_request()) for _ in range(9)))
        start = loop.time()  # eight requests wait for a ninth
        await asyncio.gather(*(batcher.recommend(make_request()) for _ in range(8)))
        assert loop.time() - start >= 0.049
        start = loop.time()  # the previous batch had eight: these do not wait
        await asyncio.gather(*(batcher.recommend(make_request()) for _ in range(8)))
        assert loop.time() - start < 0.045

    asyncio.run(scenario())


def test_requests_beyond_the_queue_limit_are_rejected() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted(), BatcherLimits(max_queue=4))
        tasks = [asyncio.create_task(batcher.recommend(make_request())) for _ in range(10)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [x for x in results if isinstance(x, OverloadedError)]
        assert len(errors) == batcher.counts.n_rejected == 6
        assert str(errors[0]) == "4 requests are waiting already; try again in a second"
        assert len((await batcher.recommend(make_request())).items) == 5  # it recovers

    asyncio.run(scenario())


def test_slow_requests_have_their_own_limit() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted(), BatcherLimits(max_slow_requests=1))
        release = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> str:
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
            return "done"

        first = asyncio.create_task(batcher.run_in_thread(slow))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="1 slow requests are open already"):
            await batcher.run_in_thread(slow)
        assert len((await batcher.recommend(make_request())).items) == 5  # batches go on
        release.set()
        assert await first == "done"
        assert await batcher.run_in_thread(slow) == "done"

    asyncio.run(scenario())


def test_an_invalid_request_does_not_affect_the_others() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted())
        invalid = (
            make_request(history=[HistoryItem("i2", -500.0)]),
            make_request(history=[HistoryItem("i2", 500.0)]),
            RecommendRequest(features={"a": 1}),
        )
        requests = [make_request(), *invalid, make_request()]
        results = await asyncio.gather(*map(batcher.recommend, requests), return_exceptions=True)
        assert [isinstance(x, DataError) for x in results] == [False, True, True, True, False]

    asyncio.run(scenario())


def test_cancelled_requests_are_dropped() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted())
        tasks = [asyncio.create_task(batcher.recommend(make_request())) for _ in range(12)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(x, asyncio.CancelledError) for x in results) == 6
        assert batcher.counts.n_answered == 6

    asyncio.run(scenario())


def test_an_unexpected_error_fails_its_batch_only() -> None:
    async def scenario() -> None:
        batcher = RequestBatcher(fitted())
        parsed = batcher.service.parse_request(make_request())
        bad_filters = Filters(excluded=np.array([10**6]))
        bad = parsed._replace(query=parsed.query._replace(filters=bad_filters))
        batcher.service.__dict__["parse_request"] = lambda _: bad
        with pytest.raises(IndexError):
            await batcher.recommend(make_request())
        del batcher.service.__dict__["parse_request"]
        assert len((await batcher.recommend(make_request())).items) == 5

    asyncio.run(scenario())


def test_a_model_swap_answers_waiting_requests_with_the_old_model(tmp_path: Path) -> None:
    folder = fitted("als").save(tmp_path / "als")

    async def scenario() -> None:
        batcher = RequestBatcher(fitted(), BatcherLimits(max_delay_s=0.5))
        batcher._last_queue_length = 99  # so that the requests wait
        tasks = [asyncio.create_task(batcher.recommend(make_request())) for _ in range(9)]
        await asyncio.sleep(0)
        assert batcher.queue_length == 9
        await batcher.swap_model(folder)
        responses = await asyncio.gather(*tasks)
        expected = [x.item_id for x in fitted().recommend(EVEN_HISTORY, n=5)]
        assert [[item.item_id for item in x.items] for x in responses] == [expected] * 9
        assert batcher.service.model_info().model == "als"
        response = await batcher.recommend(make_request())
        assert [x.item_id for x in response.items] == [
            x.item_id for x in fitted("als").recommend(EVEN_HISTORY, n=5)
        ]
        with pytest.raises(ArtifactError):
            await batcher.swap_model(tmp_path / "nothing")
        assert batcher.service.model_info().model == "als"
        assert batcher.counts.n_model_swaps == 1

    asyncio.run(scenario())


def test_the_predictor_answers_a_batch_like_single_queries() -> None:
    predictor, rng = fitted().predictor, np.random.default_rng(1)
    queries = []
    for k in range(30):
        history = {f"i{x}": float(rng.integers(1, 6)) for x in rng.choice(40, k % 7, replace=False)}
        excluded = rng.choice(40, 4, replace=False) if k % 2 else None
        candidates = np.arange(0, 40, 3) if k % 8 == 0 else None
        filters = Filters(candidates, excluded, filter_seen=k % 5 != 0)
        queries.append(RankingQuery(predictor.read_new_user(history), 1 + k % 9, filters))
    single = [predictor.recommend([x])[0] for x in queries]
    for expected, result in zip(single, predictor.recommend(queries), strict=True):
        assert [(x.item_id, x.rank, x.source) for x in result] == [
            (x.item_id, x.rank, x.source) for x in expected
        ]
        np.testing.assert_allclose([x.score for x in result], [x.score for x in expected], 1e-4)
