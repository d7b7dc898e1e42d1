"""Rules of access: keys, rates, hosts and origins, the same by the short cut and by ASGI."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from serve_world import EVEN_HISTORY, TOKEN, fitted, history_body, served

from idcf.errors import ConfigError
from idcf.server.access import (
    KEYS_VARIABLE,
    AccessControl,
    AccessRules,
    RateLimiter,
    default_hosts,
    read_api_keys,
)
from idcf.server.routes import LOG
from idcf.server.run import ServerOptions

KEYS = {"shop": "shop-key-0123456789", "app": "app-key-01234567890"}
BODY = {"history": history_body(EVEN_HISTORY), "n": 3}
ORIGIN = "https://shop.example"
RULES = AccessRules(
    api_keys=KEYS,
    allowed_hosts=["api.example", "*.api.example", "127.0.0.1"],
    cors_origins=[ORIGIN],
)
Clients = list[httpx2.Client]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """Clients of two servers with these rules: with the short cut, and without."""
    folder = fitted().save(tmp_path_factory.mktemp("access") / "model")
    options = ServerOptions(rules=RULES)
    with ExitStack() as stack:
        addresses = [
            stack.enter_context(
                served(fitted(), has_short_cut=x, options=options, folder=folder, token=TOKEN)
            )
            for x in (True, False)
        ]
        yield [stack.enter_context(httpx2.Client(base_url=x, timeout=20)) for x in addresses]


def answers(
    clients: Clients, path: str = "/v1/recommend", method: str = "POST", **headers: str
) -> httpx2.Response:
    """Send a request to both servers, compare the responses and return one of them."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps(BODY) if method == "POST" else None
    fast, slow = (x.request(method, path, content=body, headers=names) for x in clients)
    assert (fast.status_code, fast.content) == (slow.status_code, slow.content)
    differing = {"date", "x-request-id"}
    first, second = (
        [(k, v) for k, v in x.headers.multi_items() if k not in differing] for x in (fast, slow)
    )
    assert first == second
    return fast


def test_requests_need_one_of_the_keys(clients: Clients, short_cuts: list[int]) -> None:
    for headers in (
        {"x_api_key": KEYS["shop"]},
        {"authorization": f"Bearer {KEYS['app']}"},
        {"authorization": f"bearer {KEYS['app']}"},
        {"authorization": "Basic abc", "x_api_key": KEYS["app"]},
    ):
        assert len(answers(clients, **headers).json()["items"]) == 3
    assert short_cuts == [200] * 4  # requests that are refused take the other path
    for headers in (
        {},
        {"x_api_key": ""},
        {"x_api_key": KEYS["shop"][:-1]},
        {"x_api_key": KEYS["shop"] + " x"},
        {"x_api_key": "shop"},
        {"authorization": KEYS["app"]},
        {"authorization": f"Basic {KEYS['app']}"},
        {"authorization": f"Bearer {TOKEN}"},
    ):
        response = answers(clients, **headers)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert "X-API-Key: KEY" in response.json()["detail"]


def test_paths_with_and_without_a_key(clients: Clients) -> None:
    """The page, status and metrics need none; reloading has its token; all else needs one."""
    for path in ("/", "/static/page.css", "/health", "/ready", "/metrics"):
        assert answers(clients, path, "HEAD").status_code == 200
    for path in ("/v1/model", "/v1/items", "/v1/items/i2/similar", "/openapi.json", "/other"):
        assert answers(clients, path, "GET").status_code == 401
    assert answers(clients, "/v1/model", "GET", x_api_key=KEYS["app"]).status_code == 200
    assert answers(clients, "/admin/reload").status_code == 401
    response = answers(clients, "/admin/reload", authorization=f"Bearer {TOKEN}")
    assert response.json()["model"] == "idcf-dot"


def test_other_hosts_are_refused(clients: Clients) -> None:
    key = KEYS["shop"]
    for host in ("api.example", "API.example:8000", "eu.api.example", "127.0.0.1:80"):
        for _ in range(2):
            assert answers(clients, host=host, x_api_key=key).status_code == 200
    for host in (
        "evil.example",
        "api.example.evil.example",
        "xapi.example",
        "",
        "127.0.0.1.x",
        "*",
    ):
        response = answers(clients, host=host, x_api_key=key)
        assert response.status_code == 421
        assert "--allowed-hosts" in response.json()["detail"]
        assert answers(clients, "/", "GET", host=host).status_code == 421
        assert answers(clients, "/health", "GET", host=host).status_code == 200  # a probe


def test_requests_without_a_host_or_with_two_are_refused() -> None:
    access = AccessControl(RULES)
    for headers in ([], [(b"host", b"api.example")] * 2):
        with pytest.raises(Exception, match=f"{len(headers)} Host headers"):
            access.check("/v1/recommend", headers)


def test_a_trailing_slash_is_not_redirected(clients: Clients) -> None:
    response = answers(clients, "/v1/items/", "GET", x_api_key=KEYS["app"])
    assert response.status_code == 404
    assert "location" not in response.headers


def test_pages_of_allowed_origins_may_read_responses(clients: Clients) -> None:
    """Errors, too: a page has to see that its key is wrong."""
    for key, status in ((KEYS["shop"], 200), ("wrong", 401)):
        response = answers(clients, origin=ORIGIN, x_api_key=key)
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert response.headers["vary"] == "origin"
    for headers in ({}, {"origin": "https://evil.example"}, {"origin": "null"}):
        response = answers(clients, x_api_key=KEYS["shop"], **headers)
        assert response.status_code == 200
        assert "access-control-allow-origin" not in response.headers
        assert response.headers["vary"] == "origin"
    ask = {"access_control_request_method": "POST"}
    response = answers(clients, method="OPTIONS", origin=ORIGIN, **ask)  # without a key
    assert (response.status_code, response.content) == (204, b"")
    assert "x-api-key" in response.headers["access-control-allow-headers"]
    assert response.headers["access-control-allow-origin"] == ORIGIN
    response = answers(clients, method="OPTIONS", origin="https://evil.example", **ask)
    assert "access-control-allow-origin" not in response.headers
    assert answers(clients, method="OPTIONS", x_api_key=KEYS["app"]).status_code == 405


def test_any_origin_and_any_host() -> None:
    access = AccessControl(AccessRules(allowed_hosts=["*"], cors_origins=["*"]))
    assert access.check("/v1/recommend", []) == ""
    assert access.cors_headers([(b"origin", b"https://x.example")]) == {
        "access-control-allow-origin": "https://x.example",
        "access-control-expose-headers": "retry-after, x-request-id",
    }
    assert default_hosts("127.0.0.1") == default_hosts("localhost") != ()
    assert default_hosts("0.0.0.0") == default_hosts("192.0.2.1") == ()


@pytest.mark.parametrize("has_short_cut", [True, False])
def test_a_key_has_a_rate(has_short_cut: bool) -> None:
    """One request in a thousand seconds: the second one of each key is refused."""
    rules = AccessRules(api_keys=KEYS, rate_limit=0.001)
    options = ServerOptions(rules=rules)
    with served(fitted("bias"), has_short_cut=has_short_cut, options=options) as address:
        for key in KEYS.values():
            statuses = [
                httpx2.post(f"{address}/v1/recommend", json=BODY, headers={"x-api-key": key})
                for _ in range(3)
            ]
            assert [x.status_code for x in statuses] == [200, 429, 429]
            assert 900 < int(statuses[1].headers["retry-after"]) <= 1000
            assert "0.001 requests per second" in statuses[1].json()["detail"]
        assert httpx2.get(f"{address}/health").status_code == 200


def test_a_token_bucket() -> None:
    limiter = RateLimiter(10.0, ["a", "b"])
    assert [limiter.take("a", 100.0) for _ in range(10)] == [0.0] * 10
    assert limiter.take("a", 100.0) == pytest.approx(0.1)
    assert limiter.take("b", 100.0) == 0.0
    assert limiter.take("a", 100.1) == 0.0
    assert limiter.take("a", 100.1) > 0
    assert [limiter.take("a", 200.0) > 0 for _ in range(11)] == [False] * 10 + [True]
    assert RateLimiter(0.0, ["a"]).take("a", 1.0) == 0.0


def test_keys_of_a_file_or_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# comment\n\nshop {KEYS['shop']}\n  app\t{KEYS['app']}\n")
    assert read_api_keys(path) == KEYS
    assert read_api_keys(None) == {}
    monkeypatch.setenv(KEYS_VARIABLE, f"shop {KEYS['shop']}, app {KEYS['app']}")
    assert read_api_keys(None) == KEYS
    for text, problem in (
        ("", "there are no API keys"),
        ("only-a-key-0123456789", "line 1 is not a new name and a key"),
        (f"a {KEYS['app']}\na {KEYS['shop']}", "line 2 is not a new name and a key"),
        ("a b c", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=problem) as caught:
            read_api_keys(path)
        assert "0123456789" not in str(caught.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_api_keys(tmp_path / "none")
    for key in ("short", "ключ-ключ-ключ-ключ"):
        with pytest.raises(ConfigError, match="the API key of 'a' is too short or not ASCII"):
            AccessRules(api_keys={"a": key})
    with pytest.raises(ConfigError, match="give keys"):
        AccessRules(rate_limit=1)


@pytest.mark.parametrize("has_short_cut", [True, False])
def test_every_response_has_the_id_of_its_request_and_nosniff(has_short_cut: bool) -> None:
    with (
        served(fitted("bias"), has_short_cut=has_short_cut) as address,
        httpx2.Client(base_url=address) as client,
    ):
        made = set()
        for method, path in (
            ("POST", "/v1/recommend"),
            ("POST", "/v1/predict"),
            ("GET", "/"),
            ("GET", "/health"),
            ("GET", "/v1/items"),
            ("GET", "/nothing"),
            ("GET", "/v1/recommend"),
            ("HEAD", "/metrics"),
        ):
            for sent in ("", "client-1.2_3", "a" * 64, "a" * 65, "a b", 'x"y', "é".encode()):
                headers = [("x-request-id", sent)] if sent else []
                response = client.request(method, path, headers=headers)
                assert response.headers.get_list("x-content-type-options") == ["nosniff"]
                (request_id,) = response.headers.get_list("x-request-id")
                if sent in ("client-1.2_3", "a" * 64):
                    assert request_id == sent
                else:
                    made.add(request_id)
        assert len(made) == 8 * 5
        assert all(len(x) == 16 and x.isalnum() for x in made)


def test_head_is_answered_where_get_is(clients: Clients) -> None:
    for path in ("/", "/health", "/ready", "/metrics", "/v1/model", "/v1/items?query=film"):
        headers = {"x-api-key": KEYS["app"]}
        for client in clients:
            head = client.head(path, headers=headers)
            get = client.get(path, headers=headers)
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-type"] == get.headers["content-type"]
            if path != "/metrics":
                assert head.headers["content-length"] == str(len(get.content))


def events(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the lines of the log without their times, and forget them."""
    lines = [json.loads(x.getMessage()) for x in caplog.records if x.name == LOG.name]
    caplog.clear()
    assert all(line.pop("time").endswith("Z") for line in lines)
    return lines


@pytest.mark.parametrize("has_short_cut", [True, False])
def test_the_access_log_has_a_line_of_each_request_and_nothing_of_its_content(
    has_short_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    options = ServerOptions(rules=AccessRules(api_keys=KEYS), logs_requests=True)
    with (
        caplog.at_level(logging.INFO, LOG.name),
        served(fitted("bias"), has_short_cut=has_short_cut, options=options) as address,
        httpx2.Client(base_url=address, headers={"x-api-key": KEYS["shop"]}) as client,
    ):
        client.post("/v1/recommend", json=BODY, headers={"x-request-id": "one"})
        client.get("/v1/items?query=secret")
        client.head("/v1/items/i2/similar")
        client.get("/secret/path", headers={"x-api-key": "secret"})
        wait_for(lambda: len(caplog.records) == 4)
    text = caplog.text
    assert not [x for x in ("secret", "i2", "i4", KEYS["shop"], "127.0.0.1") if x in text]
    lines = events(caplog)
    assert all(x.pop("ms") >= 0 for x in lines)  # type: ignore[operator]
    ids = [x.pop("request_id") for x in lines]
    assert ids[0] == "one"
    assert len({*ids}) == 4
    names = ("event", "key", "method", "route", "status")
    assert lines == [
        dict(zip(names, ("request", *values), strict=True))
        for values in (
            ("shop", "POST", "/v1/recommend", 200),
            ("shop", "GET", "/v1/items", 200),
            ("shop", "HEAD", "/v1/items/{item_id:path}/similar", 501),
            ("", "GET", "other", 401),
        )
    ]


def wait_for(condition: object) -> None:
    """Wait for a condition, which a loaded machine may delay."""
    assert callable(condition)
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)


def test_requests_are_not_logged_by_default(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, LOG.name), served(fitted("bias")) as address:
        assert httpx2.post(f"{address}/v1/recommend", json=BODY).status_code == 200
    assert events(caplog) == []


def test_reloads_are_logged_good_and_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fitted("bias").save(tmp_path / "model")
    with (
        caplog.at_level(logging.INFO, LOG.name),
        served(fitted("bias"), folder=folder, token=TOKEN) as address,
    ):

        def reload(token: str) -> int:
            headers = {"authorization": f"Bearer {token}", "x-request-id": "id-1"}
            return httpx2.post(f"{address}/admin/reload", headers=headers).status_code

        assert reload("wrong") == 401
        (line,) = events(caplog)
        assert line == {
            "event": "reload refused",
            "request_id": "id-1",
            "reason": "no valid token",
        }
        assert reload(TOKEN) == 200
        (line,) = events(caplog)
        assert (line["event"], line["model"]) == ("model reloaded", "bias")
        (folder / "config.json").write_text("{}")
        assert reload(TOKEN) == 409
        (line,) = events(caplog)
        assert (line["event"], line["request_id"]) == ("reload failed", "id-1")
        assert "config.json" in str(line["reason"])
