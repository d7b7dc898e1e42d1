"""The engine of a Ray cluster; needs the extra `idcf[ray]`.

Ray makes a call again a few times if its worker or its node dies, and computes a result again if
the node that held it dies before it was read; calls that Ray gives up are submitted once more here.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import torch

from idcf.errors import ConfigError, EngineError
from idcf.training.engine import Call, Result, State

_MAX_ATTEMPTS = 7  # at one call, each of which Ray repeats a few times by itself
_CALLS_PER_WORKER = 2
_CONNECT_SECONDS = 5.0


class RayEngine:
    """Makes calls on the processors of a cluster.

    Without an address a cluster is started on this machine, and ended by `close`; "auto" joins the
    one that this machine is part of. The package must be installed on every node, and files that
    are read must be there under the same path. On `device` "cuda" every worker has a GPU of its
    own; "auto" takes GPUs if the cluster has any.
    """

    def __init__(
        self, address: str | None = None, n_workers: int | None = None, device: str = "cpu"
    ) -> None:
        ray = import_ray()
        _check_address(address)
        self._ray = ray
        self._owns_cluster = not ray.is_initialized()
        if self._owns_cluster:
            options = {"num_cpus": n_workers} if address is None and n_workers else {}
            try:
                ray.init(
                    address=address or "local", include_dashboard=False, log_to_driver=False,
                    logging_level="error", **options,
                )  # fmt: skip
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise _unreachable(address, " ".join(str(error).split())[:300]) from None
        resources = ray.cluster_resources()
        n_gpus = int(resources.get("GPU", 0))
        if device == "cuda" and not n_gpus:
            raise ConfigError("device 'cuda' was given, but no node of the Ray cluster has a GPU")
        self.device = "cuda" if n_gpus and device != "cpu" else "cpu"
        n_free = n_gpus if self.device == "cuda" else int(resources.get("CPU", 1))
        self.n_workers = n_workers or max(1, n_free)

    def map(
        self, call: Call[Result], tasks: Sequence[tuple[Any, ...]], state: State
    ) -> Iterator[tuple[int, Result]]:
        """Yield the results as they are completed; state is stored once on each node."""
        ray = self._ray
        remote = ray.remote(_call_on_worker).options(
            num_cpus=1, num_gpus=1 if self.device == "cuda" else 0
        )
        shared = {name: ray.put(value) for name, value in state.items()}
        names, values = list(shared), list(shared.values())
        waiting, n_losses = list(range(len(tasks)))[::-1], [0] * len(tasks)
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < _CALLS_PER_WORKER * self.n_workers:
                    position = waiting.pop()
                    running[remote.remote(call, tasks[position], names, *values)] = position
                for reference in ray.wait(list(running), num_returns=1)[0]:
                    position = running.pop(reference)
                    try:
                        result = ray.get(reference)
                    except ray.exceptions.RayTaskError as error:  # what the call raised
                        cause = error.cause
                        raise (cause if isinstance(cause, Exception) else error) from None
                    except ray.exceptions.RayError as error:
                        n_losses[position] += 1
                        if n_losses[position] == _MAX_ATTEMPTS:
                            raise _lost_call(position, len(tasks), error) from None
                        # until the cluster has noticed that a node is lost, it sends calls there
                        time.sleep(2.0 ** (n_losses[position] - 2))
                        waiting.append(position)
                        continue
                    yield position, result
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self._owns_cluster and self._ray.is_initialized():
            self._ray.shutdown()


def import_ray() -> Any:
    """Return the module `ray`, or raise ConfigError if it is not installed."""
    try:
        return import_module("ray")
    except ImportError:
        raise ConfigError(
            "engine 'ray' needs the extra: pip install 'idcf[ray]'; or take engine 'processes'"
        ) from None


def _lost_call(position: int, n_tasks: int, error: Exception) -> EngineError:
    """Return the error for a call whose workers die again and again."""
    return EngineError(
        f"workers died {_MAX_ATTEMPTS} times at part {position + 1} of {n_tasks} "
        f"({type(error).__name__}); if memory was short, take more parts or larger nodes"
    )


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
