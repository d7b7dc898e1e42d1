"""Every route of the server, over real sockets."""

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
from serve_world import EVEN_HISTORY, TITLES, TOKEN, fitted, history_body, item_ids, served, world

from idcf import Recommender


def test_recommend_equals_the_python_recommender(client: httpx2.Client) -> None:
    response = client.post("/v1/recommend", json={"history": history_body(EVEN_HISTORY), "n": 7})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    expected = fitted().recommend(EVEN_HISTORY, n=7)
    body = response.json()
    assert (body["unknown_items"], body["ignored_ratings"]) == ([], False)
    assert [set(x) for x in body["items"]] == [
        {
            "item_id",
            "title",
            "score",
            "std",
            "rank",
            "source",
            "probability",
            "rating",
            "rating_if_shown",
        }
    ] * 7
    assert item_ids(response) == [x.item_id for x in expected]
    assert [x["rank"] for x in body["items"]] == [1, 2, 3, 4, 5, 6, 7]
    assert {x["source"] for x in body["items"]} == {"relation"}
    assert body["items"][0]["title"] == TITLES[expected[0].item_id]
    scores = [x["score"] for x in body["items"]]
    np.testing.assert_allclose(scores, [x.score for x in expected], 1e-4)


def test_a_quality_outside_its_range_or_for_a_model_without_one(client: httpx2.Client) -> None:
    for quality in (-0.1, 1.1, "high"):
        response = client.post("/v1/recommend", json={"quality": quality})
        assert response.status_code == 422
    for path, body in (("recommend", {}), ("explain", {"item_id": "i2"})):
        response = client.post(f"/v1/{path}", json={**body, "quality": 0.5})
        assert response.status_code == 422
        assert "quality: the lists of this model have one order only" in response.json()["detail"]
    assert client.get("/v1/model").json()["can_choose_quality"] is False


def test_an_empty_history_gets_popular_items(client: httpx2.Client) -> None:
    for body in ({}, {"history": []}):
        items = client.post("/v1/recommend", json=body).json()["items"]
        assert len(items) == 10
        assert {x["source"] for x in items} == {"popular"}


def test_filters(client: httpx2.Client) -> None:
    body = {"history": history_body(EVEN_HISTORY), "n": 40}
    all_ids = item_ids(client.post("/v1/recommend", json=body))
    assert not set(all_ids) & set(EVEN_HISTORY)
    filters = {"candidates": ["i9", "i2", "i12", "nowhere"], "exclude": ["i12", "nowhere"]}
    assert item_ids(client.post("/v1/recommend", json={**body, **filters})) == ["i9"]
    allowed = item_ids(client.post("/v1/recommend", json={**body, "exclude": all_ids[:2]}))
    assert allowed == all_ids[2:]


def test_unknown_items_are_reported_and_without_known_ones_the_list_is_of_popular_items(
    client: httpx2.Client,
) -> None:
    history = [
        *history_body(EVEN_HISTORY),
        {"item_id": "nowhere", "rating": 3},
        {"item_id": 17, "rating": 3},
    ]
    response = client.post("/v1/recommend", json={"history": history})
    assert response.json()["unknown_items"] == ["nowhere", "17"]
    assert item_ids(response) == item_ids(
        client.post("/v1/recommend", json={"history": history_body(EVEN_HISTORY)})
    )
    response = client.post("/v1/recommend", json={"history": history[-2:]})
    assert response.json()["unknown_items"] == ["nowhere", "17"]
    assert response.json()["items"] == client.post("/v1/recommend", json={}).json()["items"]
    assert {x["source"] for x in response.json()["items"]} == {"popular"}


def test_ids_may_be_numbers(tmp_path: Path) -> None:
    table = world()
    columns = zip(table.user, table.item, table.rating, strict=True)
    rows = "\n".join(f"{u},{i * 10},{r:g}" for u, i, r in columns)
    path = tmp_path / "numbers.csv"
    path.write_text(f"user_id,item_id,rating\n{rows}\n")
    recommender = Recommender("bias", device="cpu").fit(path)
    with served(recommender) as address:
        responses = [
            httpx2.post(f"{address}/v1/recommend", json={"history": [{"item_id": x, "rating": 5}]})
            for x in ("20", 20, 20.0)
        ]
        assert [x.status_code for x in responses] == [200] * 3
        assert item_ids(responses[0]) == item_ids(responses[1]) == item_ids(responses[2])
        assert item_ids(httpx2.get(f"{address}/v1/items?query=20"))[0] == "20"


def test_user_features(client: httpx2.Client) -> None:
    table = world()
    users = pd.DataFrame({"user_id": table.users.ids})
    users["likes"] = [("odd", "even")[int(x[1:]) % 2 == 0] for x in table.users.ids]
    options = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
    recommender = Recommender("idcf-bayes", key_threshold=12, device="cpu", **options)
    with served(recommender.fit(table, users=users)) as address:
        for likes in ("odd", "even"):
            body = {"features": {"likes": likes}}
            response = httpx2.post(f"{address}/v1/recommend", json={**body, "n": 5})
            expected = recommender.recommend(features={"likes": likes}, n=5)
            assert item_ids(response) == [x.item_id for x in expected]
            assert {x["source"] for x in response.json()["items"]} == {"features"}
            predict_body = {**body, "item_ids": [expected[0].item_id]}
            scores = httpx2.post(f"{address}/v1/predict", json=predict_body).json()["items"]
            rating = min(scores[0]["score"], 5.0)  # ratings in lists end at the scale
            assert rating == pytest.approx(expected[0].rating, abs=1e-4)
            embedding = httpx2.post(f"{address}/v1/embed", json=body).json()["embedding"]
            assert embedding == pytest.approx(recommender.embed(**body), abs=1e-4)
            explain_body = {**body, "item_id": expected[0].item_id}
            explanation = httpx2.post(f"{address}/v1/explain", json=explain_body).json()
            assert explanation["score"] == pytest.approx(expected[0].score, abs=1e-4)
            assert set(explanation["cohorts"][0]) == {"size", "weight", "liked_titles"}
            response = httpx2.post(f"{address}/v1/next-question", json={**body, "n": 3})
            questions = recommender.next_question(n=3, features={"likes": likes})
            assert item_ids(response) == [x.item_id for x in questions]
            gains = [x["expected_gain"] for x in response.json()["items"]]
            assert gains == pytest.approx([x.expected_gain for x in questions], abs=1e-4)
        response = httpx2.post(f"{address}/v1/recommend", json={"features": {"lieks": "odd"}})
        assert response.status_code == 422
        assert "likes" in response.json()["detail"]
    response = client.post("/v1/recommend", json={"features": {"likes": "odd"}})
    assert response.status_code == 422
    assert "the model was trained without any" in response.json()["detail"]


def test_implicit_feedback_needs_no_ratings_and_explicit_does(client: httpx2.Client) -> None:
    body = {"history": [{"item_id": "i2"}, {"item_id": "i4"}]}
    response = client.post("/v1/recommend", json=body)
    assert response.status_code == 422
    assert response.json()["detail"] == "item 'i2' has no rating; the model was trained on ratings"
    recommender = fitted("ease", implicit=True)
    with served(recommender) as address:
        response = httpx2.post(f"{address}/v1/recommend", json=body)
        assert item_ids(response) == [x.item_id for x in recommender.recommend(["i2", "i4"])]
        assert response.json()["ignored_ratings"] is False
        assert httpx2.get(f"{address}/v1/model").json()["implicit"] is True


def test_a_model_of_implicit_feedback_reports_that_it_ignores_ratings() -> None:
    body = {"history": [{"item_id": "i2", "rating": 1}, {"item_id": "i4", "rating": 5}]}
    with served(fitted("als", implicit=True)) as address:
        for path, extra in (
            ("recommend", {}),
            ("embed", {}),
            ("predict", {"item_ids": ["i8"]}),
            ("explain", {"item_id": "i8"}),
        ):
            response = httpx2.post(f"{address}/v1/{path}", json={**body, **extra})
            assert response.json()["ignored_ratings"] is True, path


def test_the_history_of_a_training_user_gets_that_users_list(client: httpx2.Client) -> None:
    table = world()
    for user in np.argsort(-table.user_counts())[:5]:
        rows = table.history(np.array([user]))
        ratings = zip(rows.items.tolist(), rows.values.tolist(), strict=True)
        body = {"history": history_body({f"i{item}": rating for item, rating in ratings})}
        expected = [x.item_id for x in fitted().recommend(users=[f"u{user}"])[0]]
        assert item_ids(client.post("/v1/recommend", json=body)) == expected


def random_bodies(n: int) -> list[dict[str, object]]:
    """Return requests with different histories and n, some of them with filters."""
    rng = np.random.default_rng(5)
    bodies: list[dict[str, object]] = []
    for k in range(n):
        items = rng.choice(40, rng.integers(0, 12), replace=False)
        history = {f"i{x}": float(rng.integers(1, 6)) for x in items}
        filters = {"exclude": [f"i{x}" for x in rng.choice(40, 5)]} if k % 3 == 0 else {}
        filters |= {"candidates": [f"i{x}" for x in range(20)]} if k % 17 == 0 else {}
        bodies.append({"history": history_body(history), "n": int(rng.integers(1, 15)), **filters})
    return bodies


def test_a_response_does_not_depend_on_concurrent_requests(address: str) -> None:
    """Requests one after the other and all at once give equal lists."""
    bodies = random_bodies(120)

    async def send_together() -> list[httpx2.Response]:
        limits = httpx2.Limits(max_connections=60)
        async with httpx2.AsyncClient(base_url=address, limits=limits, timeout=30) as client:
            return await asyncio.gather(*(client.post("/v1/recommend", json=x) for x in bodies))

    with httpx2.Client(base_url=address) as client:
        single = [client.post("/v1/recommend", json=x).json()["items"] for x in bodies]
        reversed_histories = [
            client.post("/v1/recommend", json={**x, "history": x["history"][::-1]}).json()["items"]
            for x in bodies
        ]
        n_batches = count_batches(client)
        batched = [x.json()["items"] for x in asyncio.run(send_together())]
        assert count_batches(client) - n_batches < 100  # requests shared batches
    assert reversed_histories == single
    for expected, items in zip(single, batched, strict=True):
        assert [x["item_id"] for x in items] == [x["item_id"] for x in expected]
        scores = [x["score"] for x in items]
        np.testing.assert_allclose(scores, [x["score"] for x in expected], atol=2e-5)


def count_batches(client: httpx2.Client) -> int:
    (count,) = re.findall(r"^idcf_batches_total (\d+)", client.get("/metrics").text, re.M)
    return int(count)


def test_embed_and_predict(client: httpx2.Client) -> None:
    response = client.post(
        "/v1/embed", json={"history": history_body({**EVEN_HISTORY, "nowhere": 1})}
    )
    assert response.json()["unknown_items"] == ["nowhere"]
    np.testing.assert_allclose(
        response.json()["embedding"], fitted().embed(EVEN_HISTORY), atol=1e-5
    )
    response = client.post(
        "/v1/predict", json={"history": history_body(EVEN_HISTORY), "item_ids": ["i8", "i9"]}
    )
    scores = [x["score"] for x in response.json()["items"]]
    np.testing.assert_allclose(scores, fitted().predict(EVEN_HISTORY, ["i8", "i9"]), atol=1e-4)
    response = client.post(
        "/v1/predict", json={"history": history_body(EVEN_HISTORY), "item_ids": ["i8", "nowhere"]}
    )
    assert response.status_code == 422
    assert "item_ids: 'nowhere' is unknown to the model" in response.json()["detail"]


def test_unsupported_requests_are_501_with_the_reason(client: httpx2.Client) -> None:
    info = client.get("/v1/model").json()
    assert (info["can_explain"], info["can_suggest_questions"]) == (True, False)
    assert (info["n_items"], info["rating_levels"][-1]) == (40, 5.0)
    response = client.post("/v1/next-question", json={"history": history_body(EVEN_HISTORY)})
    assert response.status_code == 501
    assert response.json()["detail"].startswith("next_question needs a posterior of ratings")
    with served(fitted("ease")) as address:
        response = httpx2.post(f"{address}/v1/embed", json={"history": history_body(EVEN_HISTORY)})
        assert response.status_code == 501
        assert "without user vectors" in response.json()["detail"]


def test_items_are_found_by_title(client: httpx2.Client) -> None:
    assert item_ids(client.get("/v1/items", params={"query": "the matrix"})) == ["i1"]
    assert item_ids(client.get("/v1/items", params={"query": "mattrix"})) == ["i1"]
    assert item_ids(client.get("/v1/items", params={"query": "film", "n": 4})) == [
        "i0",
        "i2",
        "i3",
        "i4",
    ]
    assert len(item_ids(client.get("/v1/items"))) == 20
    assert item_ids(client.get("/v1/items", params={"query": "ζζζζ"})) == []
    for n in ("0", "101", "x", ""):
        response = client.get("/v1/items", params={"n": n})
        assert response.status_code == 422
        assert response.json()["detail"].startswith("query.n: ")


def test_an_unknown_parameter_is_refused(client: httpx2.Client) -> None:
    for address in ("/v1/items?q=film", "/v1/items/i4/similar?q=film"):
        response = client.get(address)
        assert response.status_code == 422
        assert "no parameter named 'q'" in response.json()["detail"]


def test_similar_items(client: httpx2.Client) -> None:
    assert item_ids(client.get("/v1/items/i4/similar?n=3")) == [
        x.item_id for x in fitted().similar_items("i4", n=3)
    ]
    response = client.get("/v1/items/nowhere/similar")
    assert response.status_code == 404
    assert "'nowhere' is unknown" in response.json()["detail"]


def test_health_metrics_and_page(client: httpx2.Client) -> None:
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json() == {"status": "ready"}
    client.get("/v1/items/i4/similar")
    client.get("/no/such/<script>")
    metrics = client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in metrics.text.splitlines():
        assert re.fullmatch(r'#.*|[a-z_]+(\{([a-z_0-9]+="[^"]*",?)+\})? [0-9.e+-]+', line), line
    assert '{route="/v1/items/{item_id:path}/similar",status="200"}' in metrics.text
    assert '{route="other",status="404"}' in metrics.text
    assert "script" not in metrics.text
    page = client.get("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', page.text):
        assert client.get(path).status_code == 200, path
    assert not re.search(r'(src|href)="https?:', page.text)
    response = client.get("/", headers={"if-none-match": page.headers["etag"]})
    assert response.status_code == 304


def test_unknown_methods_and_paths(client: httpx2.Client) -> None:
    for path in ("/v1/recommend", "/v1/embed", "/admin/reload"):
        response = client.get(path)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert client.post("/v1/items").status_code == 405
    assert client.get("/docs").status_code == 404
    assert set(client.get("/v1/nothing").json()) == {"detail"}


def test_reload_needs_the_token_and_is_off_without_one(client: httpx2.Client) -> None:
    for headers in ({}, {"authorization": "Bearer nonsense"}, {"authorization": TOKEN}):
        response = client.post("/admin/reload", headers=headers)
        assert response.status_code == 401
        assert TOKEN not in response.text
    response = client.post("/admin/reload", headers={"authorization": f"Bearer {TOKEN}"})
    assert response.json()["model"] == "idcf-dot"
    with served(fitted()) as address:
        bearer = {"authorization": f"Bearer {TOKEN}"}
        assert httpx2.post(f"{address}/admin/reload", headers=bearer).status_code == 404


def test_a_damaged_model_is_not_served(tmp_path: Path) -> None:
    folder = fitted().save(tmp_path / "model")
    with served(fitted(), folder=folder, token=TOKEN) as address:
        (folder / "config.json").write_text("{}")
        bearer = {"authorization": f"Bearer {TOKEN}"}
        response = httpx2.post(f"{address}/admin/reload", headers=bearer)
        assert response.status_code == 409
        assert "the old model is still served" in response.json()["detail"]
        assert httpx2.post(f"{address}/v1/recommend", json={}).status_code == 200


def test_a_body_in_parts_or_cut_off(address: str, client: httpx2.Client) -> None:
    """Parts are joined; a client that disconnects early does no harm."""
    body = json.dumps({"history": history_body(EVEN_HISTORY), "n": 3}).encode()
    response = client.post("/v1/recommend", content=iter([body[:9], body[9:30], body[30:]]))
    assert len(item_ids(response)) == 3
    host, port = address.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(
                b"POST /v1/recommend HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
            )
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize("size", [1 << 19, 1 << 22])
def test_a_body_that_is_too_long(client: httpx2.Client, size: int) -> None:
    response = client.post("/v1/recommend", content=b" " * (size + 1))
    assert response.status_code == 413
    response = client.post("/v1/recommend", content=iter([b" " * (size // 2 + 1)] * 2))
    assert response.status_code == 413
    assert client.get("/health").status_code == 200
