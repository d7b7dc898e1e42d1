"""A run that was stopped goes on, and ends where it would have: nothing is lost by a kill.

Run as a script it is the process that gets killed: `python test_resuming.py FOLDER`.
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
from small import CONFIG, TABLE, equal, made, run, scripted

from idcf.errors import ArtifactError
from idcf.training.checkpoint import read_checkpoint

torch.set_num_threads(1)


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
