"""uvicorn, set up for one worker on one core: nothing is said that was not asked for."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from idcf.errors import ConfigError
from idcf.recommender import Recommender
from idcf.server.app import create
from idcf.server.batcher import Engine, Limits, settle

_SHORTEST = 16  # characters of a token


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Load a model and answer until told to stop. Port 0 takes a free one; `ready` learns it."""
    engine = Engine(Recommender.load(folder), limits)
    app = create(engine, folder=folder, token=token)
    settle()
    door = bind(host, port)
    name = f"[{host}]" if ":" in host else host
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,  # paths are a client's words; /metrics counts requests
            server_header=False,
            proxy_headers=False,  # nobody's word is taken for where a request comes from
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=10,
        )
    )
    ready(f"http://{name}:{door.getsockname()[1]}")
    with door:
        server.run([door])


def bind(host: str, port: int) -> socket.socket:
    """The socket to listen on, or an error that names what is in the way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    door = socket.socket(family, socket.SOCK_STREAM)
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        door.bind((host, port))
        door.listen(2048)  # from here on nobody is turned away, only made to wait
    except (OSError, OverflowError) as error:
        door.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; try another --port") from None
    return door


def read_token(path: Path) -> str:
    """The token of a file, which no command line or environment shows to others."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the reload token cannot be read: {error}") from None
    if len(token) < _SHORTEST:
        raise ConfigError(f"{path}: a reload token has at least {_SHORTEST} characters")
    return token
