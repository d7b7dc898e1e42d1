"""A new model takes over while people are being answered, and nobody notices."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
from serve_world import EVEN, TOKEN, fitted, said, served

BODY = {"history": said(EVEN), "n": 5}


def test_hot_swap_under_load_without_a_failed_request(tmp_path: Path) -> None:
    """Models of other kinds and vectors of other lengths, written over the folder in use."""
    names = ["als", "bias", "idcf-dot"] * 3
    folder = fitted("idcf-dot").save(tmp_path / "model")
    right = {tuple(x.item_id for x in fitted(name).recommend(EVEN, n=5)) for name in {*names}}

    async def go(address: str) -> tuple[list[httpx2.Response], list[str]]:
        over, found = asyncio.Event(), []
        limits = httpx2.Limits(max_connections=40)
        async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=30) as client:

            async def person() -> None:
                while not over.is_set():
                    found.append(await client.post("/v1/recommend", json=BODY))

            crowd = [asyncio.create_task(person()) for _ in range(24)]
            at_work = []
            for name in names:
                fitted(name).save(folder)
                bearer = {"authorization": f"Bearer {TOKEN}"}
                answer = await client.post("/admin/reload", headers=bearer)
                at_work.append(answer.json()["model"])
                await asyncio.sleep(0.05)
            over.set()
            await asyncio.gather(*crowd)
        return found, at_work

    with served(fitted("idcf-dot"), folder=folder, token=TOKEN) as address:
        found, at_work = asyncio.run(go(address))
        assert f"idcf_swaps_total {len(names)}\n" in httpx2.get(f"{address}/metrics").text
    assert at_work == names
    assert len(found) > 100
    assert {x.status_code for x in found} == {200}
    lists = {tuple(i["item_id"] for i in x.json()["items"]) for x in found}
    assert lists <= right  # each is one model's own answer, never a mixture
    assert len(lists) > 1
