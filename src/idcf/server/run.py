"""Run the server: uvicorn with one worker on one core, and no access log."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from idcf.errors import ConfigError
from idcf.recommender import Recommender
from idcf.server.app import create_app
from idcf.server.batcher import BatcherLimits, RequestBatcher, freeze_garbage_collector
from idcf.server.middleware import RequestMiddleware
from idcf.server.protocol import ShortCut

_MIN_TOKEN_CHARS = 16
_BACKLOG = 2048  # connections that wait to be accepted


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: BatcherLimits | None = None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Load a model and serve it over HTTP until the process is interrupted.

    Port 0 picks a free port. Without a token there is no POST /admin/reload. `on_ready` gets the
    server's address once it listens. ConfigError: the server cannot listen on the address.
    """
    batcher = RequestBatcher(Recommender.load(folder), limits)
    app = create_app(batcher, folder=folder, token=token)
    freeze_garbage_collector()
    listener = open_listening_socket(host, port)
    server = uvicorn.Server(server_config(app, ShortCut(batcher, app)))
    host_name = f"[{host}]" if ":" in host else host
    on_ready(f"http://{host_name}:{listener.getsockname()[1]}")
    with listener:
        server.run([listener])


def server_config(app: RequestMiddleware, http: Any) -> uvicorn.Config:
    """Return uvicorn's settings; `http` makes the protocol of a connection, or is its name."""
    return uvicorn.Config(
        app,
        http=http,
        log_level="warning",
        access_log=False,  # paths are sent by clients; /metrics counts requests
        server_header=False,
        proxy_headers=False,  # clients could forge them
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=10,
    )


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the address; raise ConfigError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; try another --port") from None
    return listener


def read_token(path: Path) -> str:
    """Return the reload token in a file; a command line or environment would show it to others."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the reload token cannot be read: {error}") from None
    if len(token) < _MIN_TOKEN_CHARS:
        raise ConfigError(
            f"{path}: the reload token is too short; use at least {_MIN_TOKEN_CHARS} characters"
        )
    return token
