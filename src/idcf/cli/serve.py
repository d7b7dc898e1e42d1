"""`idcf serve`: serve a saved model over HTTP, with a web page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from idcf.cli import options as o
from idcf.errors import ConfigError, require_extra


def serve(
    model_folder: o.ModelFolder,
    host: Annotated[str, o.option("ADDRESS", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, o.option("N", "Port to listen on; 0 picks a free port.", min=0, max=65535)
    ] = 8000,
    max_delay_ms: Annotated[
        float,
        o.option(
            "MS",
            "Longest time in milliseconds that a request waits to be batched with others.",
            min=0,
            max=100,
        ),
    ] = 1.0,
    max_batch: Annotated[
        int, o.option("N", "Largest number of requests computed together.", min=1)
    ] = 64,
    max_queue: Annotated[
        int,
        o.option("N", "Largest number of waiting requests; further ones get status 503.", min=1),
    ] = 1024,
    reload_token_file: Annotated[
        Path | None,
        o.option(
            "FILE",
            "File with the token for POST /admin/reload, which loads the model folder again; "
            "without it reloading is off.",
        ),
    ] = None,
    workers: Annotated[
        int,
        o.option(
            "N",
            "Processes that serve requests, one core each; they share one port and one copy of the "
            "model.",
            min=1,
            max=256,
        ),
    ] = 1,
    mcp: Annotated[
        bool,
        o.switch("--mcp", "Serve tools for agents at /mcp, by the Model Context Protocol, too."),
    ] = False,
    threads: o.Threads = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Serve a model over HTTP, with a web page at /.

    The HTTP interface is described at /openapi.json.
    """
    require_serve_extra()
    if mcp:
        require_extra("mcp", "mcp")
    if workers > 1 and threads > 1:
        raise ConfigError(f"--threads is {threads}, but each of several workers has one thread")
    o.limit_threads(threads)
    from idcf.server import run
    from idcf.server.batcher import BatcherLimits

    def print_address(address: str) -> None:
        """Print the address of the server, as text or as one line of JSON."""
        values = {"address": address, "folder": str(model_folder), "pid": os.getpid()}
        typer.echo(json.dumps(values) if as_json else f"{address} (stop with Ctrl-C)")

    token = None if reload_token_file is None else run.read_token(reload_token_file)
    limits = BatcherLimits(
        max_delay_s=max_delay_ms / 1000, max_batch=max_batch, max_queue=max_queue
    )
    try:
        run.serve(
            model_folder,
            host=host,
            port=port,
            token=token,
            limits=limits,
            workers=workers,
            mcp=mcp,
            on_ready=print_address,
        )
    except KeyboardInterrupt:  # Ctrl-C is the normal end
        return


def require_serve_extra() -> None:
    """Raise ConfigError unless the packages of the extra `serve` are installed."""
    require_extra("serve", "fastapi", "uvicorn", "msgspec")
