"""Counters and times as Prometheus reads them. Labels are ours, never a client's."""

from __future__ import annotations

import resource
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from idcf.server.batcher import Engine

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Metrics:
    """How many requests of each route ended how, and how long they took."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self.open = 0

    def saw(self, route: str, status: int, seconds: float) -> None:
        self.requests[route, status] += 1
        buckets = self._buckets.get(route)
        if buckets is None:
            buckets = self._buckets[route] = [0] * (len(_BOUNDS) + 1)
        buckets[bisect_left(_BOUNDS, seconds)] += 1
        self._seconds[route] += seconds  # type: ignore[assignment]

    def text(self, engine: Engine) -> str:
        return "\n".join([*self._http(), *_of(engine), *_process()]) + "\n"

    def _http(self) -> Iterator[str]:
        yield from _head("idcf_http_requests_total", "counter", "Requests by route and status.")
        for (route, status), n in sorted(self.requests.items()):
            yield f'idcf_http_requests_total{{route="{route}",status="{status}"}} {n}'
        yield from _head("idcf_http_open", "gauge", "Requests being answered.")
        yield f"idcf_http_open {self.open}"
        name = "idcf_http_seconds"
        yield from _head(name, "histogram", "Time from the first byte to the last.")
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, n in zip([*_BOUNDS, "+Inf"], buckets, strict=True):
                total += n
                yield f'{name}_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'{name}_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'{name}_count{{route="{route}"}} {total}'


def _of(engine: Engine) -> Iterator[str]:
    counts, model = engine.counts, engine.now.model()
    for name, what, value in (
        ("passes_total", "Batches answered.", counts.passes),
        ("answered_total", "Newcomers answered in them.", counts.answered),
        ("refused_total", "Questions refused for lack of room.", counts.refused),
        ("swaps_total", "Models put to work since the start.", counts.swaps),
    ):
        yield from _head(f"idcf_{name}", "counter", what)
        yield f"idcf_{name} {value}"
    yield from _head("idcf_waiting", "gauge", "Questions waiting for the next batch.")
    yield f"idcf_waiting {engine.waiting}"
    yield from _head("idcf_model_info", "gauge", "The model at work.")
    told = f'model="{model.model}",trained_on="{model.trained_on[:12]}",items="{model.items}"'
    yield f"idcf_model_info{{{told}}} 1"


def _process() -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    scale = 1 if sys.platform == "darwin" else 1024
    yield from _head("process_cpu_seconds_total", "counter", "CPU time.")
    yield f"process_cpu_seconds_total {usage.ru_utime + usage.ru_stime:.3f}"
    yield from _head("idcf_memory_peak_bytes", "gauge", "The most memory ever held.")
    yield f"idcf_memory_peak_bytes {usage.ru_maxrss * scale}"


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"
