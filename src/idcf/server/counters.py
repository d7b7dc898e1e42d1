"""Counters in memory that a process shares with those forked from it later.

Each worker counts in its own row, without a lock, and any worker can read the rows of all.
"""

from __future__ import annotations

import mmap
import sys
import time
from bisect import bisect_left
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

with suppress(ImportError):  # Windows has no such module
    import resource

BUCKET_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
OTHER_ROUTE = "other"
_N_GAUGES = 6  # cells of `ServerMetrics` before those of its routes
_N_STATUSES, _N_BUCKETS = 600, len(BUCKET_BOUNDS_S) + 1
_ROUTE_CELLS = _N_STATUSES + _N_BUCKETS + 1  # the last one is the sum of the durations


class Cell:
    """An attribute of `CounterRows`: a number of the row in use."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __get__(self, rows: CounterRows, owner: type) -> float:
        """Return the number of this process."""
        return rows.row[self.index]

    def __set__(self, rows: CounterRows, value: float) -> None:
        """Write the number of this process."""
        rows.row[self.index] = value


class CounterRows:
    """Rows of numbers, one row for each worker; a process writes to one of them only."""

    def __init__(self, n_cells: int, n_workers: int) -> None:
        memory = mmap.mmap(-1, n_cells * n_workers * 8)
        self._cells = memoryview(memory).cast("B").cast("d")
        self.n_cells = n_cells
        self.table: NDArray[np.float64] = np.frombuffer(memory).reshape(n_workers, n_cells)
        self.use_row(0)

    def use_row(self, worker: int) -> None:
        """Write to the row of a worker from now on."""
        self.row = self._cells[worker * self.n_cells : (worker + 1) * self.n_cells]

    def total(self, name: str) -> float:
        """Return the sum of a number over all workers."""
        return float(self._column(name).sum())

    def maximum(self, name: str) -> float:
        """Return the largest of the numbers of all workers."""
        return float(self._column(name).max())

    def _column(self, name: str) -> NDArray[np.float64]:
        cell: Cell = vars(type(self))[name]
        return self.table[:, cell.index]


class BatcherCounts(CounterRows):
    """Counts of a `RequestBatcher` since its start."""

    n_batches = Cell(0)
    n_answered = Cell(1)  # requests answered in batches
    n_rejected = Cell(2)  # requests rejected because of load
    n_model_swaps = Cell(3)  # models that replaced the first one
    queue_length = Cell(4)  # as it was when it was last written

    def __init__(self, n_workers: int = 1) -> None:
        super().__init__(5, n_workers)

    def use_row(self, worker: int) -> None:
        """Count in the row of a worker from now on, after those that it replaces."""
        super().use_row(worker)
        self.queue_length = 0


class ServerMetrics(CounterRows):
    """Number and duration of the requests of each route, and numbers of the processes.

    A route that is not in `routes` is counted as "other".
    """

    open_requests = Cell(0)
    cpu_seconds = Cell(1)  # as the next one: at the last `publish_usage`
    peak_memory = Cell(2)  # in bytes
    n_restarts = Cell(3)  # processes that replaced one which had ended
    open_connections = Cell(4)
    n_evictions = Cell(5)  # connections closed because there were too many

    def __init__(self, routes: tuple[str, ...] = (), n_workers: int = 1) -> None:
        self.routes = (*routes, OTHER_ROUTE)
        self._start_of = {name: _N_GAUGES + k * _ROUTE_CELLS for k, name in enumerate(self.routes)}
        super().__init__(_N_GAUGES + len(self.routes) * _ROUTE_CELLS, n_workers)

    def publish_usage(self) -> None:
        """Write the CPU time and, where the system tells it, the peak memory into the row."""
        if "resource" not in globals():
            self.cpu_seconds = self._earlier_cpu_seconds + time.process_time()
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu_seconds = self._earlier_cpu_seconds + usage.ru_utime + usage.ru_stime
        self.peak_memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def use_row(self, worker: int) -> None:
        """Count in the row of a worker from now on, after those that it replaces."""
        super().use_row(worker)
        self.open_requests = self.open_connections = 0
        self._earlier_cpu_seconds = self.cpu_seconds

    def count_restart(self, worker: int) -> None:
        """Count, in the parent of the workers, that one is replaced."""
        self.table[worker, vars(ServerMetrics)["n_restarts"].index] += 1

    def record_request(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request by route and status, and add its duration to the histogram."""
        start, row = self._start_of.get(route) or self._start_of[OTHER_ROUTE], self.row
        row[start + status] += 1
        start += _N_STATUSES
        row[start + bisect_left(BUCKET_BOUNDS_S, seconds)] += 1
        row[start + _N_BUCKETS] += seconds

    @property
    def request_counts(self) -> dict[tuple[str, int], int]:
        """Number of requests of all workers by route and status."""
        return {
            (route, status): int(cells[status])
            for route, cells in self._route_sums().items()
            for status in np.flatnonzero(cells[:_N_STATUSES]).tolist()
        }

    @property
    def bucket_counts(self) -> dict[str, list[int]]:
        """Number of requests of all workers by route, between `BUCKET_BOUNDS_S`."""
        return {x: y[_N_STATUSES:-1].astype(int).tolist() for x, y in self._route_sums().items()}

    @property
    def total_seconds(self) -> dict[str, float]:
        """Sum of the durations of the requests of all workers by route."""
        return {route: float(cells[-1]) for route, cells in self._route_sums().items()}

    def _route_sums(self) -> dict[str, NDArray[np.float64]]:
        """Return the sums over the workers of the cells of each route that has been requested."""
        sums = self.table[:, _N_GAUGES:].sum(0).reshape(len(self.routes), _ROUTE_CELLS)
        return {x: y for x, y in zip(self.routes, sums, strict=True) if y.any()}
