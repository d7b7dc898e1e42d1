"""The verb doctor on engines: what it says of nodes, and of a cluster that cannot be had."""

from __future__ import annotations

import importlib.util
import json
import socket

import pytest
from calls import call, call_with_error

from idcf.cli import doctor
from idcf.training import ray_nodes

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed")
# Ray leaves sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")


def engine_checks(*arguments: str, code: int = 0) -> list[dict[str, str]]:
    """Return the checks of an engine and of its nodes."""
    result = json.loads(call("doctor", "--json", *arguments, code=code))
    assert result["ok"] == (code == 0)
    return [x for x in result["checks"] if x["name"].split()[0] in ("engine", "node")]


def test_engines_of_this_machine() -> None:
    (check,) = engine_checks("--engine", "local")
    assert check == {"name": "engine local", "status": "ok", "message": "tiny jobs done: 1"}
    (check,) = engine_checks("--engine", "processes")
    assert check["status"] == "ok"
    (check,) = engine_checks("--engine", "spark", code=1)
    assert check["message"].startswith("no engine named 'spark'")


def test_an_address_needs_an_engine(monkeypatch, capsys) -> None:
    code, text = call_with_error(monkeypatch, capsys, "doctor", "--address", "auto")
    assert code == 2
    assert "--address needs --engine ray" in text


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_without_ray_the_way_out_is_named() -> None:
    (check,) = engine_checks("--engine", "ray", code=1)
    assert check["status"] == "problem"
    assert "pip install 'idcf[ray]'; or take engine 'processes'" in check["message"]


def test_versions_that_differ_are_named() -> None:
    here = {"python": "3.11.7", "idcf": "1.0", "numpy": "2.4"}
    assert doctor._version_differences(here, here) is None
    there = {"python": "3.11.9", "idcf": None, "numpy": "2.4"}
    assert doctor._version_differences(there, here) == (
        "python 3.11.9, here 3.11.7; idcf is not installed: install the same versions on every node"
    )


@needs_ray
def test_every_node_of_a_cluster_is_named(monkeypatch) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=2)
        first, *nodes = engine_checks("--engine", "ray", "--address", cluster.address)
        assert first["message"] == f"a cluster at {cluster.address} answers: 2 nodes, 3 CPUs"
        assert sorted(x["message"].split()[0] for x in nodes) == ["1", "2"]
        for check in nodes:
            assert check["status"] == "ok"
            assert all(
                x in check["message"] for x in ("GiB; python 3", "idcf 0", "numpy ", "torch ")
            )
        other = {**ray_nodes.driver_versions(), "numpy": "1.0"}
        monkeypatch.setattr(ray_nodes, "driver_versions", lambda: other)
        _, *nodes = engine_checks("--engine", "ray", "--address", cluster.address, code=1)
        assert all("here 1.0: install the same" in x["message"] for x in nodes)
        assert {x["status"] for x in nodes} == {"problem"}
    finally:
        cluster.shutdown()


@needs_ray
def test_no_cluster_at_an_address() -> None:
    (check,) = engine_checks("--engine", "ray", "--address", "127.0.0.1:1", code=1)
    assert "no Ray cluster can be reached at '127.0.0.1:1'" in check["message"]
    assert "`ray start --head`" in check["message"]


@needs_ray
def test_a_port_that_is_not_that_of_a_cluster(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ray_nodes, "_CLUSTER_SECONDS", 8.0)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (check,) = engine_checks("--engine", "ray", "--address", address, code=1)
        assert f"the Ray cluster at '{address}' does not answer" in check["message"]
