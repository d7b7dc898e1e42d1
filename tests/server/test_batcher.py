"""The engine without HTTP: company, room, mistakes, and a change of model between two passes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from serve_world import EVEN, fitted, said

from idcf import ArtifactError, DataError
from idcf.errors import Overloaded
from idcf.inference.predictor import Asked, Filters
from idcf.server.batcher import Engine, Limits
from idcf.server.schemas import Ask, Said

TOLD = [Said(x["item_id"], x["rating"]) for x in said(EVEN)]


def ask(n: int = 5, told: list[Said] = TOLD) -> Ask:
    return Ask(history=told, n=n)


def test_those_who_come_together_are_answered_together() -> None:
    async def go() -> None:
        engine = Engine(fitted(), Limits(batch=64))
        found = await asyncio.gather(*(engine.recommend(ask(n)) for n in range(1, 41)))
        assert [len(x.items) for x in found] == [*range(1, 38), 37, 37, 37]  # 3 of 40 are seen
        assert engine.counts.passes == 1
        assert (engine.counts.answered, engine.waiting) == (40, 0)
        await asyncio.gather(*(engine.recommend(ask()) for _ in range(130)))
        assert engine.counts.passes == 1 + 3

    asyncio.run(go())


def test_a_lonely_request_does_not_wait_and_a_thin_crowd_waits_but_a_moment() -> None:
    async def go() -> None:
        engine = Engine(fitted(), Limits(wait=0.05))
        loop = asyncio.get_running_loop()
        for _ in range(3):
            began = loop.time()
            await engine.recommend(ask())
            assert loop.time() - began < 0.045
        await asyncio.gather(*(engine.recommend(ask()) for _ in range(9)))
        began = loop.time()
        await asyncio.gather(*(engine.recommend(ask()) for _ in range(8)))  # waits for a ninth
        assert loop.time() - began >= 0.049
        began = loop.time()
        await asyncio.gather(*(engine.recommend(ask()) for _ in range(8)))  # no longer
        assert loop.time() - began < 0.045

    asyncio.run(go())


def test_too_many_are_refused_and_the_others_are_answered() -> None:
    async def go() -> None:
        engine = Engine(fitted(), Limits(room=4))
        tasks = [asyncio.create_task(engine.recommend(ask())) for _ in range(10)]
        found = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [x for x in found if isinstance(x, Overloaded)]
        assert len(refused) == engine.counts.refused == 6
        assert str(refused[0]) == "4 requests are waiting already; try again in a second"
        assert len((await engine.recommend(ask())).items) == 5  # it recovers

    asyncio.run(go())


def test_slow_work_has_room_of_its_own() -> None:
    async def go() -> None:
        engine = Engine(fitted(), Limits(aside=1))
        gate = asyncio.Event()
        loop = asyncio.get_running_loop()

        def slow() -> str:
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result(10)
            return "done"

        first = asyncio.create_task(engine.aside(slow))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 slow requests are open already"):
            await engine.aside(slow)
        assert len((await engine.recommend(ask())).items) == 5  # nobody is held up
        gate.set()
        assert await first == "done"
        assert await engine.aside(slow) == "done"

    asyncio.run(go())


def test_one_persons_mistake_is_theirs_alone() -> None:
    async def go() -> None:
        engine = Engine(fitted())
        wrong = (
            ask(told=[Said("nowhere", 5.0)]),
            ask(told=[Said("i2", 500.0)]),
            Ask(features={"a": 1}),
        )
        asked = [ask(), *wrong, ask()]
        found = await asyncio.gather(*map(engine.recommend, asked), return_exceptions=True)
        assert [isinstance(x, DataError) for x in found] == [False, True, True, True, False]

    asyncio.run(go())


def test_whoever_hangs_up_is_forgotten() -> None:
    async def go() -> None:
        engine = Engine(fitted())
        tasks = [asyncio.create_task(engine.recommend(ask())) for _ in range(12)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(x, asyncio.CancelledError) for x in found) == 6
        assert engine.counts.answered == 6

    asyncio.run(go())


def test_a_bug_reaches_those_in_the_pass_and_the_next_pass_is_well() -> None:
    async def go() -> None:
        engine = Engine(fitted())
        bad = Asked(engine.now.read(ask()).read, 5, Filters(never=np.array([10**6])))
        good, engine.now.__dict__["read"] = engine.now.read, lambda _: bad
        with pytest.raises(IndexError):
            await engine.recommend(ask())
        engine.now.__dict__["read"] = good
        assert len((await engine.recommend(ask())).items) == 5

    asyncio.run(go())


def test_a_change_of_model_answers_those_who_wait_with_the_old_one(tmp_path: Path) -> None:
    folder = fitted("als").save(tmp_path / "als")

    async def go() -> None:
        engine = Engine(fitted(), Limits(wait=0.5))
        engine._company = 99  # so that they wait
        waiting = [asyncio.create_task(engine.recommend(ask())) for _ in range(9)]
        await asyncio.sleep(0)
        assert engine.waiting == 9
        await engine.swap(folder)
        old = await asyncio.gather(*waiting)
        want = fitted().recommend(EVEN, n=5)
        assert [[y.item_id for y in x.items] for x in old] == [[y.item_id for y in want]] * 9
        assert engine.now.model().model == "als"
        new = await engine.recommend(ask())
        assert [x.item_id for x in new.items] == [
            x.item_id for x in fitted("als").recommend(EVEN, n=5)
        ]
        with pytest.raises(ArtifactError):
            await engine.swap(tmp_path / "nothing")
        assert engine.now.model().model == "als"
        assert engine.counts.swaps == 1

    asyncio.run(go())


def test_the_desk_answers_many_as_it_answers_one() -> None:
    desk, rng = fitted().desk, np.random.default_rng(1)
    asked = []
    for k in range(30):
        told = {f"i{x}": float(rng.integers(1, 6)) for x in rng.choice(40, k % 7, replace=False)}
        never = rng.choice(40, 4, replace=False) if k % 2 else None
        only = np.arange(0, 40, 3) if k % 8 == 0 else None
        filters = Filters(only, never, seen=k % 5 != 0)
        asked.append(Asked(desk.reader.one(told), 1 + k % 9, filters))
    for one, many in zip([desk.one(x) for x in asked], desk.answer(asked), strict=True):
        assert [(x.item_id, x.rank, x.source) for x in one] == [
            (x.item_id, x.rank, x.source) for x in many
        ]
        np.testing.assert_allclose([x.score for x in one], [x.score for x in many], rtol=1e-4)
