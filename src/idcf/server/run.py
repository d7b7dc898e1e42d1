"""Run the server: uvicorn in this process or in several workers, one core each."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import uvicorn

from idcf.errors import ConfigError
from idcf.recommender import Recommender
from idcf.server.access import AccessRules
from idcf.server.app import create_app
from idcf.server.batcher import BatcherLimits, RequestBatcher, freeze_garbage_collector
from idcf.server.connections import ConnectionLimits, ConnectionTable, LimitedProtocol
from idcf.server.draining import BACKLOG, DrainingServer
from idcf.server.middleware import RequestMiddleware
from idcf.server.protocol import ShortCut
from idcf.server.routes import LOG
from idcf.server.workers import Supervisor

_MIN_TOKEN_CHARS = 16
_GRACE_S = 10  # for the requests in flight when the server is to end


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Options of `serve`; of several workers, each has the limits for itself."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: a free one
    token: str | None = None  # for POST /admin/reload; None: there is no such route
    workers: int = 1
    limits: BatcherLimits = field(default_factory=BatcherLimits)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    rules: AccessRules = field(default_factory=AccessRules)
    drain_delay_s: float = 0.0  # between status 503 of /ready and the end of listening
    logs_requests: bool = False
    tls: TlsFiles | None = None
    mcp: bool = False  # tools for agents at /mcp


class TlsFiles(NamedTuple):
    """The certificate chain and the private key of the server, in PEM files."""

    certificate: Path
    key: Path


def tls_files(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    """Return the files of HTTPS, or None without any; ConfigError: only one of them."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("HTTPS needs a certificate and its key: --ssl-certfile, --ssl-keyfile")
    return TlsFiles(certificate, key)


def serve(
    folder: Path, options: ServerOptions, on_ready: Callable[[str], None] = lambda address: None
) -> None:
    """Load a model and serve it over HTTP until the process is interrupted.

    `on_ready` gets the server's address once it listens. ConfigError: the server cannot listen on
    the address or use the TLS files, or there are no workers on this system.
    """
    workers = options.workers
    if workers > 1 and not (hasattr(socket, "SO_REUSEPORT") and hasattr(os, "memfd_create")):
        raise ConfigError(f"{workers} workers need Linux; use --workers 1")
    connections = options.connections.within_open_files()
    recommender = Recommender.load(folder)
    if recommender.manifest.user_data == "rows":
        warnings.warn(f"{folder}: {recommender.manifest.user_data_text}", stacklevel=2)
    batcher = RequestBatcher(recommender, options.limits, workers)
    app = create_app(
        batcher,
        folder=folder,
        token=options.token,
        mcp=options.mcp,
        rules=options.rules,
        logs_requests=options.logs_requests,
    )
    freeze_garbage_collector()
    make_server = partial(server_for, batcher, app, connections, options)
    _check_config(make_server().config)
    host = options.host
    listeners = open_listening_sockets(host, options.port, workers)
    host_name = f"[{host}]" if ":" in host else host
    scheme = "http" if options.tls is None else "https"
    address = f"{scheme}://{host_name}:{listeners[0].getsockname()[1]}"
    log_to_standard_error()
    if workers == 1:
        on_ready(address)
        with listeners[0] as listener:
            make_server().run([listener])
    else:
        stop_timeout = _GRACE_S + options.drain_delay_s
        supervisor = Supervisor(folder, batcher, app.metrics, listeners, make_server, stop_timeout)
        supervisor.run(lambda: on_ready(address))


def server_for(
    batcher: RequestBatcher,
    app: RequestMiddleware,
    connections: ConnectionLimits,
    options: ServerOptions,
    *,
    has_short_cut: bool = True,
) -> DrainingServer:
    """Return a server of this process; without the short cut, ASGI answers all routes."""
    table = ConnectionTable(app, connections)
    protocol = ShortCut(batcher, app, table) if has_short_cut else partial(LimitedProtocol, table)
    config = server_config(app, protocol, options)
    return DrainingServer(config, batcher, table, options.drain_delay_s)


def server_config(app: RequestMiddleware, http: Any, options: ServerOptions) -> uvicorn.Config:
    """Return uvicorn's settings; `http` makes the protocol of a connection."""
    headers = [("x-content-type-options", "nosniff")]
    if options.rules.cors_origins:
        headers.append(("vary", "origin"))
    return uvicorn.Config(
        app,
        http=http,
        log_level="warning",
        access_log=False,  # paths are sent by clients; the middleware has an access log
        server_header=False,
        proxy_headers=False,  # clients could forge them
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_S,
        headers=headers,
        ssl_certfile=options.tls and options.tls.certificate,
        ssl_keyfile=options.tls and options.tls.key,
    )


def _check_config(config: uvicorn.Config) -> None:
    """Raise ConfigError if the TLS files cannot be used."""
    try:
        config.load()
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            f"{config.ssl_certfile}, {config.ssl_keyfile}: not a certificate and its key in PEM "
            f"files: {error}"
        ) from None


def log_to_standard_error() -> None:
    """Write the events of the server to standard error, one line of JSON each."""
    if not LOG.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)


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
        listener.listen(BACKLOG)
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
