"""Metrics of the server in the Prometheus text format. No label holds text sent by a client."""

from __future__ import annotations

import resource
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from idcf.server.batcher import RequestBatcher

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKET_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class ServerMetrics:
    """Number and duration of the requests of each route."""

    def __init__(self) -> None:
        self.request_counts: Counter[tuple[str, int]] = Counter()  # (route, status)
        self.open_requests = 0
        self._bucket_counts: dict[str, list[int]] = {}
        self._total_seconds: dict[str, float] = {}

    def record_request(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request by route and status, and add its duration to the histogram."""
        self.request_counts[route, status] += 1
        buckets = self._bucket_counts.get(route)
        if buckets is None:
            buckets = self._bucket_counts[route] = [0] * (len(_BUCKET_BOUNDS_S) + 1)
            self._total_seconds[route] = 0.0
        buckets[bisect_left(_BUCKET_BOUNDS_S, seconds)] += 1
        self._total_seconds[route] += seconds

    def render(self, batcher: RequestBatcher) -> str:
        """Return all metrics of the server, the batcher and the process as text."""
        return "\n".join([*self._http_lines(), *_batcher_lines(batcher), *_process_lines()]) + "\n"

    def _http_lines(self) -> Iterator[str]:
        """Yield the lines of request counts, open requests and durations."""
        name = "idcf_http_requests_total"
        yield from _header_lines(name, "counter", "Requests by route and status.")
        for (route, status), count in sorted(self.request_counts.items()):
            yield f'{name}{{route="{route}",status="{status}"}} {count}'
        name = "idcf_http_open_requests"
        yield from _header_lines(name, "gauge", "Requests that are being answered.")
        yield f"{name} {self.open_requests}"
        name = "idcf_http_request_duration_seconds"
        yield from _header_lines(name, "histogram", "Duration of requests by route.")
        for route, buckets in sorted(self._bucket_counts.items()):
            total = 0
            for bound, count in zip([*_BUCKET_BOUNDS_S, "+Inf"], buckets, strict=True):
                total += count
                yield f'{name}_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'{name}_sum{{route="{route}"}} {self._total_seconds[route]:.6f}'
            yield f'{name}_count{{route="{route}"}} {total}'


def _batcher_lines(batcher: RequestBatcher) -> Iterator[str]:
    """Yield the lines of the batcher's counts, its queue and its model."""
    counts, model = batcher.counts, batcher.service.model_info()
    for name, help_text, value in (
        ("batches_total", "Batches of recommendation requests.", counts.n_batches),
        ("batched_requests_total", "Requests answered in batches.", counts.n_answered),
        ("rejected_requests_total", "Requests rejected because of load.", counts.n_rejected),
        ("model_swaps_total", "Models loaded by POST /admin/reload.", counts.n_model_swaps),
    ):
        yield from _header_lines(f"idcf_{name}", "counter", help_text)
        yield f"idcf_{name} {value}"
    name = "idcf_queue_length"
    yield from _header_lines(name, "gauge", "Requests that wait for the next batch.")
    yield f"{name} {batcher.queue_length}"
    yield from _header_lines("idcf_model_info", "gauge", "The served model, as labels.")
    labels = (
        f'model="{model.model}",training_data_sha256="{model.training_data_sha256[:12]}",'
        f'n_items="{model.n_items}"'
    )
    yield f"idcf_model_info{{{labels}}} 1"


def _process_lines() -> Iterator[str]:
    """Yield the lines of CPU time and peak memory."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    yield from _header_lines("process_cpu_seconds_total", "counter", "CPU time of the process.")
    yield f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.3f}"
    yield from _header_lines("idcf_memory_peak_bytes", "gauge", "Peak memory of the process.")
    yield f"idcf_memory_peak_bytes {usage.ru_maxrss * bytes_per_unit}"


def _header_lines(name: str, kind: str, help_text: str) -> Iterator[str]:
    """Yield the HELP and TYPE lines of a metric."""
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} {kind}"
