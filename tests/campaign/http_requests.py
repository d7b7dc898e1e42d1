"""Requests made from the description of the interface, and hostile ones, to several models."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import schemathesis
from attack import Tally
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as with_seed
from hypothesis.errors import Unsatisfiable
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serve_world import TITLES, fitted, served, world
from slow_clients import host_and_port

from idcf.recommender import Recommender

N_EXAMPLES = 60  # of each operation, valid and invalid ones
N_BODIES = 5000  # of each model
CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
LEAKS = ("Traceback", ".py", "site-packages", "/home/", "/root/", "/tmp/", "/usr/")
IDS = [f"i{k}" for k in range(40)]
STRINGS = [
    "", "\x00", "' OR 1=1 --", "<script>alert(1)</script>", "../../etc/passwd", "{{7*7}}",
    "${jndi:ldap://x}", "\n[CRITICAL] forged", "\u202e\u0000\ufeff", "💥" * 100, "a" * 300, "%s%n",
    "NaN", "__proto__", "\r\nSet-Cookie: a=b", "i1 ", "I1", "\ud800", "-1", "1e999",
]  # fmt: skip
NUMBERS: list[Any] = [
    0, -1, 1, 2.5, 3, 5, 500, 501, 1e308, -1e308, 10**400, math.nan, math.inf, 1e-320, True, "5",
    2**63, -(2**63) - 1,
]  # fmt: skip


def run(folder: Path, seed: int, share: float) -> Tally:
    """Attack servers of a model with features, one of clicks and one of ratings alone."""
    tally = Tally()
    models: dict[str, Callable[[], Recommender]] = {"features": with_features}
    if share >= 1:
        models["clicks"] = lambda: fitted("als", implicit=True)
        models["ratings"] = lambda: fitted("idcf-dot")
    for name, make in models.items():
        with served(make()) as address:
            generated(tally, address, name, seed, max(3, round(N_EXAMPLES * share)))
            fuzzed(tally, address, name, seed, max(50, round(N_BODIES * share)))
    return tally


def with_features() -> Recommender:
    """Return a small default model with features of users and attributes of items."""
    rng, table = np.random.default_rng(0), world()
    users = pd.DataFrame({"user_id": table.users.ids})
    users["age"] = rng.integers(18, 80, len(users))
    users["country"] = rng.choice(["fr", "de", "<b>"], len(users))
    items = pd.DataFrame({"item_id": table.items.ids})
    items["genre"] = rng.choice(["drama", "comedy"], len(items))
    options: dict[str, Any] = {"sweeps": 16, "burn_in": 8, "embedding_size": 4, "rank": 6}
    recommender = Recommender("idcf-bayes", key_threshold=12, device="cpu", **options)
    return recommender.fit(table, users=users, items=items, titles=TITLES)


def generated(tally: Tally, address: str, name: str, seed: int, n: int) -> None:
    """Send valid and invalid requests of every operation; answers fit their schemas."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    few = settings(
        max_examples=n, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            def check(case: Any) -> None:
                response = case.call(timeout=120)
                tally.count(f"{name}: generated requests")
                if response.status_code == 501:  # this model cannot do it, and says so
                    return
                if response.status_code == 503 and "retry-after" in response.headers:
                    return
                case.validate_response(response, checks=CHECKS)

            case = f"seed {seed}, {operation.label}, {mode.value}"
            try:
                with suppress(Unsatisfiable):  # an operation without invalid requests
                    with_seed(seed)(
                        few(given(operation.as_strategy(generation_mode=mode))(check))
                    )()
            except Exception as error:
                causes = getattr(error, "exceptions", ())
                tally.fail(f"{name}: generated", case, [error, *causes])


class Fuzzer:
    """Draws bodies: mostly valid ones, of which some parts are replaced."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def body(self, path: str) -> bytes:
        """Return a body for a route."""
        rng = self.rng
        value: dict[str, Any] = {"history": self.history()}
        if path == "/v1/predict":
            value["item_ids"] = rng.choices(IDS, k=rng.randint(0, 5))
        elif path == "/v1/explain":
            value["item_id"] = rng.choice(IDS)
        elif rng.random() < 0.5:
            value["n"] = rng.choice([1, 5, 10, 40, 500])
        for name, options in (
            ("exclude", [IDS[:3], []]),
            ("candidates", [IDS[5:20], []]),
            ("features", [{"age": 30, "country": "fr"}, {}, {"age": "x"}, {"country": None}]),
            ("where", [{"genre": "drama"}, {"genre": ["drama", "x"]}, {"year": 1}, {}]),
            ("diversity", [0, 0.5, 1, 2]),
            ("quality", [0, 0.5, 1, -1]),
            ("damping", [0, 0.5, 1]),
            ("recency", [0, 1, 30]),
        ):
            if rng.random() < 0.15:
                value[name] = rng.choice(options)
        while rng.random() < 0.5:
            value = self.mutated(value, 0)
        return self.encoded(value)

    def history(self) -> list[Any]:
        """Return a valid history."""
        rng = self.rng
        items = rng.sample(IDS, rng.randint(0, 12))
        timed = rng.random() < 0.1
        return [
            {"item_id": x, "rating": rng.randint(1, 5), **({"timestamp": 1e9 + k} if timed else {})}
            for k, x in enumerate(items)
        ]

    def mutated(self, value: Any, depth: int) -> Any:
        """Replace, remove, repeat or rename a part of a value."""
        rng = self.rng
        if depth > 4 or rng.random() < 0.15 or not isinstance(value, dict | list) or not value:
            return rng.choice([None, [], {}, True, rng.choice(STRINGS), rng.choice(NUMBERS), [[]]])
        if isinstance(value, list):
            place, change = rng.randrange(len(value)), rng.random()
            if change < 0.2:
                return value + value[place : place + 1] * rng.choice([1, 2, 6000])
            return [*value[:place], self.mutated(value[place], depth + 1), *value[place + 1 :]]
        key, change = rng.choice(list(value)), rng.random()
        if change < 0.1:
            return {x: y for x, y in value.items() if x != key}
        if change < 0.2:
            return {**value, rng.choice(STRINGS): value[key]}
        return {**value, key: self.mutated(value[key], depth + 1)}

    def encoded(self, value: Any) -> bytes:
        """Return JSON, at times damaged."""
        rng, data = self.rng, bytearray(json.dumps(value).encode())
        kind = rng.random()
        if kind < 0.05 and data:
            del data[rng.randrange(len(data)) :]
        elif kind < 0.1 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind < 0.12:
            data = bytearray(json.dumps(value).encode("utf-16"))
        elif kind < 0.13:
            data = bytearray(b"[" * rng.choice([10, 5000, 200_000]))
        return bytes(data)


def fuzzed(tally: Tally, address: str, name: str, seed: int, n: int) -> None:
    """Send mutated bodies, and GET requests with hostile texts, on one connection."""
    rng = random.Random(seed)
    fuzzer, connection = Fuzzer(rng), HTTPConnection(*host_and_port(address), timeout=60)
    connection.request("GET", "/openapi.json")
    description = json.loads(connection.getresponse().read())
    posts = [x for x, y in description["paths"].items() if "post" in y]
    for number in range(n):
        if rng.random() < 0.9:
            path, method = rng.choice(posts), "POST"
            body = fuzzer.body(path)
            answer = description["paths"][path]["post"]["responses"]
        else:
            text = quote(rng.choice(STRINGS), safe="", errors="surrogatepass")
            path, method, body, answer = f"/v1/items?query={text}", "GET", b"", {}
            if rng.random() < 0.5:
                path = f"/v1/items/{text}/similar?n={rng.choice(['3', '-1', 'x', '10000'])}"
        connection.request(method, path, body)
        response = connection.getresponse()
        tally.count(f"{name}: fuzzed requests")
        tally.count(f"{name}: fuzzed, status {response.status}")
        problem = problem_of(
            response.status, response.headers, response.read(), answer, description
        )
        if problem:
            case = f"seed {seed}, {number}: {method} {path} {body[:300]!r}"
            tally.fail(f"{name}: fuzzed", case, problem)
    connection.close()


def problem_of(
    status: int, headers: Any, body: bytes, answers: dict[str, Any], description: dict[str, Any]
) -> str:
    """Return what is wrong with an answer; nothing if it keeps the promises."""
    text = body.decode("utf-8", "replace")
    if status >= 500 and not (status == 501 or (status == 503 and headers["retry-after"])):
        return f"status {status}: {text[:500]}"
    if any(x in text for x in LEAKS) and not any(x in text for x in ("etc/passwd",)):
        return f"a leak: {text[:500]}"
    value = json.loads(body)
    if status != 200 and not 0 < len(value["detail"]) <= 1500:
        return f"status {status} without a reason: {text[:500]}"
    if answers:
        if str(status) not in answers:
            return f"status {status} is not in the description: {text[:500]}"
        schema = answers[str(status)]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**schema, "components": description["components"]})
        if errors := list(validator.iter_errors(value)):
            return f"status {status}: {errors[0].message[:300]}"
    return ""
