"""Bodies, the service without HTTP, and the description at /openapi.json."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from asgi_calls import answer, http_scope
from hypothesis import given
from hypothesis import strategies as st
from serve_world import EVEN_HISTORY, fitted, world

from idcf.data.interactions import Interactions, Vocab
from idcf.errors import ColdUserError, ConfigError, DataError
from idcf.recommender import Recommender
from idcf.server import schemas as s
from idcf.server.app import create_app
from idcf.server.batcher import RequestBatcher
from idcf.server.service import RecommendationService, _round_column

HISTORY = [s.HistoryItem(k, v) for k, v in EVEN_HISTORY.items()]
REQUESTS = list(s.EXAMPLES)


@cache
def service(name: str = "idcf-dot", implicit: bool = False) -> RecommendationService:
    return RecommendationService(recommender(name, implicit))


def recommender(name: str = "idcf-dot", implicit: bool = False) -> Recommender:
    """Return the fitted model that other files of tests use as well."""
    if implicit:
        return fitted(name, implicit=True)
    return fitted() if name == "idcf-dot" else fitted(name)


@cache
def numbered() -> RecommendationService:
    """Return a posterior model whose item ids are 0, 10, 20, ..."""
    table = world()
    items = Vocab([10 * n for n in range(len(table.items))])
    numbers = Interactions(table.users, items, table.user, table.item, table.rating)
    options = {"sweeps": 6, "burn_in": 3, "embedding_size": 2, "rank": 3}
    return RecommendationService(
        Recommender("idcf-bayes", key_threshold=12, device="cpu", **options).fit(numbers)
    )


@cache
def description() -> dict[str, Any]:
    """Return /openapi.json."""
    app = create_app(RequestBatcher(fitted()))
    return answer(app, http_scope("/openapi.json", "GET")).json()


def decode(kind: type, text: str | bytes) -> Any:
    return msgspec.json.decode(text, type=kind)


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_published_example_is_a_valid_request(kind: type) -> None:
    request = decode(kind, json.dumps(s.EXAMPLES[kind]))
    assert len(request.history) == len(s.EXAMPLES[kind]["history"])
    assert request.history[0] == s.HistoryItem("50", 5.0)


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_unknown_field_is_refused_at_every_level(kind: type) -> None:
    example = s.EXAMPLES[kind]
    history = [{**example["history"][0], "weight": 1}]
    for body in ({**example, "extra": 1}, {**example, "history": history}):
        with pytest.raises(msgspec.ValidationError, match="contains unknown field"):
            decode(kind, json.dumps(body))


@pytest.mark.parametrize(
    ("kind", "field", "largest"),
    [
        (s.RecommendRequest, "n", s.MAX_RESULTS),
        (s.NextQuestionRequest, "n", s.MAX_QUESTIONS),
    ],
)
def test_counts_have_limits(kind: type, field: str, largest: int) -> None:
    assert getattr(decode(kind, json.dumps({field: largest})), field) == largest
    assert getattr(decode(kind, "{}"), field) >= 1
    for value in (0, -1, largest + 1, 1.5, "1", None):
        with pytest.raises(msgspec.ValidationError, match=r"\$\.n"):
            decode(kind, json.dumps({field: value}))


@pytest.mark.parametrize(
    ("kind", "field", "entry", "largest"),
    [
        (s.RecommendRequest, "history", {"item_id": "a"}, s.MAX_HISTORY_ITEMS),
        (s.RecommendRequest, "exclude", "a", s.MAX_ITEM_IDS),
        (s.RecommendRequest, "candidates", 1, s.MAX_ITEM_IDS),
        (s.PredictRequest, "item_ids", "a", s.MAX_PREDICT_ITEMS),
        (s.NextQuestionRequest, "exclude", "a", s.MAX_ITEM_IDS),
    ],
)
def test_lists_have_limits(kind: type, field: str, entry: Any, largest: int) -> None:
    assert len(getattr(decode(kind, json.dumps({field: [entry] * largest})), field)) == largest
    with pytest.raises(msgspec.ValidationError, match=f"length <= {largest}"):
        decode(kind, json.dumps({field: [entry] * (largest + 1)}))


@given(st.text(min_size=1, max_size=256) | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e9, 1e9))
def test_ids_keep_their_type(item: Any) -> None:
    decoded = decode(s.ExplainRequest, json.dumps({"item_id": item})).item_id
    assert decoded == item
    assert type(decoded) is type(item)


@pytest.mark.parametrize("text", ["", "x" * 257])
def test_ids_have_a_length(text: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"length.*item_id"):
        decode(s.ExplainRequest, json.dumps({"item_id": text}))


def test_two_requests_do_not_share_their_default_lists() -> None:
    first, second = decode(s.RecommendRequest, "{}"), decode(s.RecommendRequest, "{}")
    assert first.history == second.history == []
    assert (first.n, first.exclude, first.candidates, first.features) == (10, [], [], {})


def test_a_response_has_the_inherited_fields() -> None:
    score = s.ItemScore("i1", None, 4.5)
    encoded = json.loads(s.encode_json(s.ItemScoreList([score], ["x"], False)))
    assert encoded == {
        "items": [{"item_id": "i1", "title": None, "score": 4.5}],
        "unknown_items": ["x"],
        "ignored_ratings": False,
    }
    for kind in (s.RecommendationBody, s.ReasonBody, s.QuestionBody, s.ExplanationBody):
        assert kind.__struct_fields__[:2] == ("item_id", "title")


@pytest.mark.parametrize(
    ("name", "explains", "asks"), [("idcf-dot", True, False), ("idcf-bayes", True, True)]
)
def test_the_description_of_the_model(name: str, explains: bool, asks: bool) -> None:
    info = service(name).model_info()
    manifest = recommender(name).artifact.manifest
    assert (info.model, info.n_items, info.implicit) == (name, 40, False)
    assert (info.can_explain, info.can_suggest_questions) == (explains, asks)
    assert info.rating_levels == [1.0, 5.0]
    assert info.training_data_sha256 == manifest.training_data.sha256
    assert info.version == manifest.versions["idcf"]


def test_a_transductive_model_is_refused_before_it_is_served() -> None:
    with pytest.raises(ColdUserError, match="knows only the users it was trained on"):
        RecommendationService(Recommender("pmf", epochs=1, device="cpu").fit(world()))


def test_a_batch_answers_each_request_with_its_own_filters() -> None:
    requests = [
        s.RecommendRequest(history=HISTORY, n=4, exclude=["i8"]),
        s.RecommendRequest(history=HISTORY, n=40, candidates=["i6", "i8", "i2"]),
        s.RecommendRequest(n=2),
    ]
    expected = [
        fitted().recommend(EVEN_HISTORY, n=4, exclude=["i8"]),
        fitted().recommend(EVEN_HISTORY, n=40, candidates=["i6", "i8", "i2"]),
        fitted().recommend(n=2),
    ]
    parsed = [service().parse_request(x) for x in requests]
    for response, items in zip(service().recommend_batch(parsed), expected, strict=True):
        assert [(x.item_id, x.rank, x.source, x.title) for x in response.items] == [
            (x.item_id, x.rank, x.source, x.title) for x in items
        ]
        scores = [x.score for x in response.items]
        assert scores == [round(x, 5) for x in scores]
        np.testing.assert_allclose(scores, [x.score for x in items], atol=2e-5)
    assert service().recommend_batch([]) == []


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (s.RecommendRequest(candidates=["no"]), "candidates: 'no' is unknown"),
        (
            s.RecommendRequest(history=[s.HistoryItem("i2", 50.0)]),
            "rating 50.0 of item 'i2' is outside the scale of the model, 1 to 5",
        ),
        (s.RecommendRequest(history=[s.HistoryItem("i2")]), "item 'i2' has no rating"),
        (s.RecommendRequest(features={"age": 3}), "the model was trained without any"),
        (s.RecommendRequest(candidates=["x" * 200]), r"candidates: 'x{79} is unknown"),
    ],
)
def test_requests_that_do_not_fit_the_model(request_: s.RecommendRequest, message: str) -> None:
    with pytest.raises(DataError, match=message):
        service().parse_request(request_)


def test_unknown_ids_to_exclude_are_ignored() -> None:
    request = s.RecommendRequest(
        history=HISTORY, exclude=["no", "i8"], candidates=["i8", "i6", "x"]
    )
    (response,) = service().recommend_batch([service().parse_request(request)])
    assert [x.item_id for x in response.items] == ["i6"]
    assert response.unknown_items == []


def test_scores_are_in_the_order_of_the_request_and_may_repeat() -> None:
    request = s.PredictRequest(history=HISTORY, item_ids=["i9", "i8", "i9"])
    response = service().predict(request)
    assert [x.item_id for x in response.items] == ["i9", "i8", "i9"]
    assert response.items[0] == response.items[2]
    assert response.items[0].title == "Film 9 (1959)"
    with pytest.raises(DataError, match=r"item_ids: 'no' is unknown to the model; find ids with"):
        service().predict(s.PredictRequest(item_ids=["i8", "no"]))


@pytest.mark.parametrize("item", ["20", 20, 20.0])
def test_an_id_may_be_a_number_or_its_text(item: Any) -> None:
    history = [s.HistoryItem(item, 5.0)]
    assert numbered().predict(s.PredictRequest(item_ids=[item])).items[0].item_id == "20"
    assert numbered().explain(s.ExplainRequest(item_id=item)).item_id == "20"
    embedding = numbered().embed(s.EmbedRequest(history=history))
    assert embedding.unknown_items == []
    questions = numbered().next_question(s.NextQuestionRequest(n=40, exclude=[item]))
    assert len(questions.items) == 39
    assert "20" not in {x.item_id for x in questions.items}


def test_excluded_questions_do_not_shorten_the_list() -> None:
    plain = service("idcf-bayes").next_question(s.NextQuestionRequest(history=HISTORY, n=6))
    ids = [x.item_id for x in plain.items]
    request = s.NextQuestionRequest(history=HISTORY, n=3, exclude=[ids[0], ids[2], ids[0], "no"])
    allowed = service("idcf-bayes").next_question(request)
    assert [x.item_id for x in allowed.items] == [ids[1], *ids[3:5]]
    assert len(service("idcf-bayes").next_question(s.NextQuestionRequest(n=50)).items) == 40
    with pytest.raises(ConfigError, match="next_question needs a posterior of ratings"):
        service().next_question(s.NextQuestionRequest())


def test_an_explanation_equals_that_of_the_recommender() -> None:
    request = s.ExplainRequest(history=[*HISTORY, s.HistoryItem("no", 3.0)], item_id="i8")
    body = service("idcf-bayes").explain(request)
    expected = fitted("idcf-bayes").explain({**EVEN_HISTORY, "no": 3.0}, "i8")
    assert (body.item_id, body.title) == (expected.item_id, expected.title)
    assert body.score == pytest.approx(expected.score, abs=1e-5)
    assert body.std == pytest.approx(expected.std, abs=1e-5)
    assert [(x.item_id, x.rating) for x in body.reasons] == [
        (x.item_id, x.rating) for x in expected.reasons
    ]
    assert [(x.size, x.liked_titles) for x in body.cohorts] == [
        (x.size, list(x.liked_titles)) for x in expected.cohorts
    ]
    assert (body.unknown_items, body.ignored_ratings) == (["no"], False)
    with pytest.raises(DataError, match="item_id: 'no' is unknown"):
        service().explain(s.ExplainRequest(item_id="no"))


def test_ratings_are_ignored_by_a_model_of_implicit_feedback() -> None:
    implicit = service("als", implicit=True)
    rated = s.RecommendRequest(history=[s.HistoryItem("i2", 1.0), s.HistoryItem("i4")])
    plain = s.RecommendRequest(history=[s.HistoryItem("i2"), s.HistoryItem("i4")])
    first, second = implicit.recommend_batch([implicit.parse_request(x) for x in (rated, plain)])
    assert first.items == second.items
    assert (first.ignored_ratings, second.ignored_ratings) == (True, False)


def test_a_search_without_words_lists_the_best_items() -> None:
    expected = [x.item_id for x in fitted().recommend(n=5)]
    for query in ("", "   "):
        assert [x.item_id for x in service().search_items(query, 5).items] == expected
    assert service().search_items("matrix", 5).items == [s.ItemRef("i1", "Matrix, The (1999)")]


def test_similar_items_need_a_known_item() -> None:
    response = service().similar_items("i4", 3)
    assert [x.item_id for x in response.items] == [
        x.item_id for x in fitted().similar_items("i4", n=3)
    ]
    assert [x.rank for x in response.items] == [1, 2, 3]
    with pytest.raises(DataError, match="item_id: 'no' is unknown"):
        service().similar_items("no", 3)


def test_every_reference_of_the_description_exists() -> None:
    text, schemas = json.dumps(description()), description()["components"]["schemas"]
    names = {x.split('"')[0] for x in text.split("#/components/schemas/")[1:]}
    assert names <= set(schemas)
    assert {"RecommendRequest", "RecommendationList", "ErrorDetail", "ModelInfo"} <= names


def test_every_route_is_described_with_its_statuses() -> None:
    paths = description()["paths"]
    post = {path: x["post"] for path, x in paths.items() if "post" in x}
    assert set(post) == {
        "/v1/recommend", "/v1/embed", "/v1/predict", "/v1/explain", "/v1/next-question"
    }  # fmt: skip
    for path, operation in post.items():
        statuses = set(operation["responses"])
        assert statuses - {"501"} == {"200", "408", "413", "422", "503"}
        assert "501" in statuses or path == "/v1/recommend"
        assert operation["operationId"] == path.removeprefix("/v1/").replace("-", "_")
        assert "Retry-After" in operation["responses"]["503"]["headers"]
        content = operation["requestBody"]["content"]["application/json"]
        kind = next(x for x in REQUESTS if content["schema"]["$ref"].endswith(f"/{x.__name__}"))
        assert content["example"] == s.EXAMPLES[kind]
    assert set(paths["/v1/items/{item_id}/similar"]["get"]["responses"]) == {
        "200", "404", "422", "501"
    }  # fmt: skip
    ids = [op["operationId"] for x in paths.values() for op in x.values()]
    assert len(ids) == len(set(ids))


def test_the_description_has_the_limits_of_the_schemas() -> None:
    schemas = description()["components"]["schemas"]
    request = schemas["RecommendRequest"]
    assert request["additionalProperties"] is False
    assert request["properties"]["n"]["maximum"] == s.MAX_RESULTS
    assert request["properties"]["history"]["maxItems"] == s.MAX_HISTORY_ITEMS
    assert schemas["PredictRequest"]["required"] == ["item_ids"]
    assert request["examples"] == [s.EXAMPLES[s.RecommendRequest]]


def test_columns_are_rounded_like_single_numbers() -> None:
    values = np.random.default_rng(0).normal(3, 2, 2000).astype(np.float32).tolist()
    values += [0.0, -0.0, 1.5, 1e-7, 123456.75, 1e6]
    assert _round_column(values) == [round(x, 5) for x in values]
    assert _round_column([None, 0.1234567, None]) == [None, 0.12346, None]
    assert _round_column([]) == []
