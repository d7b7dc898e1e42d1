"""Who may use the server: API keys, rate limits, allowed hosts and origins.

`AccessControl.check` has all rules. The ASGI middleware calls it for each request; the short cut of
`protocol` calls it too, and leaves every request that it refuses to ASGI.
"""

from __future__ import annotations

import hmac
import mmap
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from pathlib import Path

from starlette.exceptions import HTTPException

from idcf.errors import ConfigError

KEYS_VARIABLE = "IDCF_API_KEYS"
_LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_MIN_KEY_CHARS = 16
_KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PORT = re.compile(r":\d*$")
_OPEN_PATHS = frozenset({"/", "/health", "/ready", "/metrics", "/admin/reload"})  # without a key
_ANY_HOST_PATHS = frozenset({"/health", "/ready"})  # probes name an address
_MAX_CACHED_HOSTS = 64
_PREFLIGHT_HEADERS = [
    (b"access-control-allow-methods", b"GET, HEAD, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-request-id"),
    (b"access-control-max-age", b"600"),
]
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, kw_only=True)
class AccessRules:
    """Rules of access; the default lets every request in."""

    api_keys: Mapping[str, str] = field(default_factory=dict)  # the key of each name
    rate_limit: float = 0.0  # requests per second of one key; 0: no limit
    allowed_hosts: Sequence[str] = ()  # names, "*.name" for the names below; none: all
    cors_origins: Sequence[str] = ()  # such as https://example.com, or "*"

    def __post_init__(self) -> None:
        for name, key in self.api_keys.items():
            if len(key) < _MIN_KEY_CHARS or not key.isascii():
                raise ConfigError(
                    f"the API key of {name!r} is too short or not ASCII; use at least "
                    f"{_MIN_KEY_CHARS} characters"
                )
        if self.rate_limit and not self.api_keys:
            raise ConfigError(
                f"a rate limit of {self.rate_limit:g} is one of each API key; give keys"
            )


class AccessControl:
    """Applies `AccessRules` to requests."""

    def __init__(self, rules: AccessRules) -> None:
        self.is_open = not (rules.api_keys or rules.allowed_hosts or rules.cors_origins)
        self._digests = [(name, _digest(key.encode())) for name, key in rules.api_keys.items()]
        self._limiter = RateLimiter(rules.rate_limit, list(rules.api_keys))
        self._hosts = frozenset(x.lower() for x in rules.allowed_hosts if not x.startswith("*"))
        self._host_suffixes = tuple(
            x[1:].lower() for x in rules.allowed_hosts if x.startswith("*.")
        )
        self._checks_hosts = bool(rules.allowed_hosts) and "*" not in rules.allowed_hosts
        self._good_hosts: set[bytes] = set()  # as clients have sent them
        self._origins = frozenset(x.encode() for x in rules.cors_origins)

    def check(self, path: str, headers: Headers) -> str:
        """Return the name of the API key of a request; empty where none is needed.

        HTTPException: 400 or 421 for its host, 401 without a key, 429 beyond the rate limit.
        """
        if self._checks_hosts and path not in _ANY_HOST_PATHS:
            self._check_host([value for name, value in headers if name == b"host"])
        if not self._digests or path in _OPEN_PATHS or path.startswith("/static/"):
            return ""
        name = self._key_name(headers)
        if not name:
            raise HTTPException(
                401,
                "this server needs an API key: send the header 'Authorization: Bearer KEY' or "
                "'X-API-Key: KEY'",
                {"www-authenticate": "Bearer"},
            )
        delay = self._limiter.take(name, time.monotonic())
        if delay > 0:
            raise HTTPException(
                429,
                f"the API key {name!r} has no more than {self._limiter.rate:g} requests per second",
                {"retry-after": str(ceil(delay))},
            )
        return name

    def _check_host(self, values: list[bytes]) -> None:
        """Raise unless there is one Host header, with an allowed name."""
        if len(values) != 1:
            raise HTTPException(400, f"{len(values)} Host headers; send one")
        if values[0] in self._good_hosts:
            return
        name = _PORT.sub("", values[0].decode("latin-1")).lower()
        if name not in self._hosts and not name.endswith(self._host_suffixes or "\n"):
            raise HTTPException(
                421, f"host {name[:80]!r} is not served here; name it with --allowed-hosts"
            )
        if len(self._good_hosts) < _MAX_CACHED_HOSTS:
            self._good_hosts.add(values[0])

    def _key_name(self, headers: Headers) -> str:
        """Return the name of the key that a request has; comparing takes the same time for all."""
        key = b""
        for name, value in headers:
            if name == b"x-api-key":
                key = value
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                key = key or value[7:].strip()
        digest, result = _digest(key), ""
        for name_of_key, expected in self._digests:
            if hmac.compare_digest(digest, expected):
                result = name_of_key
        return result

    def cors_headers(self, headers: Headers) -> dict[str, str]:
        """Return the headers that let a page of an allowed origin read the response."""
        if not self._origins:
            return {}
        origin = dict(headers).get(b"origin", b"")
        if not origin or not (origin in self._origins or b"*" in self._origins):
            return {}
        return {
            "access-control-allow-origin": origin.decode("latin-1"),
            "access-control-expose-headers": "retry-after, x-request-id",
        }

    def preflight_headers(self, method: str, headers: Headers) -> Headers | None:
        """Return the headers of the response to a CORS preflight; None: the request is no such."""
        if method != "OPTIONS" or not self._origins:
            return None
        if not any(name == b"access-control-request-method" for name, _ in headers):
            return None
        return _PREFLIGHT_HEADERS


class RateLimiter:
    """A token bucket of each API key, one second large; the workers of a server share them.

    It stores the time at which a bucket is full again, as one number. Two workers that take a token
    at the same moment may take the same one.
    """

    def __init__(self, rate: float, names: Sequence[str]) -> None:
        self.rate = rate
        self.burst = max(rate, 1.0)
        self._rows = {name: row for row, name in enumerate(names)}
        self._full_times = memoryview(mmap.mmap(-1, max(1, len(names)) * 8)).cast("B").cast("d")

    def take(self, name: str, now: float) -> float:
        """Take a token; return 0, or the seconds until there is one."""
        if not self.rate:
            return 0.0
        row = self._rows[name]
        full_time = max(self._full_times[row], now) + 1 / self.rate
        delay = full_time - now - self.burst / self.rate
        if delay > 1e-9:
            return delay
        self._full_times[row] = full_time
        return 0.0


def read_api_keys(path: Path | None) -> dict[str, str]:
    """Return the API keys by name, of a file or else of the environment variable.

    Each line is `NAME KEY`; empty lines and those that begin with # are skipped.
    """
    source = KEYS_VARIABLE if path is None else str(path)
    try:
        text = os.environ.get(KEYS_VARIABLE, "") if path is None else path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the API keys cannot be read: {error}") from None
    keys: dict[str, str] = {}
    for number, line in enumerate(re.split(r"[\n,]", text), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or not _KEY_NAME.fullmatch(words[0]) or words[0] in keys:
            raise ConfigError(f"{source}: line {number} is not a new name and a key: NAME KEY")
        keys[words[0]] = words[1]
    if path is not None and not keys:
        raise ConfigError(f"{path}: there are no API keys; write lines such as: NAME KEY")
    return keys


def default_hosts(address: str) -> Sequence[str]:
    """Return the allowed hosts of a server that listens on an address.

    On a loopback address, other names are those of hostile pages that let their name point to it.
    """
    return _LOOPBACK_HOSTS if address in ("localhost", "127.0.0.1", "::1") else ()


def _digest(key: bytes) -> bytes:
    """Return a digest of a key, so that all comparisons are of the same length."""
    return sha256(key).digest()
