"""The tools for agents, called by the reference client over HTTP and over standard streams."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult
from serve_world import EVEN_HISTORY, TITLES, fitted, served

from idcf import ConfigError, Recommender
from idcf.data.attributes import ItemAttributes
from idcf.server import mcp_tools
from idcf.server.access import AccessRules
from idcf.server.run import ServerOptions
from idcf.server.service import RecommendationService

HISTORY = [{"item": TITLES[k], "rating": v} for k, v in EVEN_HISTORY.items()]
POSTERIOR = "idcf-bayes"


def call(target: Any, actions: Callable[[Client], Awaitable[Any]], **options: Any) -> Any:
    """Connect the reference client to an address or to the streams of a process."""

    async def connect() -> Any:
        async with Client(target, **options) as client:
            return await actions(client)

    return asyncio.run(asyncio.wait_for(connect(), 60))


def content(result: CallToolResult) -> Any:
    """Return the answer of a tool, which its text holds as JSON."""
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def sentence(result: CallToolResult) -> str:
    """Return the error of a tool."""
    assert result.is_error
    text: str = result.content[0].text
    return text


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(fitted(POSTERIOR), mcp=True) as server_address:
        yield f"{server_address}/mcp"


@pytest.fixture(scope="module")
def service() -> RecommendationService:
    return RecommendationService(fitted(POSTERIOR))


async def interview(client: Client) -> dict[str, Any]:
    """Ask a user who likes even films three questions, then recommend and explain."""
    description = content(await client.call_tool("describe_model", {}))
    low, high = description["lowest_rating"], description["highest_rating"]
    history: list[dict[str, Any]] = []
    for _ in range(3):
        questions = await client.call_tool("next_question", {"history": history})
        title = content(questions)["items"][0]["title"]
        number = next(int(k[1:]) for k, v in TITLES.items() if v == title)
        history.append({"item": title, "rating": high if number % 2 == 0 else low})
    best = content(await client.call_tool("recommend", {"history": history, "n": 4}))
    title = best["items"][0]["title"]
    reasons = content(await client.call_tool("explain", {"history": history, "item": title}))
    looked_up = content(await client.call_tool("search_items", {"query": title, "n": 1}))
    return {"best": best, "reasons": reasons, "history": history, "looked_up": looked_up}


def check_interview(values: dict[str, Any], recommender: Recommender) -> None:
    """Compare an interview with the answers of the library."""
    ids = {title: item for item, title in TITLES.items()}
    history = {ids[x["item"]]: x["rating"] for x in values["history"]}
    assert len(history) == 3
    best, expected = values["best"], recommender.recommend(history, n=4, return_std=True)
    assert [x["item_id"] for x in best["items"]] == [x.item_id for x in expected]
    assert [x["title"] for x in best["items"]] == [x.title for x in expected]
    assert best["source"] == expected[0].source == "posterior"
    assert best["items"][0]["rating"] == pytest.approx(expected[0].rating, abs=0.001)
    assert best["items"][0]["std"] == pytest.approx(expected[0].std, abs=0.001)
    assert values["looked_up"]["items"][0] == {
        "item_id": expected[0].item_id,
        "title": expected[0].title,
    }
    reasons = recommender.explain(history, expected[0].item_id).reasons
    assert [x["title"] for x in values["reasons"]["reasons"]] == [x.title for x in reasons]


def test_an_agent_interviews_a_user_over_http(address: str) -> None:
    check_interview(call(address, interview), fitted(POSTERIOR))


def test_an_agent_interviews_a_user_over_standard_streams(tmp_path: Path) -> None:
    folder = fitted(POSTERIOR).save(tmp_path / "model")
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "idcf", "mcp", str(folder)],
        env={"OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    check_interview(call(stdio_client(command), interview), Recommender.load(folder))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_both_generations_of_the_protocol(address: str, mode: str) -> None:
    async def list_tools(client: Client) -> Any:
        return (await client.list_tools()).tools, client.instructions

    tools, instructions = call(address, list_tools, mode=mode)
    assert [x.name for x in tools] == list(mcp_tools.TOOLS)
    assert "To interview a user" in instructions
    for tool in tools:
        assert tool.description
        assert tool.annotations.read_only_hint
        assert tool.input_schema["type"] == tool.output_schema["type"] == "object"


def test_errors_are_the_sentences_of_the_library(address: str) -> None:
    async def errors(client: Client) -> list[str]:
        return [
            sentence(await client.call_tool(name, arguments))
            for name, arguments in (
                ("recommend", {"history": [{"item": "Film 1", "rating": 5}]}),
                ("recommend", {"history": [{"item": "i2"}]}),
                ("recommend", {"history": [{"item": "i2", "rating": 90}]}),
                ("recommend", {"n": 0}),
                ("recommend", {"hist": []}),
                ("recommend", {"where": {"genre": "drama"}}),
                ("explain", {"item": "no such film"}),
            )
        ]

    ambiguous, no_rating, off_scale, no_items, typo, where, unknown = call(address, errors)
    assert ambiguous.startswith("no item named 'Film 1'; did you mean 'Film ")
    assert no_rating == "item 'i2' has no rating; the model was trained on ratings"
    assert off_scale.startswith("rating 90.0 of item 'i2' is outside")
    assert no_items == "arguments of recommend: Expected `int` >= 1 - at `$.n`"
    assert typo == "arguments of recommend: Object contains unknown field `hist`"
    assert where.startswith("where: this model knows no attributes of items")
    assert unknown.startswith("no item named 'no such film'")


def test_an_unknown_tool_is_an_error_of_the_protocol(address: str) -> None:
    async def call_unknown(client: Client) -> MCPError:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("recomend", {})
        return caught.value

    error = call(address, call_unknown, mode="legacy").error
    assert error.code == -32602
    assert error.message.startswith("no tool named 'recomend'; did you mean 'recommend'?")


def test_an_exception_that_is_no_error_of_idcf_says_nothing(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def search(client: Client) -> str:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("search_items", {"query": "film"})
        return str(caught.value)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("secret\nforged line")

    monkeypatch.setattr(RecommendationService, "search_items", fail)
    assert call(address, search, mode="legacy") == "internal error; see the server's log"
    lines = [x.getMessage() for x in caplog.records if x.name == "idcf.server"]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert "secret" in json.loads(lines[0])["trace"]


def test_what_is_left_out(service: RecommendationService) -> None:
    tools = mcp_tools
    nothing = tools.recommend(service, tools.RecommendArguments(n=3))
    assert nothing.source == "popular"
    excluded = tools.RecommendArguments(exclude=[x.item_id for x in nothing.items], n=3)
    assert not {x.item_id for x in tools.recommend(service, excluded).items} & {
        x.item_id for x in nothing.items
    }
    first = tools.next_question(service, tools.NextQuestionArguments()).items[0]
    arguments = tools.NextQuestionArguments(exclude=[first.title or ""])
    assert tools.next_question(service, arguments).items[0] != first
    words = tools.ExplainArguments(item="matrix", history=[tools.RatedItem("i2", 5)])
    assert tools.explain(service, words).title == TITLES["i1"]  # the only one with this word


def test_a_model_of_clicks_takes_histories_without_ratings() -> None:
    service = RecommendationService(fitted("als", implicit=True))
    tools = mcp_tools
    description = tools.describe_model(service, tools.NoArguments())
    assert (description.feedback, description.lowest_rating) == ("implicit", None)
    assert len(description.example_items) == 3
    arguments = tools.RecommendArguments(history=[tools.RatedItem("i2")], n=2)
    expected = fitted("als", implicit=True).recommend(["i2"], n=2)
    assert [x.item_id for x in tools.recommend(service, arguments).items] == [
        x.item_id for x in expected
    ]
    with pytest.raises(ConfigError, match="next_question"):
        tools.next_question(service, tools.NextQuestionArguments())


def test_the_most_frequent_values_of_an_attribute_are_described() -> None:
    recommender = fitted("als", implicit=True)
    cells = ["zulu" if n >= 30 else f"{n:04}" for n in range(len(recommender.predictor.item_ids))]
    attributes = ItemAttributes.from_cells({"tag": cells})
    artifact = replace(recommender.artifact, attributes=attributes)
    service = RecommendationService(Recommender.from_artifact(artifact))
    description = mcp_tools.describe_model(service, mcp_tools.NoArguments())
    n_values = len(set(cells))
    assert description.n_attribute_values == {"tag": n_values}
    assert n_values == 31 > len(description.attributes["tag"]) == mcp_tools._MAX_VALUES
    assert "zulu" in description.attributes["tag"]


def test_requests_that_are_refused(address: str) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    with httpx2.Client(timeout=10) as client:
        assert client.get(address).status_code == 405
        for origin in ("https://example.com", "null", "http://localhost.example.com"):
            response = client.post(address, json=body, headers={"origin": origin})
            assert response.status_code == 403
            assert "are refused" in response.json()["detail"]
        headers = {"accept": "application/json, text/event-stream"}
        for origin in ("http://localhost:6274", "http://127.0.0.1"):
            response = client.post(address, json=body, headers={**headers, "origin": origin})
            assert response.status_code == 200
            assert len(response.json()["result"]["tools"]) == len(mcp_tools.TOOLS)
        assert client.post(address, content=b"x" * (1 << 20)).status_code == 413
        metrics = client.get(address.replace("/mcp", "/metrics")).text
    assert 'route="/mcp",status="200"' in metrics.replace('", ', '",')


def test_the_rules_of_access_hold_for_agents(address: str) -> None:
    rules = AccessRules(api_keys={"agent": "a-key-of-the-tests"}, allowed_hosts=["127.0.0.1"])
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream", "x-api-key": "a-key-of-the-tests"}
    options = ServerOptions(rules=rules)
    with (
        served(fitted(POSTERIOR), options=options, mcp=True) as server,
        httpx2.Client() as client,
    ):
        assert client.post(f"{server}/mcp", json=body).status_code == 401
        assert client.post(f"{server}/mcp", json=body, headers=headers).status_code == 200
        headers["host"] = "example.com"
        assert client.post(f"{server}/mcp", json=body, headers=headers).status_code == 421


def test_without_the_flag_there_is_no_route(client: httpx2.Client) -> None:
    assert client.post("/mcp", json={}).status_code == 404
