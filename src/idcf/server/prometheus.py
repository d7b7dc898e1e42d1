"""Metrics of the server in the Prometheus text format. No label holds text sent by a client.

Counters are sums over the workers of a server.
"""

from __future__ import annotations

from collections.abc import Iterator

from idcf.server.batcher import RequestBatcher
from idcf.server.counters import BUCKET_BOUNDS_S, ServerMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(metrics: ServerMetrics, batcher: RequestBatcher) -> str:
    """Return all metrics of the server, the batcher and the process as text."""
    publish_gauges(metrics, batcher)
    lines = [*_http_lines(metrics), *_batcher_lines(batcher), *_process_lines(metrics)]
    return "\n".join(lines) + "\n"


def publish_gauges(metrics: ServerMetrics, batcher: RequestBatcher) -> None:
    """Write the numbers of this process that are not counted as they change."""
    metrics.publish_usage()
    batcher.counts.queue_length = batcher.queue_length


def _http_lines(metrics: ServerMetrics) -> Iterator[str]:
    """Yield the lines of request counts, open requests and durations."""
    name = "idcf_http_requests_total"
    yield from _header_lines(name, "counter", "Requests by route and status.")
    for (route, status), count in sorted(metrics.request_counts.items()):
        yield f'{name}{{route="{route}",status="{status}"}} {count}'
    name = "idcf_http_open_requests"
    n_open = metrics.total("open_requests")
    yield from _value_lines(name, "gauge", "Requests that are being answered.", f"{n_open:.0f}")
    yield from _value_lines(
        "idcf_http_open_connections",
        "gauge",
        "Connections that are open.",
        f"{metrics.total('open_connections'):.0f}",
    )
    yield from _value_lines(
        "idcf_http_evicted_connections_total",
        "counter",
        "Connections closed while they waited for their clients, because there were too many.",
        f"{metrics.total('n_evictions'):.0f}",
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
    total, model = batcher.counts.total, batcher.service.model_info()
    for name, kind, help_text, value in (
        ("batches_total", "counter", "Batches of recommendation requests.", total("n_batches")),
        (
            "batched_requests_total",
            "counter",
            "Requests answered in batches.",
            total("n_answered"),
        ),
        (
            "rejected_requests_total",
            "counter",
            "Requests rejected because of load.",
            total("n_rejected"),
        ),
        (
            "model_swaps_total",
            "counter",
            "Models loaded by POST /admin/reload.",
            batcher.counts.maximum("n_model_swaps"),  # every worker counts each of them
        ),
        ("queue_length", "gauge", "Requests that wait for the next batch.", total("queue_length")),
    ):
        yield from _value_lines(f"idcf_{name}", kind, help_text, f"{value:.0f}")
    yield from _header_lines("idcf_model_info", "gauge", "The served model, as labels.")
    labels = (
        f'model="{model.model}",training_data_sha256="{model.training_data_sha256[:12]}",'
        f'n_items="{model.n_items}"'
    )
    yield f"idcf_model_info{{{labels}}} 1"


def _process_lines(metrics: ServerMetrics) -> Iterator[str]:
    """Yield the lines of the workers, their CPU time and their memory."""
    for name, kind, help_text, value in (
        ("idcf_workers", "gauge", "Processes that serve requests.", str(len(metrics.table))),
        (
            "idcf_worker_restarts_total",
            "counter",
            "Workers that replaced one which had ended.",
            f"{metrics.total('n_restarts'):.0f}",
        ),
        (
            "process_cpu_seconds_total",
            "counter",
            "CPU time of the workers.",
            f"{metrics.total('cpu_seconds'):.3f}",
        ),
        (
            "idcf_memory_peak_bytes",
            "gauge",
            "Peak memory of the largest worker, shared pages included.",
            f"{metrics.maximum('peak_memory'):.0f}",
        ),
    ):
        yield from _value_lines(name, kind, help_text, value)


def _value_lines(name: str, kind: str, help_text: str, value: int | str) -> Iterator[str]:
    """Yield the lines of a metric with one value and no labels."""
    yield from _header_lines(name, kind, help_text)
    yield f"{name} {value}"


def _header_lines(name: str, kind: str, help_text: str) -> Iterator[str]:
    """Yield the HELP and TYPE lines of a metric."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
