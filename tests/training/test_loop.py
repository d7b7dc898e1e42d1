"""The gradient loop: determinism, early stopping, schedules, the optimizer and its penalties."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from small import CONFIG, TABLE, equal_states, fit, new_model, scripted_validation

from idcf.data import batches
from idcf.testing.worlds import epoch_batches, training_objective
from idcf.training import loop
from idcf.training.checkpoint import TrainingLog
from idcf.training.job import LOCAL_RUNTIME
from idcf.training.loop import fit_by_gradient
from idcf.training.objectives import RidgePenalty, norm_penalty, prediction_objective
from idcf.training.optimizer import Optimizer
from idcf.training.options import TrainConfig


@pytest.mark.parametrize("name", ["pmf", "gcmc", "idcf-nn"])
def test_deterministic_by_seed(name):
    models = [new_model(name) for _ in range(3)]
    logs = []
    for model, seed in zip(models, (1, 1, 2), strict=True):
        torch.rand(3)  # draws before the training must not matter
        logs.append(fit(model, seed=seed))
    first, same_seed, other_seed = (m.state_dict() for m in models)
    assert equal_states(first, same_seed)
    assert logs[0].column("loss") == logs[1].column("loss")
    assert not equal_states(first, other_seed)


def test_the_global_random_state_is_unchanged():
    model = new_model("idcf-nn")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fit(model)
    assert torch.equal(torch.rand(3), expected)


def test_the_loss_goes_down():
    for name in ("pmf", "nnmf", "gcmc", "idcf-dot"):
        loss = fit(new_model(name), replace(CONFIG, epochs=6, learning_rate=0.03)).column("loss")
        assert loss[-1] < loss[0], name


@pytest.mark.parametrize("name", ["pmf", "nnmf"])
def test_accumulated_halves_equal_the_whole(name):
    rows = TABLE.where(np.arange(512))
    results = []
    for accumulate in (1, 2, 4):
        config = replace(CONFIG, batch_size=128 // accumulate, accumulate=accumulate)
        model = new_model(name).double()

        def epoch(number, size=config.batch_size):
            return batches.row_batches(
                rows, None, batch_size=size, rng=np.random.default_rng(number)
            )

        log = fit_by_gradient(model, epoch, training_objective(model, rows), config)
        results.append((model.state_dict(), log.column("loss")))
    for state, loss in results[1:]:
        assert loss == pytest.approx(results[0][1], rel=1e-6)
        for key, value in state.items():
            torch.testing.assert_close(value, results[0][0][key], rtol=1e-6, atol=1e-7)


def test_early_stopping_keeps_the_best_epoch():
    model, states = new_model(), []
    config = replace(CONFIG, epochs=20, patience=2)
    log = fit(
        model, config, validate=scripted_validation([3.0, 2.0, 2.5, 1.5, 1.6, 1.5, 0.1], states)
    )
    assert log.best_epoch == 3
    assert log.column("valid") == [3.0, 2.0, 2.5, 1.5, 1.6, 1.5]  # a tie is no improvement
    assert equal_states(model.state_dict(), states[3])
    assert not model.training


def test_without_validation_the_last_epoch_is_kept():
    model = new_model()
    log = fit(model, replace(CONFIG, epochs=3))
    assert log.best_epoch == 2
    longer = new_model()
    fit(longer, n_epochs=3)  # the schedule is still that of four epochs
    assert equal_states(model.state_dict(), longer.state_dict())


def test_an_epoch_whose_validation_is_nan_is_never_the_best():
    log = fit(new_model(), validate=scripted_validation([float("nan"), 2.0, 1.0, 3.0], []))
    assert log.best_epoch == 2


def test_schedules():
    def rates(**options):
        config = TrainConfig(epochs=10, **options)
        return [loop._schedule_factor(config, n) for n in range(10)]

    assert rates(schedule="constant") == [1.0] * 10
    assert rates(schedule="exponential", decay=0.5)[:3] == [1.0, 0.5, 0.25]
    cosine = rates(schedule="cosine")
    assert cosine == pytest.approx([0.5 + 0.5 * np.cos(np.pi * n / 10) for n in range(10)])


def test_the_schedule_is_what_the_optimizer_gets():
    """With a learning rate of 0 in the second epoch the weights stay those of the first."""
    one_epoch, two_epochs = new_model(), new_model()
    fit(one_epoch, replace(CONFIG, epochs=1, schedule="constant"))
    fit(two_epochs, replace(CONFIG, epochs=2, schedule="exponential", decay=0.0))
    for key, value in two_epochs.state_dict().items():
        torch.testing.assert_close(value, one_epoch.state_dict()[key])


def test_weight_decay_is_for_networks_and_coupled_decay_for_all():
    def changed_weights(**options):
        model, plain = new_model("nnmf"), new_model("nnmf")
        fit(plain, replace(CONFIG, epochs=1))
        fit(model, replace(CONFIG, epochs=1, **options))
        state = plain.state_dict()
        return {k for k, v in model.state_dict().items() if not torch.allclose(v, state[k])}

    assert "head.net.0.weight" in changed_weights(weight_decay=0.5)
    model = new_model("nnmf")
    tables = [p for t in (model.user_table, model.item_table) for p in t.parameters()]
    network_group, table_group = Optimizer(
        model, replace(CONFIG, weight_decay=0.5)
    ).adam.param_groups
    assert (network_group["weight_decay"], table_group["weight_decay"]) == (0.5, 0.0)
    assert {id(p) for p in table_group["params"]} == {id(p) for p in tables}
    assert {id(p) for p in network_group["params"]} == {id(p) for p in model.head.parameters()}
    coupled = Optimizer(model, replace(CONFIG, coupled_decay=0.5)).adam.param_groups
    assert [group["weight_decay"] for group in coupled] == [0.5, 0.5]


@pytest.mark.parametrize("options", [{"weight_decay": 0.5}, {"coupled_decay": 0.5}], ids=str)
def test_the_optimizer_is_plain_adam_on_every_weight(options):
    """The fused kernels move each weight as torch's unfused optimizer does."""
    model, reference = new_model("nnmf").double(), new_model("nnmf").double()
    optimizer = Optimizer(model, replace(CONFIG, **options))
    tables = {id(p) for t in (reference.user_table, reference.item_table) for p in t.parameters()}
    coupled = "coupled_decay" in options
    kind = torch.optim.Adam if coupled else torch.optim.AdamW
    decays = [0.5 if coupled or id(p) not in tables else 0.0 for p in reference.parameters()]
    groups = [
        {"params": [p], "weight_decay": d}
        for p, d in zip(reference.parameters(), decays, strict=True)
    ]
    expected = kind(groups, CONFIG.learning_rate)
    batch = next(iter(epoch_batches(model, TABLE, 100)))
    for _ in range(3):
        for trained in (model, reference):
            scores = trained(batch.users, batch.items, batch.owner)
            (scores - batch.labels).square().sum().backward()
        optimizer.step(LOCAL_RUNTIME)
        expected.step()
        expected.zero_grad()
    for weight, expected_weight in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(weight, expected_weight)


def test_the_published_penalty():
    model = new_model("nnmf")
    batch = next(iter(epoch_batches(model, TABLE, 100)))
    terms = prediction_objective(penalty=norm_penalty(0.1))(model, batch)
    norms = sum(row.norm() for t in (model.user_table, model.item_table) for row in t.vector)
    torch.testing.assert_close(terms["reg"], 0.1 * norms / 100)


def test_ridge_against_a_loop():
    """Over one epoch: reg per rating, row_reg and bias_reg once per row."""
    model = new_model().double()
    counts = [torch.from_numpy(n).double() for n in (TABLE.user_counts(), TABLE.item_counts())]
    penalty = RidgePenalty(*counts, 0.1, 0.7, 1.3)
    with torch.no_grad():
        for table in (model.user_table, model.item_table):
            table.bias.normal_()
        whole = sum(penalty(model, b) * b.n_rows for b in epoch_batches(model, TABLE, 300))
        expected = 0.0
        for table, n in zip((model.user_table, model.item_table), counts, strict=True):
            has_ratings = n > 0
            square = table.vector.square().sum(-1)
            expected += (
                0.1 * n * square + (0.7 * square + 1.3 * table.bias.square()) * has_ratings
            ).sum()
    torch.testing.assert_close(whole, expected)


def test_journal(tmp_path):
    journal = tmp_path / "logs" / "pmf.jsonl"
    log = fit(
        new_model(), journal_path=journal, validate=scripted_validation([4.0, 3.0, 2.0, 1.0], [])
    )
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines == log.records
    assert set(lines[0]) == {"epoch", "loss", "seconds", "valid"}
    assert [x["epoch"] for x in lines] == [0, 1, 2, 3]
    fit(new_model(), replace(CONFIG, epochs=1), journal_path=journal)
    assert len(journal.read_text().splitlines()) == 1  # a new run, a new journal


def test_progress_bar_is_for_terminals(capfd):
    fit(new_model(), replace(CONFIG, epochs=1), progress_label="pmf")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["pmf", "nnmf", "gcmc", "idcf-dot", "idcf-nn", "idcf-gc"])
def test_bfloat16_runs_and_is_finite(name, monkeypatch):
    # some virtual machines report AMX and raise SIGILL when oneDNN uses it
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    model = new_model(name)
    log = fit(model, replace(CONFIG, epochs=3, learning_rate=0.03, precision="bfloat16"))
    loss = log.column("loss")
    assert np.isfinite(loss).all()
    assert loss[-1] < loss[0]
    assert all(v.dtype != torch.bfloat16 for v in model.state_dict().values())


@pytest.mark.skipif(os.environ.get("IDCF_SLOW") != "1", reason="takes 20 s; IDCF_SLOW=1 runs it")
@pytest.mark.filterwarnings("default")  # of the compiler
@pytest.mark.parametrize("name", ["pmf", "idcf-dot"])
def test_compiled_ends_where_uncompiled_does(name):
    """Without random draws, because compiled code draws other random numbers."""
    options = {} if name == "pmf" else {"n_attended_users": len(TABLE.users)}
    plain, compiled = new_model(name, **options), new_model(name, **options)
    fit(plain, replace(CONFIG, epochs=2))
    fit(compiled, replace(CONFIG, epochs=2, compile=True))
    for key, value in compiled.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[key], rtol=1e-3, atol=1e-4)


def test_the_log_knows_its_best_epoch():
    log = TrainingLog()
    assert [log.add({"valid": v}) for v in (2.0, 3.0, 1.0, 1.0)] == [True, False, True, False]
    assert (log.best_epoch, log.epochs_since_best()) == (2, 1)
    assert log.column("loss") == []
