"""What the nodes of a Ray cluster have: a tiny job on each of them, in a process of its own.

Ray ends a process that cannot reach its cluster, or waits for minutes; the caller waits for
seconds.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from idcf.errors import EngineError, IdcfError
from idcf.training.ray_engine import RayEngine, import_ray

_PACKAGES = ("idcf", "numpy", "torch")  # of which all nodes need the same version
_JOB_SECONDS = 60.0  # a worker process starts and imports the packages
_CLUSTER_SECONDS = 90.0


@dataclass(frozen=True)
class NodeReport:
    """One node of a cluster, after a tiny job."""

    name: str
    n_cpus: float
    memory_gib: float  # that Ray gives to its workers
    versions: Mapping[str, str | None]  # of Python and packages; None: not installed
    error: str | None = None  # why the job gave no result


def driver_versions() -> dict[str, str | None]:
    """Return the versions of this process."""
    versions: dict[str, str | None] = _versions_job()(_PACKAGES)
    return versions


def probe_cluster(address: str | None) -> list[NodeReport]:
    """Run a tiny job on every node of a cluster, and return what each of them has.

    Raises ConfigError if Ray is not installed, and EngineError if no cluster answers.
    """
    import_ray()  # before a process is started for it
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_reports, args=(sender, address), daemon=False)
    process.start()
    sender.close()
    try:
        if not receiver.poll(_CLUSTER_SECONDS):
            raise _no_answer(address, f"no answer in {_CLUSTER_SECONDS:.0f} s")
        answer = receiver.recv()
    except EOFError:
        raise _no_answer(address, "Ray ended the process that asked") from None
    finally:
        process.join(5.0)
        process.kill()
        receiver.close()
    if isinstance(answer, IdcfError):
        raise answer
    reports: list[NodeReport] = answer
    return reports


def _no_answer(address: str | None, reason: str) -> EngineError:
    """Return the error for a cluster that does not answer."""
    return EngineError(
        f"the Ray cluster at {address!r} does not answer ({reason}); see `ray status` on its head "
        "node, or start one with `ray start --head`"
    )


def _send_reports(sender: Connection, address: str | None) -> None:
    """Send the reports on all nodes, or the error."""
    try:
        engine = RayEngine(address)
        try:
            sender.send(list(_node_reports()))
        finally:
            engine.close()
    except IdcfError as error:
        sender.send(error)
    finally:
        sender.close()


def _node_reports() -> Iterator[NodeReport]:
    """Yield a report on each node that is alive, in the order of their names."""
    ray = import_ray()
    strategies = import_module("ray.util.scheduling_strategies")
    nodes = [x for x in ray.nodes() if x["Alive"]]
    nodes.sort(key=lambda x: (x["NodeManagerHostname"], x["NodeID"]))
    remote = ray.remote(_versions_job())
    references = []
    for node in nodes:
        here = strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        here_only = remote.options(num_cpus=0, scheduling_strategy=here)
        references.append(here_only.remote(_PACKAGES))
    ray.wait(references, num_returns=len(references), timeout=_JOB_SECONDS)
    for node, reference in zip(nodes, references, strict=True):
        versions, error = {}, None
        try:
            versions = ray.get(reference, timeout=0.1)
        except ray.exceptions.GetTimeoutError:
            error = f"no result of a tiny job in {_JOB_SECONDS:.0f} s"
        except ray.exceptions.RayError as failure:
            error = f"a tiny job failed: {' '.join(str(failure).split())[:200]}"
        resources = node["Resources"]
        yield NodeReport(
            node["NodeManagerHostname"], resources.get("CPU", 0.0),
            resources.get("memory", 0.0) / 2**30, versions, error,
        )  # fmt: skip


def _versions_job() -> Any:
    """Return a function that is sent whole, so that it runs where this package is not installed."""

    def versions(packages: tuple[str, ...]) -> dict[str, str | None]:
        """Return the versions of Python and of packages on this node."""
        from importlib import import_module, metadata
        from platform import python_version

        result: dict[str, str | None] = {"python": python_version()}
        for name in packages:
            try:
                import_module(name)
                result[name] = metadata.version(name)
            except ImportError:
                result[name] = None
        return result

    return versions
