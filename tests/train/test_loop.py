"""The one gradient loop: the same end by any road, the best epoch kept, nothing lost by a kill.

Run as a script it is the process that gets killed: `python test_loop.py FOLDER`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from idcf.data import batches
from idcf.errors import ArtifactError
from idcf.testing import world
from idcf.testing.worlds import blank, keys_of, objective_of, some_batches
from idcf.train import loop
from idcf.train.descent import Descent
from idcf.train.loop import TrainConfig, fit
from idcf.train.objectives import Ridge, factorise, norms
from idcf.train.runtime import LOCAL
from idcf.train.stopping import Log, read_checkpoint

torch.set_num_threads(1)
SPLIT = world().split
TABLE = SPLIT.train.of(SPLIT.key_users)
CONFIG = TrainConfig(epochs=4, learning_rate=0.01, batch_size=256, reg=0.01)


def made(name="pmf", seed=0, **options):
    torch.manual_seed(seed)
    return blank(name, TABLE, keys_of(TABLE), options=options)


def run(model, config=CONFIG, seed=0, table=TABLE, **more):
    def epoch(number):
        return some_batches(model, table, config.batch_size, seed=seed, number=number)

    return fit(model, epoch, objective_of(model, table), config, seed=seed, **more)


def equal(a, b):
    return all(torch.equal(v, b[k]) for k, v in a.items()) and a.keys() == b.keys()


@pytest.mark.parametrize("name", ["pmf", "gcmc", "idcf-nn"])
def test_deterministic_by_seed(name):
    models = [made(name) for _ in range(3)]
    logs = []
    for model, seed in zip(models, (1, 1, 2), strict=True):
        torch.rand(3)  # whatever was drawn before
        logs.append(run(model, seed=seed))
    first, again, other = (m.state_dict() for m in models)
    assert equal(first, again)
    assert logs[0].column("loss") == logs[1].column("loss")
    assert not equal(first, other)


def test_the_caller_s_random_numbers_are_left_alone():
    model = made("idcf-nn")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(model)
    assert torch.equal(torch.rand(3), expected)


def test_the_loss_goes_down():
    for name in ("pmf", "nnmf", "gcmc", "idcf-dot"):
        loss = run(made(name), replace(CONFIG, epochs=6, learning_rate=0.03)).column("loss")
        assert loss[-1] < loss[0], name


@pytest.mark.parametrize("name", ["pmf", "nnmf"])
def test_accumulated_halves_equal_the_whole(name):
    rows = TABLE.where(np.arange(512))
    found = []
    for accumulate in (1, 2, 4):
        config = replace(CONFIG, batch_size=128 // accumulate, accumulate=accumulate)
        model = made(name).double()

        def epoch(number, size=config.batch_size):
            return batches.rows(rows, None, size=size, rng=np.random.default_rng(number))

        log = fit(model, epoch, objective_of(model, rows), config)
        found.append((model.state_dict(), log.column("loss")))
    for state, loss in found[1:]:
        assert loss == pytest.approx(found[0][1], rel=1e-6)
        for key, value in state.items():
            torch.testing.assert_close(value, found[0][0][key], rtol=1e-6, atol=1e-7)


def scripted(values, seen):
    """A validation that says these numbers in turn and remembers the weights it was shown."""

    def validate(model):
        assert not model.training
        seen.append({k: v.clone() for k, v in model.state_dict().items()})
        return values[len(seen) - 1]

    return validate


def test_early_stopping_keeps_the_best_epoch():
    model, seen = made(), []
    config = replace(CONFIG, epochs=20, patience=2)
    log = run(model, config, validate=scripted([3.0, 2.0, 2.5, 1.5, 1.6, 1.5, 0.1], seen))
    assert log.best == 3
    assert log.column("valid") == [3.0, 2.0, 2.5, 1.5, 1.6, 1.5]  # a tie is no progress
    assert equal(model.state_dict(), seen[3])
    assert not model.training


def test_without_validation_the_last_epoch_is_kept():
    model = made()
    log = run(model, replace(CONFIG, epochs=3))
    assert log.best == 2
    longer = made()
    run(longer, epochs=3)  # of four: the number, not the schedule
    assert equal(model.state_dict(), longer.state_dict())


def test_a_validation_that_begins_with_nan_is_got_over():
    log = run(made(), validate=scripted([float("nan"), 2.0, 1.0, 3.0], []))
    assert log.best == 2


def test_schedules():
    def rates(**options):
        config = TrainConfig(epochs=10, **options)
        return [loop._rate(config, n) for n in range(10)]

    assert rates(schedule="constant") == [1.0] * 10
    assert rates(schedule="exponential", decay=0.5)[:3] == [1.0, 0.5, 0.25]
    cosine = rates(schedule="cosine")
    assert cosine == pytest.approx([0.5 + 0.5 * np.cos(np.pi * n / 10) for n in range(10)])


def test_the_schedule_is_what_the_optimiser_gets():
    """Adam's first step is as long as the rate; a schedule that starts at 1 and then falls to
    nothing leaves the weights where the first epoch put them."""
    one, two = made(), made()
    run(one, replace(CONFIG, epochs=1, schedule="constant"))
    run(two, replace(CONFIG, epochs=2, schedule="exponential", decay=0.0))
    for key, value in two.state_dict().items():
        torch.testing.assert_close(value, one.state_dict()[key])


def test_weight_decay_is_for_networks_and_coupled_decay_for_all():
    def moved(**options):
        model, plain = made("nnmf"), made("nnmf")
        run(plain, replace(CONFIG, epochs=1))
        run(model, replace(CONFIG, epochs=1, **options))
        state = plain.state_dict()
        return {k for k, v in model.state_dict().items() if not torch.allclose(v, state[k])}

    assert "head.net.0.weight" in moved(weight_decay=0.5)
    model = made("nnmf")
    tables = [p for t in (model.users, model.items) for p in t.parameters()]
    (networks, much), (spared, none) = Descent(model, replace(CONFIG, weight_decay=0.5)).groups
    assert (much, none) == (0.5, 0.0)
    assert {id(p) for p in spared} == {id(p) for p in tables}
    assert sum(p.numel() for p in networks) == sum(p.numel() for p in model.head.parameters())
    assert [d for _, d in Descent(model, replace(CONFIG, coupled_decay=0.5)).groups] == [0.5, 0.5]


@pytest.mark.parametrize("options", [{"weight_decay": 0.5}, {"coupled_decay": 0.5}], ids=str)
def test_a_descent_is_torch_s_own_on_every_weight(options):
    """One vector for all networks moves as the tensors that lie in it would have."""
    ours, theirs = made("nnmf").double(), made("nnmf").double()
    descent = Descent(ours, replace(CONFIG, **options))
    tables = {id(p) for t in (theirs.users, theirs.items) for p in t.parameters()}
    coupled = "coupled_decay" in options
    kind = torch.optim.Adam if coupled else torch.optim.AdamW
    decays = [0.5 if coupled or id(p) not in tables else 0.0 for p in theirs.parameters()]
    groups = [
        {"params": [p], "weight_decay": d} for p, d in zip(theirs.parameters(), decays, strict=True)
    ]
    expected = kind(groups, CONFIG.learning_rate)
    batch = next(iter(some_batches(ours, TABLE, 100)))
    for _ in range(3):
        for model in (ours, theirs):
            scores = model(batch.users, batch.items, batch.owner)
            (scores - batch.labels).square().sum().backward()
        descent.step(LOCAL)
        expected.step()
        expected.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    descent.close()
    assert len({p.untyped_storage().data_ptr() for p in ours.parameters()}) == len(decays)


def test_the_published_penalty():
    model = made("nnmf")
    batch = next(iter(some_batches(model, TABLE, 100)))
    terms = factorise(norms(0.1))(model, batch)
    size = sum(row.norm() for t in (model.users, model.items) for row in t.vector)
    torch.testing.assert_close(terms["reg"], 0.1 * size / 100)


def test_ridge_against_a_loop():
    """Over one epoch: reg per rating, row_reg and bias_reg once per row."""
    model = made().double()
    counts = [torch.from_numpy(n).double() for n in (TABLE.counts(), TABLE.item_counts())]
    penalty = Ridge(*counts, 0.1, 0.7, 1.3)
    with torch.no_grad():
        for table in (model.users, model.items):
            table.bias.normal_()
        whole = sum(penalty(model, b) * b.n_rows for b in some_batches(model, TABLE, 300))
        expected = 0.0
        for table, n in zip((model.users, model.items), counts, strict=True):
            met = n > 0
            square = table.vector.square().sum(-1)
            expected += (0.1 * n * square + (0.7 * square + 1.3 * table.bias.square()) * met).sum()
    torch.testing.assert_close(whole, expected)


def test_journal(tmp_path):
    journal = tmp_path / "logs" / "pmf.jsonl"
    log = run(made(), journal=journal, validate=scripted([4.0, 3.0, 2.0, 1.0], []))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines == log.records
    assert set(lines[0]) == {"epoch", "loss", "seconds", "valid"}
    assert [x["epoch"] for x in lines] == [0, 1, 2, 3]
    run(made(), replace(CONFIG, epochs=1), journal=journal)
    assert len(journal.read_text().splitlines()) == 1  # a new run, a new journal


def test_progress_bar_is_for_terminals(capfd):
    run(made(), replace(CONFIG, epochs=1), progress="pmf")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["pmf", "nnmf", "gcmc", "idcf-dot", "idcf-nn", "idcf-gc"])
def test_bfloat16_runs_and_is_finite(name, monkeypatch):
    # some virtual machines announce AMX and die (SIGILL) when oneDNN uses it
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = made(name)
    log = run(model, replace(CONFIG, epochs=3, learning_rate=0.03, precision="bfloat16"))
    loss = log.column("loss")
    assert np.isfinite(loss).all()
    assert loss[-1] < loss[0]
    assert all(v.dtype != torch.bfloat16 for v in model.state_dict().values())


@pytest.mark.skipif(os.environ.get("IDCF_SLOW") != "1", reason="takes 20 s; IDCF_SLOW=1 runs it")
@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("name", ["pmf", "idcf-dot"])
def test_compiled_ends_where_uncompiled_does(name):
    """Where nothing is drawn: the compiler has random numbers of its own."""
    whole = {} if name == "pmf" else {"sample": len(TABLE.users)}
    plain, compiled = made(name, **whole), made(name, **whole)
    run(plain, replace(CONFIG, epochs=2))
    run(compiled, replace(CONFIG, epochs=2, compile=True))
    for key, value in compiled.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-3, atol=1e-4)


def test_resuming_ends_where_an_uninterrupted_run_does(tmp_path):
    whole, first, second = (made("idcf-nn") for _ in range(3))
    expected = run(whole, validate=scripted([2.0, 1.0, 3.0, 4.0], []))
    file = tmp_path / "deep" / "idcf.checkpoint"
    run(first, validate=scripted([2.0, 1.0], []), checkpoint=file, epochs=2)
    log = run(second, validate=scripted([3.0, 4.0], []), checkpoint=file)
    assert log.column("loss") == expected.column("loss")
    assert log.best == expected.best == 1
    assert equal(whole.state_dict(), second.state_dict())


def test_a_finished_run_is_not_run_again(tmp_path):
    file, seen = tmp_path / "pmf.checkpoint", []
    first, second = made(), made(seed=9)
    config = replace(CONFIG, patience=1)
    run(first, config, validate=scripted([1.0, 2.0], []), checkpoint=file)
    log = run(second, config, validate=scripted([], seen), checkpoint=file)
    assert not seen
    assert log.best == 0
    assert equal(first.state_dict(), second.state_dict())


@pytest.mark.parametrize("harm", ["cut", "noise", "empty", "foreign"])
def test_a_damaged_checkpoint_is_told(tmp_path, harm):
    file = tmp_path / "pmf.checkpoint"
    run(made(), checkpoint=file, epochs=1)
    whole = file.read_bytes()
    damaged = {"cut": whole[: len(whole) // 2], "noise": os.urandom(500), "empty": b""}
    if harm == "foreign":
        save_file({"weight": torch.ones(2)}, file)
    else:
        file.write_bytes(damaged[harm])
    with pytest.raises(ArtifactError, match=r"pmf\.checkpoint .*delete it"):
        run(made(), checkpoint=file)


def test_a_checkpoint_of_another_model_is_told(tmp_path):
    file = tmp_path / "model.checkpoint"
    run(made("pmf"), checkpoint=file, epochs=1)
    with pytest.raises(ArtifactError, match="checkpoint"):
        run(made("nnmf"), checkpoint=file)


def test_what_a_kill_leaves_half_written_is_ignored(tmp_path):
    file = tmp_path / "pmf.checkpoint"
    run(made(), checkpoint=file, epochs=1)
    before = file.read_bytes()
    (tmp_path / "pmf.checkpoint.123.part").write_bytes(before[:50])
    assert len(read_checkpoint(file).log.records) == 1
    assert read_checkpoint(tmp_path / "none") is None


def test_a_log():
    log = Log()
    assert [log.watch({"valid": v}) for v in (2.0, 3.0, 1.0, 1.0)] == [True, False, True, False]
    assert (log.best, log.stale()) == (2, 1)
    assert log.column("loss") == []


LONG = replace(CONFIG, epochs=60, patience=60)


def train_long(folder):
    """What is killed and resumed: the draws of key users make it sensitive to the generator."""
    model = made("idcf-nn")
    files = {} if folder is None else {k: folder / k for k in ("checkpoint", "journal")}
    run(model, LONG, table=TABLE.where(slice(800)), **files)
    return model


def test_kill_9_at_any_moment(tmp_path):
    moments = random.Random()  # any moment: not the same one in every run of the tests
    lines = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, __file__, str(tmp_path)], env=_alone())
        try:
            while child.poll() is None and _lines(tmp_path) < lines + 5:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.1))
        finally:
            child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "it was done before it was killed"
        lines = _lines(tmp_path)
    assert 0 < len(read_checkpoint(tmp_path / "checkpoint").log.records) < LONG.epochs
    resumed, whole = train_long(tmp_path), train_long(None)
    assert equal(resumed.state_dict(), whole.state_dict())


def test_the_journal_is_whole_after_a_kill_between_checkpoint_and_journal(tmp_path):
    files = {k: tmp_path / k for k in ("checkpoint", "journal")}
    run(made(), epochs=2, **files)
    kept = files["journal"].read_text().splitlines(keepends=True)
    files["journal"].write_text(kept[0])  # as the kill would leave it
    run(made(), **files)
    epochs = [json.loads(x)["epoch"] for x in files["journal"].read_text().splitlines()]
    assert epochs == [0, 1, 2, 3]


def _lines(folder):
    file = folder / "journal"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _alone():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    train_long(Path(sys.argv[1]))
