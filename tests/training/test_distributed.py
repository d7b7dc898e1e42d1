"""Two processes with half the batch each are one process with the whole.

Run under torchrun it is one of the processes: `torchrun ... test_runtime.py FOLDER`.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from idcf.errors import ConfigError
from idcf.testing import world
from idcf.testing.worlds import blank, keys_of, objective_of, some_batches
from idcf.training import distributed
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import adapt, factorise, norms
from idcf.types import Batch, Users

torch.set_num_threads(1)
SPLIT = world().split
TABLE = SPLIT.train.of(SPLIT.key_users)
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


def trained(case, here):
    """The weights and losses of one case. In float64: equal then means equal."""
    name, size, rows = CASES[case]
    table = TABLE.where(slice(rows))
    torch.manual_seed(0)
    model = blank(name, TABLE, keys_of(TABLE)).double()
    if case == "pmf-norms":
        objective = factorise(norms(0.1, here))
    else:
        base = objective_of(model, table)
        objective = adapt(0.3, here) if name.startswith("idcf") else base

    def epoch(number):
        return map(doubled, some_batches(model, table, size, number=number))

    config = replace(CONFIG, accumulate=3 if case == "accumulated" else 1)
    log = fit(model, epoch, objective, config, runtime=here)
    return model.state_dict() | {"loss": torch.tensor(log.column("loss"))}


def doubled(batch):
    history = batch.users.history
    users = Users(batch.users.ids, history._replace(values=history.values.double()))
    return Batch(users, batch.owner, batch.items, batch.labels.double())


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    """What two gloo processes made of every case, told by both of them."""
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
def test_two_processes_equal_one(of_two, case):
    alone = trained(case, LOCAL)
    for told in of_two:
        assert told[case].keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(
                told[case][key], value, rtol=1e-6, atol=1e-7, msg=lambda m, k=key: f"{k}: {m}"
            )


@pytest.mark.parametrize("case", CASES)
def test_the_processes_agree_to_the_bit(of_two, case):
    first, second = (told[case] for told in of_two)
    assert all(torch.equal(v, second[k]) for k, v in first.items())


@pytest.mark.parametrize("world", [2, 3, 7])
def test_shares_make_the_batch(world):
    """Each row and each user once, with their own history; sizes are those of the whole."""
    model = blank("idcf-dot", TABLE, keys_of(TABLE))
    batch = next(iter(some_batches(model, TABLE, 50)))
    shares = [Runtime(torch.device("cpu"), rank, world).share(batch) for rank in range(world)]
    assert all(s.n_rows == len(batch.items) for s in shares)
    assert all(s.n_users == len(batch.users) for s in shares)
    assert torch.equal(torch.cat([s.users.ids for s in shares]), batch.users.ids)
    assert torch.equal(
        torch.cat([s.users.history.items for s in shares]), batch.users.history.items
    )
    rows = [(s.users.ids[s.owner], s.items[:, 0], s.labels[:, 0]) for s in shares]
    got = {
        tuple(x)
        for part in rows
        for x in torch.stack([*map(torch.Tensor.double, part)], 1).tolist()
    }
    whole = (batch.users.ids[batch.owner], batch.items[:, 0], batch.labels[:, 0])
    expected = {tuple(x) for x in torch.stack([x.double() for x in whole], 1).tolist()}
    assert got == expected


def test_one_process_shares_nothing():
    batch = next(iter(some_batches(blank("pmf", TABLE, keys_of(TABLE)), TABLE, 50)))
    assert LOCAL.share(batch) is batch
    assert LOCAL.gather(batch.labels) is batch.labels
    assert LOCAL.total(batch.labels) is batch.labels
    assert batch.n_rows == 50


def test_start():
    assert distributed.start("cpu") == Runtime(torch.device("cpu"))
    assert distributed.start("auto").world == 1
    with pytest.raises(ConfigError, match="auto, cpu or cuda, got 'gpu'"):
        distributed.start("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no GPU is visible"):
            distributed.start("cuda")


if __name__ == "__main__":
    here = distributed.start("cpu")
    assert here.world == 2
    told = {case: trained(case, here) for case in CASES}
    torch.save(told, Path(sys.argv[1]) / f"{here.rank}.pt")
    torch.distributed.destroy_process_group()
