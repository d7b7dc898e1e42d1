"""The schemas that the site publishes describe the files and the server that there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "idcf"
PRESETS = [*PACKAGE.glob("training/presets/*.toml"), *PACKAGE.glob("paper/presets/*.toml")]
TABLES = sorted(PACKAGE.glob("paper/tables/*.toml"))
# `make test` installs it apart: it needs older versions of packages that idcf needs, too
GENERATOR = Path(
    os.environ.get("IDCF_CLIENT_GENERATOR", Path(sys.prefix) / "client/bin/openapi-python-client")
)


@pytest.fixture(scope="module")
def schemas() -> Iterator[Any]:
    """The documents, as the site writes them."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    import schemas as extension

    documents = extension.schemas()
    for name, document in documents.items():
        json.dumps(document, allow_nan=False)
        if name.endswith(".schema.json"):
            jsonschema.Draft202012Validator.check_schema(document)
    yield documents
    sys.path.remove(str(ROOT / "docs" / "_ext"))


def problems(schema: Any, values: Any) -> list[str]:
    """Return what is wrong with values, by a schema."""
    validator = jsonschema.Draft202012Validator(schema)
    return [f"{'.'.join(map(str, x.path))}: {x.message}" for x in validator.iter_errors(values)]


def read(path: Path) -> Any:
    """Return the values of a TOML file as JSON has them."""
    return json.loads(json.dumps(tomllib.loads(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", PRESETS, ids=lambda x: f"{x.parents[1].name}-{x.stem}")
def test_the_presets_of_the_package_are_valid(schemas: Any, path: Path) -> None:
    assert problems(schemas["presets.schema.json"], read(path)) == []


@pytest.mark.parametrize("path", TABLES, ids=lambda x: x.stem)
def test_the_tables_of_the_package_are_valid(schemas: Any, path: Path) -> None:
    assert problems(schemas["table.schema.json"], read(path)) == []


def test_what_the_program_refuses_the_schemas_refuse(schemas: Any) -> None:
    presets = schemas["presets.schema.json"]
    for values, place in (
        ({"clean": {"pmff": {}}}, "pmff"),
        ({"clean": {"pmf": {"optoins": {}}}}, "optoins"),
        ({"clean": {"pmf": {"options": {"embeding_size": 8}}}}, "embeding_size"),
        ({"clean": {"pmf": {"options": {"embedding_size": "eight"}}}}, "eight"),
        ({"clean": {"pmf": {"dataset": {"ml-1m": {"train": {"epoch": 3}}}}}}, "epoch"),
        ({"clean": {"pmf": {"default": {"alternatives": [{"regg": 1}]}}}}, "regg"),
    ):
        found = problems(presets, values)
        assert found
        assert place in found[0]
    options = schemas["model-options.schema.json"]
    assert problems(options, {"als": {"embedding_size": 8}, "idcf-bayes": {"sweeps": 40}}) == []
    assert "factors" in problems(options, {"als": {"factors": 8}})[0]
    table = read(TABLES[0])
    assert "titel" in problems(schemas["table.schema.json"], {**table, "titel": "x"})[0]


CLIENT = """
import json, sys
from generated_client import Client, models as m
from generated_client.api.default import (
    embed, explain, model_info, next_question, predict, recommend, search_items, similar_items,
)

client = Client(base_url=sys.argv[1])
history = [m.HistoryItem(item_id="i2", rating=5.0), m.HistoryItem(item_id="i3", rating=1.0)]
info = model_info.sync(client=client)
best = recommend.sync(client=client, body=m.RecommendRequest(history=history, n=3))
assert isinstance(best, m.RecommendationList) and isinstance(best.items[0], m.RecommendationBody)
first = best.items[0].item_id
reasons = explain.sync(client=client, body=m.ExplainRequest(history=history, item_id=first))
scores = predict.sync(client=client, body=m.PredictRequest(history=history, item_ids=[first, "i3"]))
question = next_question.sync(client=client, body=m.NextQuestionRequest(history=history))
vector = embed.sync(client=client, body=m.EmbedRequest(history=history))
refused = recommend.sync_detailed(client=client, body=m.RecommendRequest(history=history, n=0))
assert isinstance(refused.parsed, m.ErrorDetail)
print(json.dumps({
    "model": info.model,
    "best": [x.item_id for x in best.items],
    "reasons": [x.item_id for x in reasons.reasons],
    "scores": [x.score for x in scores.items],
    "question": question.items[0].item_id,
    "size": len(vector.embedding),
    "found": search_items.sync(client=client, query="matrix", n=1).items[0].item_id,
    "similar": similar_items.sync("i2", client=client, n=2).items[0].item_id,
    "refused": [refused.status_code, refused.parsed.detail],
}))
"""


@contextmanager
def server() -> Iterator[tuple[Any, str]]:
    """Yield a small recommender and the address of a server of it."""
    sys.path.insert(0, str(ROOT / "tests" / "server"))
    try:
        import serve_world
    finally:
        sys.path.pop(0)
    recommender = serve_world.fitted("idcf-bayes")
    with serve_world.served(recommender) as address:
        yield recommender, address


@pytest.mark.skipif(not GENERATOR.exists(), reason=f"{GENERATOR} is missing; run make test")
def test_a_client_generated_from_the_description_calls_a_server(
    schemas: Any, tmp_path: Path
) -> None:
    (tmp_path / "openapi.json").write_text(json.dumps(schemas["openapi.json"]))
    (tmp_path / "use.py").write_text(CLIENT)
    options = "--path openapi.json --output-path generated_client --meta none --fail-on-warning"
    env = {**os.environ, "PATH": f"{GENERATOR.parent}{os.pathsep}{os.environ['PATH']}"}
    env.pop("PYTHONPATH", None)
    made = subprocess.run(
        [str(GENERATOR), "generate", *options.split()],
        cwd=tmp_path, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    with server() as (recommender, address):
        used = subprocess.run(
            [str(GENERATOR.parent / "python"), "use.py", address],
            cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert used.returncode == 0, used.stderr
    values = json.loads(used.stdout)
    history = {"i2": 5.0, "i3": 1.0}
    best = [x.item_id for x in recommender.recommend(history, n=3)]
    assert values["model"] == "idcf-bayes"
    assert values["best"] == best
    assert set(values["reasons"]) == set(history)
    expected = recommender.predict(history, [best[0], "i3"]).tolist()
    assert values["scores"] == pytest.approx(expected, abs=1e-4)
    assert values["question"] == recommender.next_question(history, n=1)[0].item_id
    assert values["size"] == len(recommender.embed(history))
    assert values["found"] == "i1"
    assert values["similar"] == recommender.similar_items("i2", n=1)[0].item_id
    status, detail = values["refused"]
    assert status == 422
    assert "`$.n`" in detail
