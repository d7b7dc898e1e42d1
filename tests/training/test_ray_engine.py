"""The Ray engine on a virtual cluster: the results of a local engine, also when nodes are lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from builders import board
from shard_files import write_shards

from idcf.errors import EngineError
from idcf.inference.manifest import RecommenderConfig
from idcf.training.engine import LocalEngine, open_engine
from idcf.training.sharded.fit import fit_sharded_artifact

ray = pytest.importorskip("ray")
# Ray and its worker processes leave sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")


def add(number: int, state) -> float:
    return number + float(state["x"].sum())


def fail(number: int, state) -> None:
    raise ValueError("three")


def die_once(number: int, folder: Path, state) -> int:
    marker = folder / str(number)
    if number % 4 == 0 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    os.environ["PYTHONPATH"] = os.pathsep.join([paths, os.environ.get("PYTHONPATH", "")])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def engine(cluster):
    from idcf.training.ray_engine import RayEngine

    return RayEngine()


def test_results_and_errors(engine) -> None:
    assert engine.n_workers == 2
    results = sorted(engine.map(add, [(n,) for n in range(6)], {"x": np.arange(4.0)}))
    assert results == [(n, n + 6.0) for n in range(6)]
    with pytest.raises(ValueError, match="three"):
        list(engine.map(fail, [(1,)], {}))


def test_calls_of_dead_workers_are_made_again(engine, tmp_path: Path) -> None:
    results = sorted(engine.map(die_once, [(n, tmp_path) for n in range(8)], {}))
    assert results == [(n, n) for n in range(8)]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_fit_survives_the_loss_of_a_node(engine, cluster, tmp_path: Path) -> None:
    data = board(150, 40, 6, 18)
    folder = write_shards(data, tmp_path, 3, block_users=2)
    config = RecommenderConfig("als", {"embedding_size": 4, "epochs": 3, "reg": 5.0}, 8)
    titles = (None,) * len(data.items)
    expected = fit_sharded_artifact(config, folder, titles, LocalEngine(), n_shards=1)
    node, n_results = cluster.add_node(num_cpus=1), 0

    class LosingEngine(type(engine)):
        """Removes a node in the middle of a pass."""

        def __init__(self) -> None:
            self.__dict__.update(engine.__dict__)

        def map(self, call, tasks, state):
            nonlocal n_results
            for position, result in super().map(call, tasks, state):
                n_results += 1
                if n_results == 20:
                    cluster.remove_node(node, allow_graceful=False)
                yield position, result

    artifact = fit_sharded_artifact(config, folder, titles, LosingEngine(), n_shards=64)
    assert n_results > 3 * 64
    assert artifact.manifest == expected.manifest
    for key, value in expected.model.state_dict().items():
        assert value.equal(artifact.model.state_dict()[key]), key


def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(EngineError, match=r"no Ray cluster can be reached at .127\.0\.0\.1:1."):
        open_engine("ray", address="127.0.0.1:1")


def test_engine_error_names_the_part(engine, tmp_path: Path, monkeypatch) -> None:
    from idcf.training import ray_engine

    monkeypatch.setattr(ray_engine, "_MAX_ATTEMPTS", 1)
    with pytest.raises(EngineError, match="workers died 1 times at part 1 of 1"):
        list(engine.map(die_always, [(0,)], {}))


def die_always(number: int, state) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
