"""Every route, through real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path

import httpx2
import numpy as np
import pandas as pd
import pytest
from serve_world import EVEN, TITLES, TOKEN, fitted, ids, said, served, world

from idcf import Recommender


def test_recommend_is_what_the_recommender_says(client: httpx2.Client) -> None:
    answer = client.post("/v1/recommend", json={"history": said(EVEN), "n": 7})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    want = fitted().recommend(EVEN, n=7)
    body = answer.json()
    assert body["unknown_items"] == []
    assert [set(x) for x in body["items"]] == [
        {"item_id", "title", "score", "std", "rank", "source"}
    ] * 7
    assert ids(answer) == [x.item_id for x in want]
    assert [x["rank"] for x in body["items"]] == [1, 2, 3, 4, 5, 6, 7]
    assert {x["source"] for x in body["items"]} == {"relation"}
    assert body["items"][0]["title"] == TITLES[want[0].item_id]
    np.testing.assert_allclose([x["score"] for x in body["items"]], [x.score for x in want], 1e-4)


def test_nothing_known_gets_what_is_popular(client: httpx2.Client) -> None:
    for body in ({}, {"history": []}):
        found = client.post("/v1/recommend", json=body).json()["items"]
        assert len(found) == 10
        assert {x["source"] for x in found} == {"popular"}


def test_filters(client: httpx2.Client) -> None:
    told = {"history": said(EVEN), "n": 40}
    everything = ids(client.post("/v1/recommend", json=told))
    assert not set(everything) & set(EVEN)
    some = {"candidates": ["i9", "i2", "i12", "nowhere"], "exclude": ["i12", "nowhere"]}
    assert ids(client.post("/v1/recommend", json={**told, **some})) == ["i9"]
    without = ids(client.post("/v1/recommend", json={**told, "exclude": everything[:2]}))
    assert without == everything[2:]


def test_unknown_items_are_reported_and_fatal_only_when_nothing_else_is_there(
    client: httpx2.Client,
) -> None:
    history = [*said(EVEN), {"item_id": "nowhere", "rating": 3}, {"item_id": 17, "rating": 3}]
    answer = client.post("/v1/recommend", json={"history": history})
    assert answer.json()["unknown_items"] == ["nowhere", "17"]
    assert ids(answer) == ids(client.post("/v1/recommend", json={"history": said(EVEN)}))
    answer = client.post("/v1/recommend", json={"history": history[-2:]})
    assert answer.status_code == 422
    assert "history: 'nowhere' and the 1 others are unknown here" in answer.json()["detail"]


def test_ids_may_be_numbers(tmp_path: Path) -> None:
    table = world()
    columns = zip(table.user, table.item, table.rating, strict=True)
    rows = "\n".join(f"{u},{i * 10},{r:g}" for u, i, r in columns)
    path = tmp_path / "numbers.csv"
    path.write_text(f"user_id,item_id,rating\n{rows}\n")
    made = Recommender("bias", device="cpu").fit(path)
    with served(made) as address:
        answers = [
            httpx2.post(f"{address}/v1/recommend", json={"history": [{"item_id": x, "rating": 5}]})
            for x in ("20", 20, 20.0)
        ]
        assert [x.status_code for x in answers] == [200] * 3
        assert ids(answers[0]) == ids(answers[1]) == ids(answers[2])
        assert ids(httpx2.get(f"{address}/v1/items?query=20"))[0] == "20"


def test_features_tell_what_people_like(client: httpx2.Client) -> None:
    table = world()
    users = pd.DataFrame({"user_id": table.users.ids})
    users["likes"] = [("odd", "even")[int(x[1:]) % 2 == 0] for x in table.users.ids]
    options = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
    made = Recommender("idcf-bayes", key_threshold=12, device="cpu", **options)
    with served(made.fit(table, users=users)) as address:
        for likes in ("odd", "even"):
            told = {"features": {"likes": likes}}
            found = httpx2.post(f"{address}/v1/recommend", json={**told, "n": 5}).json()["items"]
            expected = made.recommend(features={"likes": likes}, n=5)
            assert [x["item_id"] for x in found] == [x.item_id for x in expected]
            assert {x["source"] for x in found} == {"features"}
            asked = {**told, "items": [expected[0].item_id]}
            scores = httpx2.post(f"{address}/v1/predict", json=asked).json()["items"]
            assert scores[0]["score"] == pytest.approx(expected[0].score, abs=1e-4)
            vector = httpx2.post(f"{address}/v1/embed", json=told).json()["vector"]
            assert vector == pytest.approx(made.embed(features={"likes": likes}), abs=1e-4)
            why = {**told, "item_id": expected[0].item_id}
            because = httpx2.post(f"{address}/v1/explain", json=why).json()
            assert because["score"] == pytest.approx(expected[0].score, abs=1e-4)
            asks = httpx2.post(f"{address}/v1/next-question", json={**told, "n": 3}).json()["items"]
            wanted = made.next_question(n=3, features={"likes": likes})
            assert [x["item_id"] for x in asks] == [x.item_id for x in wanted]
        strange = httpx2.post(f"{address}/v1/recommend", json={"features": {"lieks": "odd"}})
        assert strange.status_code == 422
        assert "likes" in strange.json()["detail"]
    refused = client.post("/v1/recommend", json={"features": {"likes": "odd"}})
    assert refused.status_code == 422
    assert "the model was trained without any" in refused.json()["detail"]


def test_implicit_feedback_needs_no_ratings_and_explicit_does(client: httpx2.Client) -> None:
    bare = {"history": [{"item_id": "i2"}, {"item_id": "i4"}]}
    answer = client.post("/v1/recommend", json=bare)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "item 'i2' has no rating; the model was trained on ratings"
    with served(fitted("ease", implicit=True)) as address:
        found = ids(httpx2.post(f"{address}/v1/recommend", json=bare))
        assert found == [x.item_id for x in fitted("ease", implicit=True).recommend(["i2", "i4"])]
        assert httpx2.get(f"{address}/v1/model").json()["implicit"] is True


def test_a_copy_of_a_known_user_gets_that_users_list(client: httpx2.Client) -> None:
    table = world()
    for user in np.argsort(-table.counts())[:5]:
        mine = table.history(np.array([user]))
        told = {f"i{i}": v for i, v in zip(mine.items.tolist(), mine.values.tolist(), strict=True)}
        want = [x.item_id for x in fitted().recommend(users=[f"u{user}"])[0]]
        assert ids(client.post("/v1/recommend", json={"history": said(told)})) == want


def people(n: int) -> list[dict[str, object]]:
    """Different histories, different n, some with filters."""
    rng = np.random.default_rng(5)
    out: list[dict[str, object]] = []
    for k in range(n):
        items = rng.choice(40, rng.integers(0, 12), replace=False)
        told = {f"i{x}": float(rng.integers(1, 6)) for x in items}
        more = {"exclude": [f"i{x}" for x in rng.choice(40, 5)]} if k % 3 == 0 else {}
        more |= {"candidates": [f"i{x}" for x in range(20)]} if k % 17 == 0 else {}
        out.append({"history": said(told), "n": int(rng.integers(1, 15)), **more})
    return out


def test_an_answer_does_not_depend_on_who_else_asks(address: str) -> None:
    """One after the other and all at once, and all at once again: the same lists."""
    asked = people(120)

    async def together() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=60)
        async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=30) as client:
            return await asyncio.gather(*(client.post("/v1/recommend", json=x) for x in asked))

    with httpx2.Client(base_url=address) as client:
        alone = [client.post("/v1/recommend", json=x).json()["items"] for x in asked]
        turned = [
            client.post("/v1/recommend", json={**x, "history": x["history"][::-1]}).json()["items"]
            for x in asked
        ]
        passes = passes_of(client)
        at_once = [x.json()["items"] for x in asyncio.run(together())]
        assert passes_of(client) - passes < 100  # they were answered together
    assert turned == alone
    for one, many in zip(alone, at_once, strict=True):
        assert [x["item_id"] for x in one] == [x["item_id"] for x in many]
        np.testing.assert_allclose([x["score"] for x in one], [x["score"] for x in many], atol=2e-5)


def passes_of(client: httpx2.Client) -> int:
    (found,) = re.findall(r"^idcf_passes_total (\d+)", client.get("/metrics").text, re.M)
    return int(found)


def test_embed_and_predict(client: httpx2.Client) -> None:
    answer = client.post("/v1/embed", json={"history": said({**EVEN, "nowhere": 1})})
    assert answer.json()["unknown_items"] == ["nowhere"]
    np.testing.assert_allclose(answer.json()["vector"], fitted().embed(EVEN), atol=1e-5)
    answer = client.post("/v1/predict", json={"history": said(EVEN), "items": ["i8", "i9"]})
    found = [x["score"] for x in answer.json()["items"]]
    np.testing.assert_allclose(found, fitted().predict(EVEN, ["i8", "i9"]), atol=1e-4)
    answer = client.post("/v1/predict", json={"history": said(EVEN), "items": ["i8", "nowhere"]})
    assert answer.status_code == 422
    assert "items: 'nowhere' is unknown here" in answer.json()["detail"]


def test_what_a_model_cannot_do_is_501_with_the_reason(client: httpx2.Client) -> None:
    about = client.get("/v1/model").json()
    assert (about["explains"], about["asks"]) == (True, False)
    answer = client.post("/v1/next-question", json={"history": said(EVEN)})
    assert answer.status_code == 501
    assert answer.json()["detail"].startswith("next_question needs a posterior model")
    with served(fitted("ease")) as address:
        answer = httpx2.post(f"{address}/v1/embed", json={"history": said(EVEN)})
        assert answer.status_code == 501
        assert "scores items without vectors" in answer.json()["detail"]


def test_items_are_found_by_what_people_type(client: httpx2.Client) -> None:
    assert ids(client.get("/v1/items", params={"query": "the matrix"})) == ["i1"]
    assert ids(client.get("/v1/items", params={"query": "mattrix"})) == ["i1"]
    assert ids(client.get("/v1/items", params={"query": "film", "n": 4})) == [
        "i0",
        "i2",
        "i3",
        "i4",
    ]
    assert len(ids(client.get("/v1/items"))) == 20
    assert ids(client.get("/v1/items", params={"query": "ζζζζ"})) == []
    for n in ("0", "101", "x", ""):
        answer = client.get("/v1/items", params={"n": n})
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith("query.n: ")


def test_similar_items(client: httpx2.Client) -> None:
    assert ids(client.get("/v1/items/i4/similar?n=3")) == [
        x.item_id for x in fitted().similar_items("i4", n=3)
    ]
    answer = client.get("/v1/items/nowhere/similar")
    assert answer.status_code == 404
    assert "'nowhere' is unknown" in answer.json()["detail"]


def test_health_metrics_and_the_page(client: httpx2.Client) -> None:
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json() == {"status": "ready"}
    client.get("/v1/items/i4/similar")
    client.get("/no/such/<script>")
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in metrics.text.splitlines():
        assert re.fullmatch(r'#.*|[a-z_]+(\{([a-z_]+="[^"]*",?)+\})? [0-9.e+-]+', line), line
    assert '{route="/v1/items/{item_id:path}/similar",status="200"}' in metrics.text
    assert '{route="other",status="404"}' in metrics.text
    assert "script" not in metrics.text
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for part in re.findall(r'(?:src|href)="(/[^"]*)"', page.text):
        assert client.get(part).status_code == 200, part
    assert not re.search(r'(src|href)="https?:', page.text)
    again = client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert again.status_code == 304


def test_methods_and_places_that_do_not_exist(client: httpx2.Client) -> None:
    for path in ("/v1/recommend", "/v1/embed", "/admin/reload"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert client.post("/v1/items").status_code == 405
    assert client.get("/docs").status_code == 404
    assert set(client.get("/v1/nothing").json()) == {"detail"}


def test_reload_needs_the_token_and_is_off_without_one(client: httpx2.Client) -> None:
    for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": TOKEN}):
        answer = client.post("/admin/reload", headers=headers)
        assert answer.status_code == 401
        assert TOKEN not in answer.text
    answer = client.post("/admin/reload", headers={"authorization": f"Bearer {TOKEN}"})
    assert answer.json()["model"] == "idcf-dot"
    with served(fitted()) as address:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert httpx2.post(f"{address}/admin/reload", headers=bearer).status_code == 404


def test_a_damaged_model_is_not_put_to_work(tmp_path: Path) -> None:
    folder = fitted().save(tmp_path / "model")
    with served(fitted(), folder=folder, token=TOKEN) as address:
        (folder / "config.json").write_text("{}")
        bearer = {"authorization": f"Bearer {TOKEN}"}
        answer = httpx2.post(f"{address}/admin/reload", headers=bearer)
        assert answer.status_code == 409
        assert "the old model stays at work" in answer.json()["detail"]
        assert httpx2.post(f"{address}/v1/recommend", json={}).status_code == 200


def test_a_body_that_dribbles_in_or_stops(address: str, client: httpx2.Client) -> None:
    """Parts are put together; a client that leaves halfway harms nobody."""
    body = json.dumps({"history": said(EVEN), "n": 3}).encode()
    answer = client.post("/v1/recommend", content=iter([body[:9], body[9:30], body[30:]]))
    assert len(ids(answer)) == 3
    host, port = address.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("size", [1 << 19, 1 << 22])
def test_a_body_that_is_too_long(client: httpx2.Client, size: int) -> None:
    answer = client.post("/v1/recommend", content=b" " * (size + 1))
    assert answer.status_code == 413
    answer = client.post("/v1/recommend", content=iter([b" " * (size // 2 + 1)] * 2))
    assert answer.status_code == 413
    assert client.get("/health").status_code == 200
