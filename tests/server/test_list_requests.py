"""Options of a list over HTTP: the lists are those of the Python recommender."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import httpx2
import pandas as pd
import pytest
from serve_world import EVEN_HISTORY, fitted, history_body, item_ids, served, world

from idcf import Recommender

OPTIONS: list[dict[str, Any]] = [
    {"diversity": 0.7},
    {"damping": 1.0, "quality": 0.0},
    {"where": {"group": "g1"}},
    {"where": {"group": ["g0", "g2"], "year": 1990}, "diversity": 0.4, "n": 30},
    {"where": {"group": "g1"}, "candidates": ["i1", "i2", "i7"], "exclude": ["i7"], "damping": 0.5},
    {"recency": 0.4},
]


@cache
def with_attributes() -> Recommender:
    table = world()
    number = [int(x[1:]) for x in table.items.ids]
    items = pd.DataFrame({"item_id": table.items.ids, "year": [1990 + n // 20 for n in number]})
    items["group"] = [f"g{n % 3}" for n in number]
    options = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
    return Recommender(key_threshold=12, device="cpu", **options).fit(table, items=items)


def test_lists_are_those_of_the_python_recommender() -> None:
    body = {"history": history_body(EVEN_HISTORY)}
    with served(with_attributes()) as address:

        def request(options: dict[str, Any]) -> list[str]:
            return item_ids(httpx2.post(f"{address}/v1/recommend", json={**body, **options}))

        expected = [
            [x.item_id for x in with_attributes().recommend(EVEN_HISTORY, **x)] for x in OPTIONS
        ]
        assert [request(x) for x in OPTIONS] == expected
        with ThreadPoolExecutor(8) as pool:  # in one batch with requests of other options
            assert list(pool.map(request, OPTIONS * 4)) == expected * 4
        info = httpx2.get(f"{address}/v1/model").json()
        assert info["attributes"] == ["year", "group"]
        assert info["attribute_values"] == {"year": ["1990", "1991"], "group": ["g0", "g1", "g2"]}
        assert info["can_diversify"] is info["can_damp_popularity"] is True
        assert info["can_weigh_recency"] is True
        assert info["fitted_recency"] is None
        explained = {**body, "item_id": "i6", "damping": 0.5, "recency": 0.4}
        score = httpx2.post(f"{address}/v1/explain", json=explained).json()["score"]
        explanation = with_attributes().explain(EVEN_HISTORY, "i6", damping=0.5, recency=0.4)
        assert score == pytest.approx(explanation.score, abs=1e-4)


def test_timestamps_give_the_order() -> None:
    entries = history_body(EVEN_HISTORY)
    timed = [{**x, "timestamp": 100 - k} for k, x in enumerate(entries)]
    with served(with_attributes()) as address:

        def request(history: list[dict[str, Any]], recency: float) -> list[str]:
            body = {"history": history, "recency": recency, "n": 30}
            return item_ids(httpx2.post(f"{address}/v1/recommend", json=body))

        assert request(timed, 0.7) == request(entries[::-1], 0.7) != request(entries, 0.7)
        assert request(timed, 0.0) == request(entries, 0.0)
        response = httpx2.post(f"{address}/v1/recommend", json={"history": [*timed, *entries]})
        assert response.status_code == 422
        assert "3 of 6 items have a timestamp; give it for all or for none" in response.text


def test_ratings_if_shown() -> None:
    body = {"history": history_body(EVEN_HISTORY)}
    with served(with_attributes()) as address:
        rows = httpx2.post(f"{address}/v1/recommend", json={**body, "n": 4}).json()["items"]
        items = [x["item_id"] for x in rows]
        bodies = [{**body, "item_ids": items, "if_shown": x} for x in (False, True)]
        chosen, shown = (
            [x["score"] for x in httpx2.post(f"{address}/v1/predict", json=y).json()["items"]]
            for y in bodies
        )
    assert chosen == pytest.approx([x["rating"] for x in rows], abs=1e-3)
    assert shown == pytest.approx([x["rating_if_shown"] for x in rows], abs=1e-3)
    expected = with_attributes().predict(EVEN_HISTORY, items, if_shown=True).tolist()
    assert shown == pytest.approx(expected, abs=1e-3)
    with served(fitted("bias")) as address:
        response = httpx2.post(f"{address}/v1/predict", json=bodies[1])
        assert response.status_code == 501
        assert "if_shown needs what a fit on ratings learns" in response.json()["detail"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": {"gruop": "g1"}}, "where: no column named 'gruop'; did you mean 'group'?"),
        ({"where": {"group": "g9"}}, "where: no item has group 'g9'; known: g0, g1, g2"),
        ({"where": {"group": []}}, "where: column 'group' has no value"),
        ({"where": {"group": {"is": "g1"}}}, "body: Expected"),
        ({"diversity": 1.1}, "body: Expected `float` <= 1"),
        ({"damping": -1}, "body: Expected `float` >= 0"),
        ({"damping": None}, "body: Expected `float`"),
        ({"recency": 1.0}, "body: Expected `float` < 1"),
        ({"recency": "soon"}, "body: Invalid enum value 'soon'"),
        ({"recency": "fitted"}, "recency: no value was fitted, as there were no timestamps"),
    ],
)
def test_what_is_wrong_is_named(options: dict[str, Any], message: str) -> None:
    with served(with_attributes()) as address:
        response = httpx2.post(f"{address}/v1/recommend", json=options)
    assert response.status_code == 422
    assert message in response.json()["detail"]


def test_a_model_that_lacks_an_option_refuses_it() -> None:
    with served(fitted("bias")) as address:
        for options, message in (
            ({"diversity": 0.5}, "diversity: this model knows no similarity between items"),
            ({"damping": 0.5}, "damping: this model does not know how popular items are"),
            ({"where": {"group": "g1"}}, "where: this model knows no attributes of items"),
            ({"recency": 0.5}, "recency: this model cannot weigh items of a history"),
            ({"recency": "fitted"}, "recency: this model cannot weigh items of a history"),
        ):
            response = httpx2.post(f"{address}/v1/recommend", json=options)
            assert response.status_code == 422
            assert message in response.json()["detail"]
        info = httpx2.get(f"{address}/v1/model").json()
        assert info["attributes"] == []
        assert info["attribute_values"] == {}
        assert info["can_diversify"] is info["can_damp_popularity"] is False
        assert info["can_weigh_recency"] is False
