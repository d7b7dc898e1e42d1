"""Folders of histories by a virtual Ray cluster that loses workers and a node: the same bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bulk_cases import convert_or_die, digests, save_model, write_histories

from idcf import ConfigError
from idcf.inference.bulk import BulkWork
from idcf.inference.bulk_folder import convert_folder
from idcf.training.engine import LocalEngine

ray = pytest.importorskip("ray")
# Ray and its worker processes leave sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    os.environ["PYTHONPATH"] = os.pathsep.join([paths, os.environ.get("PYTHONPATH", "")])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_workers_and_a_node_are_lost(cluster: Any, tmp_path: Path) -> None:
    from idcf.training.ray_engine import RayEngine

    work = BulkWork.of_model(save_model(tmp_path / "model"), "cpu")
    histories = write_histories(tmp_path / "histories", 16)
    convert_folder(work, histories, tmp_path / "local", LocalEngine())
    (tmp_path / "died").mkdir()
    node = cluster.add_node(num_cpus=1)

    class LosingEngine(RayEngine):
        """Workers die in the middle of parts, and a node after three results."""

        def map(self, call: Any, tasks: Any, state: Any) -> Iterator[tuple[int, Any]]:
            calls = super().map(convert_or_die, [(tmp_path / "died", *x) for x in tasks], state)
            for number, result in enumerate(calls):
                if number == 3:
                    cluster.remove_node(node, allow_graceful=False)
                yield result

    report = convert_folder(work, histories, tmp_path / "out", LosingEngine())
    assert (report["n_users"], report["n_files"]) == (640, 16)
    assert len(list((tmp_path / "died").iterdir())) == 5
    report = convert_folder(work, histories, tmp_path / "out", LocalEngine())
    assert report["n_files_of_earlier_runs"] == 16
    assert digests(tmp_path / "out") == digests(tmp_path / "local")


def test_a_cluster_without_gpus(cluster: Any) -> None:
    from idcf.training.ray_engine import RayEngine

    assert RayEngine(device="auto").device == "cpu"
    with pytest.raises(ConfigError, match="no node of the Ray cluster has a GPU"):
        RayEngine(device="cuda")
