"""`idcf serve`: a saved model over HTTP, with a page in the browser."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o
from idcf.errors import ConfigError


def serve(
    folder: o.Folder,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    reload_token_file: Annotated[
        Path | None,
        typer.Option(help="Holds the token that POST /admin/reload wants; off without it."),
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, max=100, help="Milliseconds to wait for company.")
    ] = 1.0,
    batch: Annotated[int, typer.Option(min=1, help="People to answer in one pass.")] = 64,
    room: Annotated[int, typer.Option(min=1, help="Requests that may wait; then 503.")] = 1024,
    threads: o.Threads = 1,
    as_json: o.Json = False,
) -> None:
    """Answer over HTTP: the page at /, the description at /openapi.json."""
    if missing := [x for x in ("fastapi", "uvicorn", "msgspec") if find_spec(x) is None]:
        raise ConfigError(f"{missing[0]} is not installed; pip install 'idcf[serve]'")
    o.limit_threads(threads)
    from idcf.server.batcher import Limits
    from idcf.server.run import read_token
    from idcf.server.run import serve as run

    def ready(address: str) -> None:
        about = {"address": address, "folder": str(folder), "pid": os.getpid()}
        typer.echo(json.dumps(about) if as_json else f"{address} (stop with Ctrl-C)")

    token = None if reload_token_file is None else read_token(reload_token_file)
    limits = Limits(wait=wait / 1000, batch=batch, room=room)
    try:
        run(folder, host=host, port=port, token=token, limits=limits, ready=ready)
    except KeyboardInterrupt:  # the usual way to end it
        return
