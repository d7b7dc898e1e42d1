"""Run the server: uvicorn in this process or in several workers, one core each, no access log."""

from __future__ import annotations

import os
import socket
import warnings
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
from idcf.server.workers import Supervisor

_MIN_TOKEN_CHARS = 16
_BACKLOG = 2048  # connections that wait to be accepted


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: BatcherLimits | None = None,
    workers: int = 1,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Load a model and serve it over HTTP until the process is interrupted.

    Port 0 picks a free port. Without a token there is no POST /admin/reload. Of several `workers`,
    each has the limits for itself. `on_ready` gets the server's address once it listens.
    ConfigError: the server cannot listen on the address, or there are no workers on this system.
    """
    if workers > 1 and not (hasattr(socket, "SO_REUSEPORT") and hasattr(os, "memfd_create")):
        raise ConfigError(f"{workers} workers need Linux; use --workers 1")
    recommender = Recommender.load(folder)
    if recommender.manifest.user_data == "rows":
        warnings.warn(f"{folder}: {recommender.manifest.user_data_text}", stacklevel=2)
    batcher = RequestBatcher(recommender, limits, workers)
    app = create_app(batcher, folder=folder, token=token)
    freeze_garbage_collector()
    listeners = open_listening_sockets(host, port, workers)
    host_name = f"[{host}]" if ":" in host else host
    address = f"http://{host_name}:{listeners[0].getsockname()[1]}"

    def make_server() -> uvicorn.Server:
        return uvicorn.Server(server_config(app, ShortCut(batcher, app)))

    if workers == 1:
        on_ready(address)
        with listeners[0] as listener:
            make_server().run([listener])
    else:
        supervisor = Supervisor(folder, batcher, app.metrics, listeners, make_server)
        supervisor.run(lambda: on_ready(address))


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


def open_listening_sockets(host: str, port: int, n: int = 1) -> list[socket.socket]:
    """Return n sockets that listen on one port; raise ConfigError if that is not possible.

    The kernel distributes connections among several of them. The first one is opened alone before:
    it fails if another server listens on the port, even one that shares it with its own workers.
    """
    listener = _open_listening_socket(host, port, shared=False)
    if n == 1:
        return [listener]
    port = listener.getsockname()[1]
    listener.close()
    return [_open_listening_socket(host, port, shared=True) for _ in range(n)]


def _open_listening_socket(host: str, port: int, *, shared: bool) -> socket.socket:
    """Return a socket that listens on the address; raise ConfigError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
