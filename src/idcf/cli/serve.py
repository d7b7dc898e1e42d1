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
    max_connections: Annotated[
        int,
        o.option(
            "N",
            "Largest number of open connections of each process; beyond it, those that have waited "
            "longest for their clients are closed. The limit of open files is one, too.",
            min=16,
        ),
    ] = 8192,
    max_connections_per_address: Annotated[
        int,
        o.option(
            "N",
            "The same for the connections of one address; 0, for use behind a proxy: no limit.",
            min=0,
        ),
    ] = 2048,
    api_key_file: Annotated[
        Path | None,
        o.option(
            "FILE",
            "File of API keys, in lines NAME KEY; requests need one of them. Without a file, keys "
            "in the environment variable IDCF_API_KEYS are used.",
        ),
    ] = None,
    rate_limit: Annotated[
        float,
        o.option("N", "Largest number of requests per second of each API key; 0: no limit.", min=0),
    ] = 0.0,
    allowed_hosts: Annotated[
        str | None,
        o.option(
            "NAMES",
            "Names of the server in the Host header, separated by commas; *.NAME for those below a "
            "name, * for all. Default: localhost on a loopback address, otherwise all.",
        ),
    ] = None,
    cors_origins: Annotated[
        str,
        o.option(
            "ORIGINS",
            "Origins, such as https://example.com, whose pages may read answers, separated by "
            "commas; * for all.",
        ),
    ] = "",
    ssl_certfile: Annotated[
        Path | None, o.option("FILE", "Certificate chain (PEM), to serve HTTPS.")
    ] = None,
    ssl_keyfile: Annotated[
        Path | None, o.option("FILE", "Private key of the certificate (PEM).")
    ] = None,
    drain_delay: Annotated[
        float,
        o.option(
            "SECONDS",
            "Time after SIGTERM in which /ready has status 503 and new connections are still "
            "accepted, so that a load balancer can notice.",
            min=0,
            max=600,
        ),
    ] = 0.0,
    access_log: Annotated[
        bool,
        o.switch(
            "--access-log",
            "Log every request to standard error: route, status and time, nothing of its content.",
        ),
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
    from idcf.server import access, run
    from idcf.server.batcher import BatcherLimits
    from idcf.server.connections import ConnectionLimits

    def print_address(address: str) -> None:
        """Print the address of the server, as text or as one line of JSON."""
        values = {"address": address, "folder": str(model_folder), "pid": os.getpid()}
        typer.echo(json.dumps(values) if as_json else f"{address} (stop with Ctrl-C)")

    options = run.ServerOptions(
        host=host,
        port=port,
        token=None if reload_token_file is None else run.read_token(reload_token_file),
        workers=workers,
        limits=BatcherLimits(
            max_delay_s=max_delay_ms / 1000, max_batch=max_batch, max_queue=max_queue
        ),
        connections=ConnectionLimits(
            max_connections=max_connections, max_per_address=max_connections_per_address
        ),
        rules=access.AccessRules(
            api_keys=access.read_api_keys(api_key_file),
            rate_limit=rate_limit,
            allowed_hosts=access.default_hosts(host)
            if allowed_hosts is None
            else _names(allowed_hosts),
            cors_origins=_names(cors_origins),
        ),
        drain_delay_s=drain_delay,
        logs_requests=access_log,
        mcp=mcp,
        tls=run.tls_files(ssl_certfile, ssl_keyfile),
    )
    try:
        run.serve(model_folder, options, print_address)
    except KeyboardInterrupt:  # Ctrl-C is the normal end
        return


def _names(text: str) -> list[str]:
    """Return the names in a text that are separated by commas."""
    return [x.strip() for x in text.split(",") if x.strip()]


def require_serve_extra() -> None:
    """Raise ConfigError unless the packages of the extra `serve` are installed."""
    require_extra("serve", "fastapi", "uvicorn", "msgspec")
