"""Answers for many people at a time: gathers what is asked together, answers it in one pass.

Knows no HTTP. All of it runs on one event loop, computing included: on one core a second thread
would only take turns with the first. A new model is loaded beside the old one and takes over
between two passes, so nobody's question falls between them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from idcf.errors import Overloaded
from idcf.inference.predictor import Asked
from idcf.recommender import Recommender
from idcf.server.schemas import Answer, Ask
from idcf.server.service import Serving

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long to wait for company, how many to answer in one pass, how many may wait."""

    wait: float = 0.001  # seconds
    batch: int = 64
    room: int = 1024
    aside: int = 4  # slow questions (explain, next question) that may be open at a time


@dataclass
class Counts:
    """Since the start."""

    passes: int = 0
    answered: int = 0
    refused: int = 0
    swaps: int = 0


class Waiting(NamedTuple):
    asked: Asked
    answer: asyncio.Future[Answer]


class Engine:
    """One model, many askers."""

    def __init__(self, recommender: Recommender, limits: Limits | None = None) -> None:
        self.limits, self.counts = limits or Limits(), Counts()
        self.now = Serving.of(recommender)
        self._waiting: list[Waiting] = []
        self._company = 1  # how many came together last time
        self._timer: asyncio.TimerHandle | None = None
        self._due, self._until = False, 0.0  # somebody waits, and when it ends
        self._open, self._swapping = 0, asyncio.Lock()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def recommend(self, ask: Ask) -> Answer:
        """The best items of one newcomer, computed with whoever else asks at the same time."""
        if len(self._waiting) >= self.limits.room:
            self._refuse(f"{len(self._waiting)} requests are waiting already")
        asked = self.now.read(ask)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append(Waiting(asked, answer))
        if not self._due:
            self._due, self._until = True, loop.time() + self.limits.wait
            loop.call_soon(self._turn, 0)
        elif self._timer is not None and self._complete():
            self._timer.cancel()
            self._timer = loop.call_later(0, self._turn, 0)
        return await answer

    async def aside(self, work: Callable[[], T]) -> T:
        """Beside the loop, so that what takes long holds nobody else up."""
        if self._open >= self.limits.aside:
            self._refuse(f"{self._open} slow requests are open already")
        self._open += 1
        try:
            return await asyncio.to_thread(work)
        finally:
            self._open -= 1

    async def swap(self, folder: str | Path) -> None:
        """Put the model of a folder to work, the same folder's new one or another's."""
        async with self._swapping:
            fresh = await asyncio.to_thread(lambda: Serving.of(Recommender.load(folder)))
            while self._waiting:  # rows of the old catalogue mean nothing to the new one
                self._pass()
            self.now = fresh
            self.counts.swaps += 1
            gc.unfreeze()
            settle()

    def _refuse(self, why: str) -> None:
        self.counts.refused += 1
        raise Overloaded(f"{why}; try again in a second")

    def _complete(self) -> bool:
        """Are as many here as came together last time? At a lonely hour that is one."""
        return len(self._waiting) >= min(self._company, self.limits.batch)

    def _turn(self, before: int) -> None:
        """Reading what comes in is work that must be done anyway, so as long as each turn of the
        loop brings somebody it goes on; then the missing have until the time that was set."""
        loop, here = asyncio.get_running_loop(), len(self._waiting)
        self._timer = None
        if not here or self._complete():
            self._pass()
        elif here > before:
            loop.call_soon(self._turn, here)
        elif loop.time() < self._until:
            self._timer = loop.call_at(self._until, self._turn, here)
        else:
            self._pass()

    def _pass(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, False
        self._company, size = max(1, len(self._waiting)), self.limits.batch
        here, self._waiting = self._waiting[:size], self._waiting[size:]
        self._answer([x for x in here if not x.answer.done()])  # not those who hung up
        if self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._pass)

    def _answer(self, here: list[Waiting]) -> None:
        if not here:
            return
        try:
            found = self.now.answer([x.asked for x in here])
        except Exception as error:
            for x in here:
                x.answer.set_exception(error)
            return
        self.counts.passes += 1
        self.counts.answered += len(here)
        for x, said in zip(here, found, strict=True):
            x.answer.set_result(said)


def settle() -> None:
    """What is here now stays: the collector need not walk through a model at every turn, which
    costs more than answering."""
    gc.collect()
    gc.freeze()
