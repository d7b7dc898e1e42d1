"""Two processes with half of each batch train the same model as one with whole batches.

Run under torchrun, this file is one of the processes: `torchrun ... test_distributed.py FOLDER`.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from idcf.errors import ConfigError
from idcf.testing import synthetic_world
from idcf.testing.worlds import epoch_batches, training_objective, untrained_model, users_with_rows
from idcf.training.job import LOCAL_RUNTIME, Runtime, start_runtime
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import adaption_objective, norm_penalty, prediction_objective
from idcf.training.options import TrainConfig
from idcf.types import Batch, Users

SPLIT = synthetic_world().split
TABLE = SPLIT.train.for_users(SPLIT.key_users)
CONFIG = TrainConfig(epochs=2, learning_rate=0.01, batch_size=128, patience=9)
CASES = {  # name, rows of a whole batch, rows of the table
    "pmf": ("pmf", 256, 1000),
    "pmf-norms": ("pmf", 256, 600),
    "gcmc": ("gcmc", 256, 600),
    "idcf-nn": ("idcf-nn", 256, 1000),
    "idcf-gc": ("idcf-gc", 256, 600),
    "accumulated": ("idcf-dot", 64, 300),
    "fewer users than processes": ("idcf-dot", 2, 30),
}


def train_case(case, runtime):
    """Return the weights and losses of one case, in float64 to leave no room for rounding."""
    name, size, rows = CASES[case]
    table = TABLE.where(slice(rows))
    torch.manual_seed(0)
    model = untrained_model(name, TABLE, users_with_rows(TABLE)).double()
    if case == "pmf-norms":
        objective = prediction_objective(penalty=norm_penalty(0.1, runtime))
    else:
        base = training_objective(model, table)
        objective = adaption_objective(0.3, runtime) if name.startswith("idcf") else base

    def epoch(number):
        return map(to_double, epoch_batches(model, table, size, epoch=number))

    config = replace(CONFIG, accumulate=3 if case == "accumulated" else 1)
    log = fit_by_gradient(model, epoch, objective, config, runtime=runtime)
    return model.state_dict() | {"loss": torch.tensor(log.column("loss"))}


def to_double(batch):
    """Return a batch in float64."""
    history = batch.users.history
    users = Users(batch.users.ids, history._replace(values=history.values.double()))
    return Batch(users, batch.owner, batch.items, batch.labels.double())


@pytest.fixture(scope="module")
def two_process_results(tmp_path_factory):
    """The results of every case in two gloo processes, one dict per process."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    subprocess.run(
        [*torchrun, "--standalone", __file__, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=300,
    )
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(two_process_results, case):
    expected = train_case(case, LOCAL_RUNTIME)
    for results in two_process_results:
        assert results[case].keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(
                results[case][key], value, rtol=1e-6, atol=1e-7, msg=lambda m, k=key: f"{k}: {m}"
            )


@pytest.mark.parametrize("case", CASES)
def test_the_processes_agree_to_the_bit(two_process_results, case):
    first, second = (results[case] for results in two_process_results)
    assert all(torch.equal(v, second[k]) for k, v in first.items())


@pytest.mark.parametrize("world_size", [2, 3, 7])
def test_the_shares_partition_the_batch(world_size):
    """Every row and every user is in one share; `n_rows` and `n_users` are those of the batch."""
    model = untrained_model("idcf-dot", TABLE, users_with_rows(TABLE))
    batch = next(iter(epoch_batches(model, TABLE, 50)))
    runtimes = [Runtime(torch.device("cpu"), rank, world_size) for rank in range(world_size)]
    shares = [runtime.local_batch(batch) for runtime in runtimes]
    assert all(s.n_rows == len(batch.items) for s in shares)
    assert all(s.n_users == len(batch.users) for s in shares)
    assert torch.equal(torch.cat([s.users.ids for s in shares]), batch.users.ids)
    assert torch.equal(
        torch.cat([s.users.history.items for s in shares]), batch.users.history.items
    )
    rows = [(s.users.ids[s.owner], s.items[:, 0], s.labels[:, 0]) for s in shares]
    actual = {
        tuple(x)
        for part in rows
        for x in torch.stack([*map(torch.Tensor.double, part)], 1).tolist()
    }
    whole = (batch.users.ids[batch.owner], batch.items[:, 0], batch.labels[:, 0])
    expected = {tuple(x) for x in torch.stack([x.double() for x in whole], 1).tolist()}
    assert actual == expected


def test_a_share_keeps_the_features_of_its_users():
    model = untrained_model("idcf-dot", TABLE, users_with_rows(TABLE))
    batch = next(iter(epoch_batches(model, TABLE, 50)))
    features = torch.arange(2.0 * len(batch.users)).view(-1, 2)
    batch = replace(batch, users=replace(batch.users, features=features))
    shares = [Runtime(torch.device("cpu"), rank, 2).local_batch(batch) for rank in range(2)]
    assert torch.equal(torch.cat([s.users.features for s in shares]), features)


def test_one_process_has_the_whole_batch():
    batch = next(
        iter(epoch_batches(untrained_model("pmf", TABLE, users_with_rows(TABLE)), TABLE, 50))
    )
    assert LOCAL_RUNTIME.local_batch(batch) is batch
    assert LOCAL_RUNTIME.gather_rows(batch.labels) is batch.labels
    assert LOCAL_RUNTIME.sum_over_processes(batch.labels) is batch.labels
    assert batch.n_rows == 50


def test_start_runtime():
    assert start_runtime("cpu") == Runtime(torch.device("cpu"))
    assert start_runtime("auto").world_size == 1
    with pytest.raises(ConfigError, match="auto, cpu or cuda, got 'gpu'"):
        start_runtime("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no GPU is visible"):
            start_runtime("cuda")


if __name__ == "__main__":
    runtime = start_runtime("cpu")
    assert runtime.world_size == 2
    results = {case: train_case(case, runtime) for case in CASES}
    torch.save(results, Path(sys.argv[1]) / f"{runtime.rank}.pt")
    torch.distributed.destroy_process_group()
