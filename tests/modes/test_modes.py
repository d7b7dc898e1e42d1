"""Every operation with every kind of feedback, in Python, on the command line and over HTTP.

A cell of the table works, or answers with one sentence; docs/howto/what-works.md holds the table.

python tests/modes/test_modes.py --write    # write the tables of the page
"""

from __future__ import annotations

import asyncio
import csv
import json
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from idcf import Recommender
from idcf.cli import app
from idcf.errors import IdcfError
from idcf.server.app import create_app
from idcf.server.batcher import RequestBatcher
from idcf.testing.synthetic import checkerboard

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "what-works.md"
FACES = ("Python", "command line", "HTTP")
MODES = {  # what `fit` is called with, and the model that answers
    "ratings": ("idcf-bayes", False, False, "a table with ratings"),
    "clicks": ("idcf-bayes", True, True, "a table without ratings: `idcf-takeup`"),
    "both": ("idcf-bayes", False, True, "ratings read as clicks: `implicit=True`, `--implicit`"),
    "odds": ("idcf-odds", True, True, "`idcf-odds` on clicks"),
}
TAKE_UP = ("clicks", "both")
ON_CLICKS = (*TAKE_UP, "odds")
NO_STD = (
    "predict_interval needs standard deviations of ratings, which '{model}', fitted on clicks, "
    "does not have: fit idcf-bayes on a table with ratings; of a click, predict gives the "
    "probability"
)
NO_VECTOR = (
    "{class_} scores items without user vectors; to embed users, fit 'als' or 'idcf-dot' or, on "
    "ratings, 'idcf-bayes'"
)
NO_NEW_ITEMS = (
    "partial_fit_items needs the uncertainty of items, which '{model}', fitted on clicks, does not "
    "have: fit it again with the new items, or fit idcf-bayes on a table with ratings"
)
NO_ONNX = (
    "OddsModel has no ONNX form; idcf-bayes, als, idcf-dot and idcf-nn can be exported and, on "
    "clicks, idcf-takeup, ease, slim and item-knn"
)
NO_FEATURES = (
    "'{model}', fitted on clicks, reads no features of users; leave them out, or fit idcf-bayes on "
    "a table with ratings"
)
REQUESTED_FEATURES = (
    "features: the model was trained without any; fit idcf-bayes with users= on a table with "
    "ratings, or leave them out"
)
# (operation, face, mode): the sentence; all other cells work
SENTENCES = {
    **{("predict_interval", f, m): NO_STD for f in FACES for m in ON_CLICKS},
    **{("embed", f, m): NO_VECTOR for f in FACES for m in ON_CLICKS},
    **{("partial_fit_items", "Python", m): NO_NEW_ITEMS for m in ON_CLICKS},
    **{("export_onnx", f, "odds"): NO_ONNX for f in FACES[:2]},
    **{("features", f, m): NO_FEATURES for f in FACES[:2] for m in ON_CLICKS},
    **{("features", "HTTP", m): REQUESTED_FEATURES for m in ON_CLICKS},
}
# (operation, face): what to do where a face has no such operation
ABSENT = {
    ("partial_fit_items", "command line"): "in Python: `partial_fit_items`, then `save`",
    ("fit", "HTTP"): "`idcf train`, then POST /admin/reload",
    ("recommend_batch", "HTTP"): "one request for each user, as many at a time as you like",
    ("partial_fit_items", "HTTP"): "in Python, then POST /admin/reload",
    ("export_onnx", "HTTP"): "`idcf export`",
    ("save", "HTTP"): "the server reads folders (POST /admin/reload) and writes none",
}
OPERATIONS = (
    *("fit", "recommend", "recommend_batch", "predict", "predict_interval", "embed", "explain"),
    *("next_question", "similar_items", "partial_fit_items", "export_onnx", "save", "features"),
)


@cache
def folder() -> Path:
    """Return a folder with ratings.csv, clicks.csv, users.csv and histories."""
    path = Path(tempfile.mkdtemp(prefix="modes-"))
    table = checkerboard(60, 24, np.random.default_rng(0))
    users, items = (
        np.array(x.ids)[k] for x, k in ((table.users, table.user), (table.items, table.item))
    )
    rows = list(zip(users, items, table.rating.astype(int), strict=True))
    for name, width in (("ratings.csv", 3), ("clicks.csv", 2)):
        write_csv(path / name, ("user_id", "item_id", "rating")[:width], [x[:width] for x in rows])
    ages = [(user, 20 + 40 * (n % 2)) for n, user in enumerate(table.users.ids)]
    write_csv(path / "users.csv", ("user_id", "age"), ages)
    some = [("ann", "i0", 5), ("ann", "i2", 5), ("bob", "nowhere", 5)]
    write_csv(path / "histories.csv", ("user_id", "item_id", "rating"), some)
    return path


def write_csv(path: Path, header: tuple[str, ...], rows: list[Any]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def table_of(mode: str) -> str:
    return str(folder() / ("clicks.csv" if MODES[mode][1] else "ratings.csv"))


def new_recommender(mode: str) -> Recommender:
    options = {"sweeps": 8, "burn_in": 2} if mode == "ratings" else {}
    return Recommender(MODES[mode][0], device="cpu", **options)


def fit_arguments(mode: str) -> dict[str, Any]:
    return {"implicit": True} if mode == "both" else {}


@cache
def fitted(mode: str) -> Recommender:
    return new_recommender(mode).fit(table_of(mode), **fit_arguments(mode))


@cache
def with_features(mode: str) -> Recommender:
    arguments = {"users": str(folder() / "users.csv"), **fit_arguments(mode)}
    return new_recommender(mode).fit(table_of(mode), **arguments)


@cache
def saved(mode: str) -> str:
    return str(fitted(mode).save(folder() / f"model-{mode}"))


def history(mode: str) -> Any:
    return {"i0": 5, "i2": 5} if mode == "ratings" else ["i0", "i2"]


def in_python(operation: str, mode: str) -> None:
    """Run an operation of `Recommender`."""
    known, path = history(mode), folder() / mode
    if operation == "fit":
        assert len(fitted(mode).predictor.item_ids) == 24
    elif operation == "features":
        recommender = with_features(mode)
        assert recommender.recommend({}, features={"age": 20}).basis == "features"
        assert recommender.recommend(known, features={"age": 20}).basis == "history"
        return
    recommender = fitted(mode)
    empty = recommender.recommend()
    if operation == "recommend":
        assert (len(recommender.recommend(known)), empty.basis) == (10, "popularity")
        assert recommender.recommend(known).basis == "history"
        assert recommender.recommend(users="u0").basis == "history"
    elif operation == "recommend_batch":
        unknown = ["nowhere"] if mode != "ratings" else {"nowhere": 5}
        with pytest.warns(UserWarning, match="no item of user 1 is known"):
            lists = recommender.recommend([known, unknown], n=3)
        assert [x.basis for x in lists] == ["history", "popularity"]
        assert lists[1] == recommender.recommend(n=3)
        with pytest.warns(UserWarning, match="user 'nobody' is not in the table"):
            assert len(recommender.recommend(users=["u0", "nobody"])) == 2
    elif operation == "predict":
        even, odd = recommender.predict(known, ["i4", "i5"])
        assert even > odd
    elif operation == "predict_interval":
        interval = recommender.predict_interval(known, ["i4"])
        assert 1 <= interval.low < interval.score < interval.high <= 5
    elif operation == "embed":
        assert np.isfinite(recommender.embed([known, known])).all()
    elif operation == "explain":
        explanation = recommender.explain(known[:1] if mode != "ratings" else {"i0": 5}, "i4")
        assert 0 < explanation.reasons[0].effect <= explanation.score
    elif operation == "next_question":
        questions = recommender.next_question(known, 3)
        assert not {x.item_id for x in questions} & {"i0", "i2"}
        assert questions[0].expected_gain >= questions[2].expected_gain > 0
    elif operation == "similar_items":
        scores = [x.score for x in recommender.similar_items("i4", 5)]
        assert 1.00001 >= scores[0] >= scores[-1] >= -1
        assert recommender.similar_items("i4", 1)[0].item_id in {f"i{2 * n}" for n in range(12)}
    elif operation == "partial_fit_items":
        columns = {"user_id": ["new"], "item_id": ["film"]}
        columns |= {"rating": [5.0]} if mode == "ratings" else {}
        copied = Recommender.from_artifact(recommender.artifact)
        copied.partial_fit_items(pa.table(columns), histories={"new": known})
        assert "film" in copied.predictor.item_ids
    elif operation == "export_onnx":
        assert recommender.export_onnx(path.with_suffix(".onnx")).stat().st_size
    elif operation == "save":
        loaded = Recommender.load(saved(mode))
        assert loaded.recommend(known) == recommender.recommend(known)


def on_the_command_line(operation: str, mode: str) -> None:
    """Run a verb of `idcf`."""
    rated = [f"--rate={x}" + ("=5" if mode == "ratings" else "") for x in ("i0", "i2")]
    histories, out = str(folder() / "histories.csv"), str(folder() / f"{mode}-{operation}.parquet")
    train = ["train", table_of(mode), "--model", MODES[mode][0], "--device", "cpu"]
    train += ["--implicit"] * (mode == "both")
    train += ["-o", "sweeps=8", "-o", "burn_in=2"] * (mode == "ratings")
    train += ["--out", str(folder() / f"cli-{mode}-{operation}"), "--json"]
    users = ["--user-features", str(folder() / "users.csv")]
    if operation in ("fit", "save", "features"):
        result = call(*train, *(users if operation == "features" else []))
        assert result["n_items"] == 24
        if operation == "features":
            listed = call("recommend", train[-2], "--feature", "age=20", "--json")
            assert listed["basis"] == "features"
        return
    arguments = {
        "recommend": ["recommend", saved(mode), *rated],
        "recommend_batch": ["recommend", saved(mode), "--histories", histories, "--out", out],
        "predict": ["predict", saved(mode), "i4", *rated],
        "predict_interval": ["predict", saved(mode), "i4", *rated, "--confidence-level=0.9"],
        "embed": ["embed", saved(mode), histories, "--out", out, "--device", "cpu"],
        "explain": ["explain", saved(mode), "i4", *rated],
        "next_question": ["next-question", saved(mode), *rated],
        "similar_items": ["similar", saved(mode), "i4"],
        "export_onnx": ["export", saved(mode), "--onnx", str(Path(out).with_suffix(".onnx"))],
    }[operation]
    result = call(*arguments, "--json")
    if operation == "recommend":
        assert (len(result["items"]), result["basis"]) == (10, "history")
    elif operation in ("predict", "predict_interval", "next_question", "similar_items"):
        assert result["items"][0]["item_id"]
    elif operation == "explain":
        assert len(result["reasons"]) == 2
    else:
        assert list(folder().glob(f"{mode}-{operation}.*"))


def call(*arguments: str) -> Any:
    """Run a command and return its result; an error of idcf is raised."""
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, IdcfError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def over_http(operation: str, mode: str) -> None:
    """Send a request to the server; the detail of an error is raised."""
    rating = {"rating": 5} if mode == "ratings" else {}
    user = {"history": [{"item_id": x, **rating} for x in ("i0", "i2")]}
    recommender = fitted(mode)
    if operation == "features":
        user = {"features": {"age": 20}}
        recommender = with_features(mode) if mode == "ratings" else recommender
    application = create_app(RequestBatcher(recommender))
    if operation == "similar_items":
        assert (
            0 < request(application, "GET", "/v1/items/i4/similar")["items"][0]["score"] <= 1.00001
        )
        return
    path, body = {
        "recommend": ("recommend", user),
        "features": ("recommend", user),
        "predict": ("predict", {**user, "item_ids": ["i4"]}),
        "predict_interval": ("predict", {**user, "item_ids": ["i4"], "confidence_level": 0.9}),
        "embed": ("embed", user),
        "explain": ("explain", {**user, "item_id": "i4"}),
        "next_question": ("next-question", user),
    }[operation]
    result = request(application, "POST", f"/v1/{path}", body)
    if operation in ("recommend", "features"):
        assert result["basis"] == ("features" if operation == "features" else "history")
        unknown = {"history": [{"item_id": "nowhere", "rating": 5}]}
        assert request(application, "POST", "/v1/recommend", unknown)["basis"] == "popularity"
    elif operation == "predict_interval":
        item = result["items"][0]
        assert 1 <= item["low"] < item["score"] < item["high"] <= 5
        assert item["std"] > 0
    else:
        assert result.get("items") or result.get("embedding") or result.get("reasons")


class RefusedError(Exception):
    """The detail of an HTTP error."""


def request(application: Any, method: str, path: str, body: Any = None) -> Any:
    """Return the JSON of a response; an error is raised with its detail."""

    async def send() -> httpx2.Response:
        transport = httpx2.ASGITransport(application)
        async with httpx2.AsyncClient(transport=transport, base_url="http://idcf") as client:
            return await client.request(method, path, json=body)

    response = asyncio.run(send())
    if response.status_code >= 400:
        assert response.status_code in (404, 405, 422, 501), response.text
        raise RefusedError(response.json()["detail"])
    return response.json()


RUN: dict[str, Callable[[str, str], None]] = dict(
    zip(FACES, (in_python, on_the_command_line, over_http), strict=True)
)


def sentence(operation: str, face: str, mode: str) -> str | None:
    """Return what a cell that does not work answers."""
    text = SENTENCES.get((operation, face, mode))
    if text is None:
        return None
    model, class_ = ("idcf-odds", "OddsModel") if mode == "odds" else ("idcf-takeup", "TakeUpModel")
    return text.format(model=model, class_=class_)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_cell_works_or_says_why_not(operation: str, face: str, mode: str) -> None:
    if (operation, face) in ABSENT:
        pytest.skip(ABSENT[operation, face])
    expected = sentence(operation, face, mode)
    if expected is None:
        RUN[face](operation, mode)
        return
    with pytest.raises((IdcfError, RefusedError), match=f"^{re.escape(expected)}$"):
        RUN[face](operation, mode)


@pytest.mark.parametrize(("operation", "face"), ABSENT)
def test_a_face_does_not_have_what_the_page_says_it_lacks(operation: str, face: str) -> None:
    name = operation.replace("_", "-")
    if face == "HTTP":
        with pytest.raises(RefusedError, match="Not Found"):
            request(create_app(RequestBatcher(fitted("clicks"))), "POST", f"/v1/{name}", {})
    else:
        result = CliRunner().invoke(app, [name])
        assert f"No such command '{name}'" in result.output


def tables() -> str:
    """Return the tables of the page: which cells work, and the sentences of the others."""
    numbers: dict[str, int] = {}

    def cell(operation: str, face: str, mode: str) -> str:
        text = ABSENT.get((operation, face)) or SENTENCES.get((operation, face, mode))
        if text is None:
            return "yes"
        text = text.format(model="…", class_="…")
        return f"[{numbers.setdefault(text, len(numbers) + 1)}]"

    lines = ["| | " + " | ".join(MODES) + " |", "|---" * (len(MODES) + 1) + "|"]
    for operation in OPERATIONS:
        cells = []
        for mode in MODES:
            parts = [cell(operation, face, mode) for face in FACES]
            cells.append(parts[0] if len(set(parts)) == 1 else " · ".join(parts))
        lines.append(f"| `{operation}` | " + " | ".join(cells) + " |")
    notes = [f"{n}. {text}" for text, n in numbers.items()]
    return "\n".join([*lines, "", *notes])


def page_text() -> str:
    """Return the page with the present tables."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
    _, _, tail = rest.partition("<!-- end -->\n")
    return f"{head}<!-- table -->\n\n{tables()}\n\n<!-- end -->\n{tail}"


def test_the_page_holds_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_text(), f"run {__file__} --write"


if __name__ == "__main__" and "--write" in sys.argv:
    PAGE.write_text(page_text(), encoding="utf-8")
