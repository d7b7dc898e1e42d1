"""The optimizer's running averages, its state, and the log and files of a training."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from small import CONFIG, TABLE, equal_states, fit, new_model, scripted_validation

from idcf.errors import ArtifactError
from idcf.testing.worlds import epoch_batches
from idcf.training.checkpoint import TrainingLog, read_checkpoint, write_checkpoint
from idcf.training.job import LOCAL_RUNTIME
from idcf.training.optimizer import Optimizer


def step(model, optimizer, n=1, scale=1.0):
    """Take n gradient steps on the squared error of one batch."""
    batch = next(iter(epoch_batches(model, TABLE, 60)))
    for _ in range(n):
        scores = model(batch.users, batch.items, batch.owner)
        (scale * (scores - batch.labels).square().mean()).backward()
        optimizer.step(LOCAL_RUNTIME)


def copies(model):
    return [p.detach().clone() for p in model.parameters()]


def test_the_running_average_is_the_recursion():
    """a ← ema · a + (1 - ema) · w, which starts at the weights after the first step."""
    model = new_model()
    optimizer = Optimizer(model, replace(CONFIG, ema=0.75))
    expected = None
    for _ in range(4):
        step(model, optimizer)
        weights = [p.detach().clone() for p in optimizer.weights]
        expected = expected or weights
        expected = [0.75 * a + 0.25 * w for a, w in zip(expected, weights, strict=True)]
    for position, average in optimizer.averages.items():
        torch.testing.assert_close(average, expected[position])


def test_weights_and_averages_are_exchanged_and_exchanged_back():
    model = new_model()
    optimizer = Optimizer(model, replace(CONFIG, ema=0.5))
    step(model, optimizer, 3)
    weights, averages = copies(model), {k: v.clone() for k, v in optimizer.averages.items()}
    optimizer.swap_averages()
    for position, p in enumerate(optimizer.weights):
        assert torch.equal(p, averages[position])
    optimizer.swap_averages()
    assert all(torch.equal(a, b) for a, b in zip(copies(model), weights, strict=True))


def test_without_an_average_nothing_is_exchanged():
    model = new_model()
    optimizer = Optimizer(model, CONFIG)
    step(model, optimizer, 2)
    weights = copies(model)
    optimizer.swap_averages()
    assert not optimizer.averages
    assert all(torch.equal(a, b) for a, b in zip(copies(model), weights, strict=True))


def test_the_trained_model_is_the_average():
    averaged, plain = new_model(), new_model()
    states = []
    config = replace(CONFIG, epochs=2, ema=0.9)
    fit(averaged, config, validate=scripted_validation([2.0, 1.0], states))
    fit(plain, replace(config, ema=0.0))
    assert equal_states(averaged.state_dict(), states[1])
    assert not equal_states(averaged.state_dict(), plain.state_dict())


def test_a_resumed_average_ends_where_an_uninterrupted_one_does(tmp_path):
    config, file = replace(CONFIG, ema=0.9), tmp_path / "pmf.checkpoint"
    whole, resumed = new_model(), new_model()
    fit(whole, config)
    fit(new_model(), config, checkpoint_path=file, n_epochs=2)
    fit(resumed, config, checkpoint_path=file)
    assert equal_states(whole.state_dict(), resumed.state_dict())
    assert all("average" in state for state in read_checkpoint(file).optimizer_state.values())


def test_a_loaded_state_continues_the_steps():
    whole, first = new_model("nnmf"), new_model("nnmf")
    optimizer = Optimizer(whole, CONFIG)
    step(whole, optimizer, 5)
    before = Optimizer(first, CONFIG)
    step(first, before, 2)
    after = Optimizer(first, CONFIG)
    after.load_state({k: {n: x.clone() for n, x in v.items()} for k, v in before.state().items()})
    step(first, after, 3)
    for a, b in zip(whole.parameters(), first.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_state_before_the_first_step_is_empty_and_can_be_loaded():
    model = new_model()
    optimizer = Optimizer(model, CONFIG)
    assert all(state == {} for state in optimizer.state().values())
    optimizer.load_state({})
    step(model, optimizer)


def test_the_state_of_other_weights_is_refused_with_the_numbers():
    source, target = new_model(), new_model()
    optimizer = Optimizer(source, CONFIG)
    step(source, optimizer)
    state = optimizer.state()
    n = len(optimizer.weights)
    with pytest.raises(ValueError, match=f"{n - 1} weights were saved, the model trains {n}"):
        Optimizer(target, CONFIG).load_state({k: v for k, v in state.items() if k})
    wrong = {**state, 0: {**state[0], "exp_avg": torch.zeros(1, 7)}}
    with pytest.raises(
        ValueError, match=r"exp_avg has shape \(1, 7\), its weight has \(\d+, \d+\)"
    ):
        Optimizer(target, CONFIG).load_state(wrong)


def test_frozen_weights_are_not_trained():
    model = new_model("idcf-dot")
    frozen = [p for p in model.parameters() if not p.requires_grad]
    trained = Optimizer(model, CONFIG).weights
    assert frozen
    assert not {id(p) for p in frozen} & {id(p) for p in trained}


def test_accumulated_batches_count_as_their_mean():
    model, reference = new_model().double(), new_model().double()
    optimizer, expected = Optimizer(model, CONFIG), Optimizer(reference, CONFIG)
    batch = next(iter(epoch_batches(model, TABLE, 60)))
    for scale in (1.0, 3.0):
        scores = model(batch.users, batch.items, batch.owner)
        (scale * (scores - batch.labels).square().mean()).backward()
    optimizer.step(LOCAL_RUNTIME, n_accumulated=2)
    step(reference, expected, scale=2.0)
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b)
        assert a.grad is None


def test_the_learning_rate_is_that_of_every_group():
    optimizer = Optimizer(new_model("nnmf"), CONFIG)
    optimizer.set_learning_rate(0.125)
    assert [group["lr"] for group in optimizer.adam.param_groups] == [0.125, 0.125]


@given(st.lists(st.floats(0, 9) | st.just(math.nan), min_size=1, max_size=8))
def test_the_best_epoch_is_the_first_lowest_number(values):
    """NaN is never better; before any number, the first epoch is the best."""
    log = TrainingLog()
    for epoch, value in enumerate(values):
        log.add({"epoch": epoch, "valid": value})
    finite = [x for x in values if not math.isnan(x)]
    expected = values.index(min(finite)) if finite else 0
    assert log.best_epoch == expected
    assert log.best_validation() == (min(finite) if finite else math.inf)
    assert log.epochs_since_best() == len(values) - 1 - expected


def test_without_validation_the_newest_epoch_is_the_best():
    log = TrainingLog()
    assert log.best_validation() == math.inf
    assert [log.add({"epoch": n, "loss": 1.0}) for n in range(3)] == [True] * 3
    assert (log.best_epoch, log.epochs_since_best()) == (2, 0)
    assert log.column("loss") == [1.0] * 3
    assert log.best_validation() == math.inf


def write(path: Path, **parts):
    """Write a checkpoint whose missing parts are empty."""
    log = parts.pop("log", TrainingLog())
    names = ("model_state", "best_state", "optimizer_state")
    write_checkpoint(path, *(parts.get(x, {}) for x in names), log)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "x.checkpoint"
    log = TrainingLog([{"epoch": 0, "loss": 0.5, "valid": 1.5}, {"epoch": 1, "loss": 0.25}], 1)
    strided = torch.arange(6.0).view(2, 3).T  # not contiguous
    parts = {
        "model_state": {"a.b.c": strided, "n": torch.tensor(3)},
        "best_state": {"a.b.c": torch.zeros(0, 4)},
        "optimizer_state": {0: {"exp_avg": strided}, 11: {"step": torch.tensor(2.0)}},
    }
    write(path, **parts, log=log)
    read = read_checkpoint(path)
    assert read.log == log
    assert equal_states(read.model_state, parts["model_state"])
    assert equal_states(read.best_state, parts["best_state"])
    assert read.optimizer_state.keys() == {0, 11}
    assert torch.equal(read.optimizer_state[0]["exp_avg"], strided)
    assert [x.name for x in path.parent.iterdir()] == ["x.checkpoint"]


def test_shared_tensors_are_written_twice(tmp_path):
    weight = torch.ones(2)
    write(tmp_path / "x", model_state={"w": weight}, best_state={"w": weight})
    read = read_checkpoint(tmp_path / "x")
    assert torch.equal(read.model_state["w"], read.best_state["w"])


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"model.w": torch.ones(1)}, None),  # no log
        ({"model.w": torch.ones(1)}, {"log": "not JSON"}),
        ({"model.w": torch.ones(1)}, {"log": json.dumps({"recrods": []})}),
        ({"other.w": torch.ones(1)}, {"log": json.dumps({"records": []})}),
    ],
)
def test_a_file_of_another_kind_is_no_checkpoint(tmp_path, tensors, metadata):
    path = tmp_path / "x.checkpoint"
    save_file(tensors, path, metadata)
    with pytest.raises(
        ArtifactError, match=r"x\.checkpoint is no checkpoint of this version .*delete"
    ):
        read_checkpoint(path)


def test_patience_zero_never_stops_early():
    config = replace(CONFIG, patience=0)
    log = fit(new_model(), config, validate=scripted_validation([1.0, 2.0, 3.0, 4.0], []))
    assert (len(log.records), log.best_epoch) == (4, 0)


def test_no_epochs_leave_the_model_as_it_is():
    model, before = new_model(), new_model().state_dict()
    log = fit(model, n_epochs=0)
    assert log.records == []
    assert equal_states(model.state_dict(), before)
    assert not model.training


def test_the_callback_gets_every_record():
    records = []
    log = fit(new_model(), callback=records.append)
    assert records == log.records
    assert [x["epoch"] for x in records] == [0, 1, 2, 3]
