"""The request batcher: collects recommendation requests and answers them in one model call.

Knows no HTTP. Everything runs on one event loop, the computation included: on one core a second
thread would only compete with the first. A new model is loaded in a thread and replaces the old one
between two batches, so that no request sees both.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol, TypeVar

from idcf.errors import OverloadedError
from idcf.recommender import Recommender
from idcf.server.counters import BatcherCounts
from idcf.server.schemas import RecommendationList, RecommendRequest
from idcf.server.service import ParsedRequest, RecommendationService

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class BatcherLimits:
    """Limits of a `RequestBatcher`."""

    max_delay_s: float = 0.001  # longest time that a request waits to be batched with others
    max_batch: int = 64  # largest number of requests computed together
    max_queue: int = 1024  # largest number of waiting requests; further ones are rejected
    max_slow_requests: int = 4  # explanations and questions at a time, each in a thread
    max_searches: int = 8  # searches of titles at a time, each in a thread


class Receiver(Protocol):
    """Gets the response of a request, or the exception instead; an `asyncio.Future` is one."""

    def done(self) -> bool:
        """Return whether the response is not needed, because the request was cancelled."""

    def set_result(self, result: RecommendationList, /) -> None:
        """Take the response."""

    def set_exception(self, exception: Exception, /) -> None:
        """Take the exception that computing the response raised."""


class PendingRequest(NamedTuple):
    """A queued request and the receiver of its response."""

    request: ParsedRequest
    receiver: Receiver


class RequestBatcher:
    """Answers concurrent recommendation requests with one model, several in one computation.

    A batch starts when as many requests are waiting as in the previous batch, when no further
    request arrives and `max_delay_s` is over, or when the queue reaches `max_batch`.
    """

    def __init__(
        self, recommender: Recommender, limits: BatcherLimits | None = None, n_workers: int = 1
    ) -> None:
        self.limits = limits or BatcherLimits()
        self.counts = BatcherCounts(n_workers)
        self.service = RecommendationService(recommender)
        self.is_draining = False  # the process will end after the requests that it has
        self.swap_in_all_workers: Callable[[], Awaitable[None]] | None = None
        self._queue: list[PendingRequest] = []
        self._last_queue_length = 1  # when the previous batch started
        self._is_scheduled = False  # a batch will start by itself
        self._deadline = 0.0  # loop time at which it starts at the latest
        self._timer: asyncio.TimerHandle | None = None  # set while it waits for the deadline
        self._n_in_threads: Counter[str] = Counter()  # by lane
        self._swap_lock = asyncio.Lock()

    @property
    def queue_length(self) -> int:
        """Number of requests that wait for the next batch."""
        return len(self._queue)

    async def recommend(self, request: RecommendRequest) -> RecommendationList:
        """Return the best items for a new user, computed together with concurrent requests.

        Raises the errors of `submit`.
        """
        response: asyncio.Future[RecommendationList] = asyncio.get_running_loop().create_future()
        self.submit(request, response)
        return await response

    def submit(self, request: RecommendRequest, receiver: Receiver) -> None:
        """Queue a request, whose response the receiver will get.

        OverloadedError: `max_queue` requests are waiting. DataError: the request names no known
        item, or has ratings or features that do not fit.
        """
        if len(self._queue) >= self.limits.max_queue:
            self._reject(f"{len(self._queue)} requests are waiting already")
        self._queue.append(PendingRequest(self.service.parse_request(request), receiver))
        if not self._is_scheduled:
            loop = asyncio.get_running_loop()
            self._is_scheduled, self._deadline = True, loop.time() + self.limits.max_delay_s
            loop.call_soon(self._wait_or_run, 0)
        elif self._timer is not None and self._is_batch_ready():
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(0, self._wait_or_run, 0)

    async def run_in_thread(self, function: Callable[[], T]) -> T:
        """Run a slow function in a thread, so that it does not delay the batches.

        OverloadedError: `max_slow_requests` are running.
        """
        return await self._run(function, "slow requests", self.limits.max_slow_requests)

    async def search_in_thread(self, function: Callable[[], T]) -> T:
        """Run a search in a thread; slow requests take none of its places.

        OverloadedError: `max_searches` are running.
        """
        return await self._run(function, "searches", self.limits.max_searches)

    async def _run(self, function: Callable[[], T], lane: str, limit: int) -> T:
        """Run a function in a thread, if less than `limit` of its lane are running."""
        if self._n_in_threads[lane] >= limit:
            self._reject(f"{limit} {lane} are open already")
        self._n_in_threads[lane] += 1
        try:
            return await asyncio.to_thread(function)
        finally:
            self._n_in_threads[lane] -= 1

    async def swap_model(self, folder: str | Path) -> None:
        """Load the model of a folder and serve it from now on.

        Waiting requests are answered by the old model, which stays in use if loading fails with
        ArtifactError. In one of several workers, `swap_in_all_workers` is called instead.
        """
        async with self._swap_lock:
            if self.swap_in_all_workers is not None:
                await self.swap_in_all_workers()
                return
            service = await asyncio.to_thread(
                lambda: RecommendationService(Recommender.load(folder))
            )
            self.replace_service(service)
            gc.unfreeze()
            freeze_garbage_collector()

    def replace_service(self, service: RecommendationService) -> None:
        """Answer waiting requests with the present model, and later ones with another."""
        while self._queue:  # these requests hold row numbers of the old catalogue
            self._run_batch()
        self.service = service
        self.counts.n_model_swaps += 1

    def _reject(self, reason: str) -> NoReturn:
        """Count a rejected request and raise OverloadedError."""
        self.counts.n_rejected += 1
        raise OverloadedError(f"{reason}; try again in a second")

    def _is_batch_ready(self) -> bool:
        """Return whether as many requests wait as before the previous batch (at low load: one)."""
        return len(self._queue) >= min(self._last_queue_length, self.limits.max_batch)

    def _wait_or_run(self, previous_length: int) -> None:
        """Start the batch, or wait for further requests until the deadline.

        While each turn of the event loop adds requests, the wait costs nothing: parsing them is
        work that has to be done anyway. The timer is set only once no more requests arrive.
        """
        loop, length = asyncio.get_running_loop(), len(self._queue)
        self._timer = None
        if not length or self._is_batch_ready():
            self._run_batch()
        elif length > previous_length:
            loop.call_soon(self._wait_or_run, length)
        elif loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._wait_or_run, length)
        else:
            self._run_batch()

    def _run_batch(self) -> None:
        """Answer up to `max_batch` waiting requests and schedule the remaining ones."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_scheduled = None, False
        self._last_queue_length = max(1, len(self._queue))
        size = self.limits.max_batch
        batch, self._queue = self._queue[:size], self._queue[size:]
        self._resolve([x for x in batch if not x.receiver.done()])
        if self._queue:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run_batch)

    def _resolve(self, requests: list[PendingRequest]) -> None:
        """Compute the responses of a batch; an unexpected exception goes to all its requests."""
        if not requests:
            return
        try:
            responses = self.service.recommend_batch([x.request for x in requests])
        except Exception as error:
            for pending in requests:
                pending.receiver.set_exception(error)
            return
        self.counts.n_batches += 1
        self.counts.n_answered += len(requests)
        for pending, response in zip(requests, responses, strict=True):
            pending.receiver.set_result(response)


def freeze_garbage_collector() -> None:
    """Exclude all present objects from garbage collection.

    The model stays in memory, and scanning it at each collection takes longer than a response.
    """
    gc.collect()
    gc.freeze()
