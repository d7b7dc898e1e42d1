"""Checkpoints: a training that was killed and resumed ends as an uninterrupted one.

Run as a script, this file is the process that is killed: `python test_checkpoint.py FOLDER`.
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

import pytest
import torch
from safetensors.torch import save_file
from small import CONFIG, TABLE, equal_states, fit, new_model, scripted_validation

from idcf.errors import ArtifactError
from idcf.training.checkpoint import read_checkpoint, recorded_seconds


def test_resuming_ends_where_an_uninterrupted_run_does(tmp_path):
    whole, first, second = (new_model("idcf-nn") for _ in range(3))
    expected = fit(whole, validate=scripted_validation([2.0, 1.0, 3.0, 4.0], []))
    file = tmp_path / "deep" / "idcf.checkpoint"
    fit(first, validate=scripted_validation([2.0, 1.0], []), checkpoint_path=file, n_epochs=2)
    log = fit(second, validate=scripted_validation([3.0, 4.0], []), checkpoint_path=file)
    assert log.column("loss") == expected.column("loss")
    assert log.best_epoch == expected.best_epoch == 1
    assert equal_states(whole.state_dict(), second.state_dict())


@pytest.mark.parametrize("name", ["igmc", "f-eae", "idcf-gc"])
def test_long_trainings_of_the_paper_s_systems_are_resumed(name, tmp_path):
    table, file = TABLE.where(slice(400)), tmp_path / "model.checkpoint"
    whole, first, second = (new_model(name) for _ in range(3))
    fit(whole, table=table)
    fit(first, table=table, checkpoint_path=file, n_epochs=2)
    fit(second, table=table, checkpoint_path=file)
    assert equal_states(whole.state_dict(), second.state_dict())


def test_a_finished_run_is_not_run_again(tmp_path):
    file, states = tmp_path / "pmf.checkpoint", []
    first, second = new_model(), new_model(seed=9)
    config = replace(CONFIG, patience=1)
    fit(first, config, validate=scripted_validation([1.0, 2.0], []), checkpoint_path=file)
    log = fit(second, config, validate=scripted_validation([], states), checkpoint_path=file)
    assert not states
    assert log.best_epoch == 0
    assert equal_states(first.state_dict(), second.state_dict())


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "foreign"])
def test_a_damaged_checkpoint_is_an_error(tmp_path, damage):
    file = tmp_path / "pmf.checkpoint"
    fit(new_model(), checkpoint_path=file, n_epochs=1)
    whole = file.read_bytes()
    damaged = {"cut": whole[: len(whole) // 2], "noise": os.urandom(500), "empty": b""}
    if damage == "foreign":
        save_file({"weight": torch.ones(2)}, file)
    else:
        file.write_bytes(damaged[damage])
    with pytest.raises(ArtifactError, match=r"pmf\.checkpoint .*delete it"):
        fit(new_model(), checkpoint_path=file)


def test_a_checkpoint_of_another_model_is_an_error(tmp_path):
    file = tmp_path / "model.checkpoint"
    fit(new_model("pmf"), checkpoint_path=file, n_epochs=1)
    with pytest.raises(ArtifactError, match="checkpoint"):
        fit(new_model("nnmf"), checkpoint_path=file)


def test_a_half_written_file_is_ignored(tmp_path):
    file = tmp_path / "pmf.checkpoint"
    fit(new_model(), checkpoint_path=file, n_epochs=1)
    before = file.read_bytes()
    (tmp_path / "pmf.checkpoint.123.part").write_bytes(before[:50])
    assert len(read_checkpoint(file).log.records) == 1
    assert read_checkpoint(tmp_path / "none") is None


def paths_in(folder):
    """Return the file arguments of `fit_by_gradient`."""
    return {"checkpoint_path": folder / "checkpoint", "journal_path": folder / "journal"}


LONG = replace(CONFIG, epochs=60, patience=60)


def train_long(folder):
    """Train a model that draws key users in every step, so that the random state matters."""
    model = new_model("idcf-nn")
    files = {} if folder is None else paths_in(folder)
    fit(model, LONG, table=TABLE.where(slice(800)), **files)
    return model


def test_kill_9_at_any_moment(tmp_path):
    delays = random.Random()  # unseeded: every run of the tests kills at another moment
    n_lines = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, __file__, str(tmp_path)], env=_single_thread())
        try:
            while child.poll() is None and _count_lines(tmp_path) < n_lines + 5:
                time.sleep(0.005)
            time.sleep(delays.uniform(0, 0.1))
        finally:
            child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL, "the training ended before it was killed"
        n_lines = _count_lines(tmp_path)
    assert 0 < len(read_checkpoint(tmp_path / "checkpoint").log.records) < LONG.epochs
    resumed, whole = train_long(tmp_path), train_long(None)
    assert equal_states(resumed.state_dict(), whole.state_dict())


def test_the_journal_is_complete_after_a_kill_between_checkpoint_and_journal(tmp_path):
    files = paths_in(tmp_path)
    journal = files["journal_path"]
    fit(new_model(), n_epochs=2, **files)
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text(lines[0])  # the state after such a kill
    fit(new_model(), **files)
    epochs = [json.loads(x)["epoch"] for x in journal.read_text().splitlines()]
    assert epochs == [0, 1, 2, 3]


def test_checkpoints_may_be_written_seldom_but_after_the_last_epoch(tmp_path):
    counts = []

    def count_checkpoint(record):
        checkpoint = read_checkpoint(tmp_path / "checkpoint")
        counts.append(len(checkpoint.log.records) if checkpoint else 0)

    files = paths_in(tmp_path)
    fit(new_model(), **files, checkpoint_seconds=3600.0, n_epochs=3, callback=count_checkpoint)
    assert counts == [0, 0, 3]


def test_the_time_of_all_journals_is_added(tmp_path):
    for name, seconds in (("search", [1.0, 2.0]), ("final", [4.0])):
        (tmp_path / name).mkdir()
        lines = (json.dumps({"epoch": n, "seconds": x}) + "\n" for n, x in enumerate(seconds))
        (tmp_path / name / "pmf.jsonl").write_text("".join(lines))
    assert recorded_seconds(tmp_path) == 7.0
    assert recorded_seconds(tmp_path / "none") == recorded_seconds(None) == 0


def _count_lines(folder):
    file = folder / "journal"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _single_thread():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


if __name__ == "__main__":
    train_long(Path(sys.argv[1]))
