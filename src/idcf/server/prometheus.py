"""Metrics of the server in the Prometheus text format. No label holds text sent by a client."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator

from idcf.server.batcher import RequestBatcher
from idcf.server.middleware import BUCKET_BOUNDS_S, ServerMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(metrics: ServerMetrics, batcher: RequestBatcher) -> str:
    """Return all metrics of the server, the batcher and the process as text."""
    lines = [*_http_lines(metrics), *_batcher_lines(batcher), *_process_lines()]
    return "\n".join(lines) + "\n"


def _http_lines(metrics: ServerMetrics) -> Iterator[str]:
    """Yield the lines of request counts, open requests and durations."""
    name = "idcf_http_requests_total"
    yield from _header_lines(name, "counter", "Requests by route and status.")
    for (route, status), count in sorted(metrics.request_counts.items()):
        yield f'{name}{{route="{route}",status="{status}"}} {count}'
    name = "idcf_http_open_requests"
    yield from _value_lines(
        name, "gauge", "Requests that are being answered.", metrics.open_requests
    )
    name = "idcf_http_request_duration_seconds"
    yield from _header_lines(name, "histogram", "Duration of requests by route.")
    for route, buckets in sorted(metrics.bucket_counts.items()):
        total = 0
        for bound, count in zip([*BUCKET_BOUNDS_S, "+Inf"], buckets, strict=True):
            total += count
            yield f'{name}_bucket{{route="{route}",le="{bound}"}} {total}'
        yield f'{name}_sum{{route="{route}"}} {metrics.total_seconds[route]:.6f}'
        yield f'{name}_count{{route="{route}"}} {total}'


def _batcher_lines(batcher: RequestBatcher) -> Iterator[str]:
    """Yield the lines of the batcher's counts, its queue and its model."""
    counts, model = batcher.counts, batcher.service.model_info()
    for name, kind, help_text, value in (
        ("batches_total", "counter", "Batches of recommendation requests.", counts.n_batches),
        ("batched_requests_total", "counter", "Requests answered in batches.", counts.n_answered),
        (
            "rejected_requests_total",
            "counter",
            "Requests rejected because of load.",
            counts.n_rejected,
        ),
        (
            "model_swaps_total",
            "counter",
            "Models loaded by POST /admin/reload.",
            counts.n_model_swaps,
        ),
        ("queue_length", "gauge", "Requests that wait for the next batch.", batcher.queue_length),
    ):
        yield from _value_lines(f"idcf_{name}", kind, help_text, value)
    yield from _header_lines("idcf_model_info", "gauge", "The served model, as labels.")
    labels = (
        f'model="{model.model}",training_data_sha256="{model.training_data_sha256[:12]}",'
        f'n_items="{model.n_items}"'
    )
    yield f"idcf_model_info{{{labels}}} 1"


def _process_lines() -> Iterator[str]:
    """Yield the lines of CPU time and peak memory."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = f"{usage.ru_utime + usage.ru_stime:.3f}"
    yield from _value_lines(
        "process_cpu_seconds_total", "counter", "CPU time of the process.", seconds
    )
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    yield from _value_lines("idcf_memory_peak_bytes", "gauge", "Peak memory of the process.", peak)


def _value_lines(name: str, kind: str, help_text: str, value: int | str) -> Iterator[str]:
    """Yield the lines of a metric with one value and no labels."""
    yield from _header_lines(name, kind, help_text)
    yield f"{name} {value}"


def _header_lines(name: str, kind: str, help_text: str) -> Iterator[str]:
    """Yield the HELP and TYPE lines of a metric."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
