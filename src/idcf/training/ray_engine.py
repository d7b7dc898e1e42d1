"""The engine of a Ray cluster; needs the extra `idcf[ray]`.

Ray makes a call again if its worker or its node dies, and computes a result again if the node that
held it dies before it was read.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch

from idcf.errors import ConfigError, EngineError
from idcf.training.engine import Call, Result, State

_MAX_RETRIES = 20  # of one call
_CALLS_PER_WORKER = 2
_CONNECT_SECONDS = 5.0


class RayEngine:
    """Makes calls on the processors of a cluster.

    Without an address a cluster is started on this machine, and ended by `close`; "auto" joins the
    one that this machine is part of. The package must be installed on every node, and files that
    are read must be there under the same path.
    """

    def __init__(self, address: str | None = None, n_workers: int | None = None) -> None:
        try:
            ray: Any = import_module("ray")
        except ImportError:
            raise ConfigError(
                "engine 'ray' needs the extra: pip install 'idcf[ray]'; or take engine 'processes'"
            ) from None
        _check_address(address)
        self._ray = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            options = {"num_cpus": n_workers} if address is None and n_workers else {}
            try:
                ray.init(
                    address=address, include_dashboard=False, log_to_driver=False,
                    logging_level="error", **options,
                )  # fmt: skip
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = str(error).strip().splitlines()[0]
                raise _unreachable(address, reason) from None
        self.n_workers = n_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results as they are completed; state is stored once on each node."""
        ray = self._ray
        remote = ray.remote(_call_on_worker).options(num_cpus=1, max_retries=_MAX_RETRIES)
        shared = {name: ray.put(value) for name, value in state.items()}
        names, values = list(shared), list(shared.values())
        waiting = list(range(len(tasks)))[::-1]
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < _CALLS_PER_WORKER * self.n_workers:
                    position = waiting.pop()
                    running[remote.remote(call, tasks[position], names, *values)] = position
                for reference in ray.wait(list(running), num_returns=1)[0]:
                    position = running.pop(reference)
                    yield position, self._result(reference, position, len(tasks))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _result(self, reference: Any, position: int, n_tasks: int) -> Any:
        """Return the result of a call; raise what it raised."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except (
            errors.WorkerCrashedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
        ) as error:
            raise EngineError(
                f"workers died {_MAX_RETRIES} times at part {position + 1} of {n_tasks} "
                f"({type(error).__name__}); if memory was short, take more parts or larger nodes"
            ) from None

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._owns_cluster and self._ray.is_initialized():
            self._ray.shutdown()


def _check_address(address: str | None) -> None:
    """Raise EngineError if nothing listens at an address; Ray would end this process."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal():  # such as "auto"
        return
    try:
        socket.create_connection((host.rpartition("/")[2], int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from None


def _unreachable(address: str | None, reason: str) -> EngineError:
    """Return the error for a cluster that cannot be reached."""
    return EngineError(
        f"no Ray cluster can be reached at {address!r} ({reason}); start one with "
        "`ray start --head`, or leave out the address"
    )


def _call_on_worker(
    call: Call[Result], task: tuple[Any, ...], names: list[str], *values: Any
) -> Result:
    """Make one call with the state that Ray has fetched."""
    torch.set_num_threads(1)
    return call(*task, dict(zip(names, values, strict=True)))
