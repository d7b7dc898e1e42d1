"""`idcf bench-serve`: measure how many requests a served model answers, and how fast."""

from __future__ import annotations

from typing import Annotated, Any

from idcf.cli import options as o
from idcf.cli.serve import require_serve_extra


def bench_serve(
    model_folder: o.ModelFolder,
    url: Annotated[
        str | None,
        o.option(
            "URL",
            "Address of a server of this model that runs already; by default one is started on "
            "127.0.0.1.",
        ),
    ] = None,
    connections: Annotated[
        int, o.option("N", "Connections, each with one request at a time.", min=1, max=4096)
    ] = 64,
    seconds: Annotated[
        float, o.option("S", "Duration of the measurement.", min=0.1, max=600)
    ] = 10.0,
    history_length: Annotated[
        int, o.option("N", "Number of items in each history.", min=1, max=5000)
    ] = 20,
    n: Annotated[int, o.option("N", "Number of items in each list.", "-n", min=1, max=500)] = 10,
    workers: Annotated[
        int, o.option("N", "Workers of the server that is started.", min=1, max=256)
    ] = 1,
    as_json: o.JsonSwitch = False,
) -> None:
    """Measure requests per second and latency of a served model, beside the model without HTTP.

    Histories are drawn from the catalogue, popular items more often. The requests are sent by
    another process; two free cores are needed for figures of one worker.
    """
    require_serve_extra()
    o.limit_threads(1)
    from idcf.server.benchmark import LoadOptions, measure_server

    options = LoadOptions(
        connections=connections,
        seconds=seconds,
        history_length=history_length,
        n=n,
        workers=workers,
        url=url,
    )
    values = measure_server(model_folder, options)
    o.print_result(values, _describe(values), as_json)


def _describe(values: dict[str, Any]) -> str:
    """Return the text of a measurement."""
    engine, errors = values["engine"], values["errors"]
    latencies = ", ".join(
        f"{name} {'-' if x is None else f'{x:.1f} ms'}" for name, x in values["latency_ms"].items()
    )
    n_errors = ", ".join(f"{count} x {name}" for name, count in errors.items()) or "no errors"
    cpu_ratio = values["cpu_ratio"]
    lines = [
        f"server     {values['requests_per_second']:,.0f} requests/s: {values['requests']:,} in "
        f"{values['seconds']:.1f} s on {values['connections']} connections, {n_errors}",
        f"latency    {latencies}",
        f"engine     {engine['users_per_second']:,.0f} users/s in process, "
        f"{engine['batch_size']} at once; the server had {values['mean_batch_size']:.1f} at once",
        f"ratio      {values['ratio']:.2f} of the engine; by CPU time "
        + ("-" if cpu_ratio is None else f"{cpu_ratio:.2f}")
        + f" ({values['server_cpu_us_per_request']:.0f} us a request, "
        f"{engine['cpu_us_per_user']:.0f} us a user)",
        f"machine    {values['cores']} cores, load average {values['load_average']:.2f} before; "
        f"{values['workers']} workers",
    ]
    if values["client_is_bottleneck"]:
        lines.append("note       the client used more CPU time than the server: it sets the limit")
    return "\n".join(lines)
