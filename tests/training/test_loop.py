"""The one gradient loop: the same end by any road, and the best epoch kept."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import CONFIG, TABLE, equal, made, run, scripted

from idcf.data import batches
from idcf.testing.worlds import objective_of, some_batches
from idcf.training import loop
from idcf.training.checkpoint import Log
from idcf.training.distributed import LOCAL
from idcf.training.loop import TrainConfig, fit
from idcf.training.objectives import Ridge, factorise, norms
from idcf.training.optimizer import Optimizer

torch.set_num_threads(1)


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


def test_the_schedule_is_what_the_optimizer_gets():
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
    networks, spared = Optimizer(model, replace(CONFIG, weight_decay=0.5)).adam.param_groups
    assert (networks["weight_decay"], spared["weight_decay"]) == (0.5, 0.0)
    assert {id(p) for p in spared["params"]} == {id(p) for p in tables}
    assert {id(p) for p in networks["params"]} == {id(p) for p in model.head.parameters()}
    coupled = Optimizer(model, replace(CONFIG, coupled_decay=0.5)).adam.param_groups
    assert [group["weight_decay"] for group in coupled] == [0.5, 0.5]


@pytest.mark.parametrize("options", [{"weight_decay": 0.5}, {"coupled_decay": 0.5}], ids=str)
def test_the_optimizer_is_plain_adam_on_every_weight(options):
    """The fused kernels move each weight as torch's unfused optimizer does."""
    ours, theirs = made("nnmf").double(), made("nnmf").double()
    optimizer = Optimizer(ours, replace(CONFIG, **options))
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
        optimizer.step(LOCAL)
        expected.step()
        expected.zero_grad()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


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


def test_a_log():
    log = Log()
    assert [log.watch({"valid": v}) for v in (2.0, 3.0, 1.0, 1.0)] == [True, False, True, False]
    assert (log.best, log.stale()) == (2, 1)
    assert log.column("loss") == []
