"""A new model replaces the served one while requests are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
from serve_world import EVEN_HISTORY, TOKEN, fitted, history_body, served

BODY = {"history": history_body(EVEN_HISTORY), "n": 5}


def test_hot_swap_under_load_without_a_failed_request(tmp_path: Path) -> None:
    """Models of other kinds and embedding sizes are written to the served folder."""
    names = ["als", "bias", "idcf-dot"] * 3
    folder = fitted("idcf-dot").save(tmp_path / "model")
    expected = {
        tuple(x.item_id for x in fitted(name).recommend(EVEN_HISTORY, n=5)) for name in {*names}
    }

    async def scenario(address: str) -> tuple[list[httpx2.Response], list[str]]:
        stop, responses = asyncio.Event(), []
        limits = httpx2.Limits(max_connections=40)
        async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=30) as client:

            async def send_requests() -> None:
                while not stop.is_set():
                    responses.append(await client.post("/v1/recommend", json=BODY))

            tasks = [asyncio.create_task(send_requests()) for _ in range(24)]
            served_names = []
            for name in names:
                fitted(name).save(folder)
                bearer = {"authorization": f"Bearer {TOKEN}"}
                response = await client.post("/admin/reload", headers=bearer)
                served_names.append(response.json()["model"])
                await asyncio.sleep(0.05)
            stop.set()
            await asyncio.gather(*tasks)
        return responses, served_names

    with served(fitted("idcf-dot"), folder=folder, token=TOKEN) as address:
        responses, served_names = asyncio.run(scenario(address))
        assert f"idcf_model_swaps_total {len(names)}\n" in httpx2.get(f"{address}/metrics").text
    assert served_names == names
    assert len(responses) > 100
    assert {x.status_code for x in responses} == {200}
    lists = {tuple(item["item_id"] for item in x.json()["items"]) for x in responses}
    assert lists <= expected  # each list comes from one model
    assert len(lists) > 1
