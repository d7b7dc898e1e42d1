"""The search for options: whom it looks at, what it tries, and that a kill loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idcf.config import parse_overrides
from idcf.data.datasets.catalog import Dataset
from idcf.errors import ConfigError
from idcf.evaluation import tune as search
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.tune import SPACES, Choice, Trial, Tuned, newcomers, space_of, tune
from idcf.models.registry import configure
from idcf.testing.synthetic import checkerboard
from idcf.training.presets import stages
from idcf.training.train import Trained


def data(implicit: bool = False, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    table = checkerboard(60, 40, rng, few=14, many=24, implicit=implicit)
    return Dataset("mine.csv", table, None, None, {}, 5 if implicit else 12)


def searched(storage: Path, trials: int, model: str = "als", **more: Any) -> Tuned:
    world = more.pop("world", data())
    return tune(world, model, trials, storage, split=standard_split(world), **more)


def test_nobody_but_held_out_key_users_is_looked_at() -> None:
    world = data()
    split, _ = standard_split(world)
    inner = newcomers(split)
    assert set(inner.query_users) < set(split.key_users)
    assert not set(inner.query_users) & set(inner.key_users)
    assert set(inner.train.user) | set(inner.test.user) <= set(split.key_users)
    assert set(inner.test.user) <= set(inner.query_users)
    n = len(split.train.items)
    pairs = [set((x.user * n + x.item).tolist()) for x in (inner.train, inner.test, split.test)]
    assert not pairs[0] & pairs[1]
    assert not (pairs[0] | pairs[1]) & pairs[2]
    lengths = inner.train.counts()[inner.query_users]
    assert 4 <= lengths.min() <= lengths.max() <= 29


@pytest.mark.parametrize("name", SPACES)
def test_every_option_of_a_space_is_one_of_the_model(name: str) -> None:
    for end in (0, -1):
        tried = {
            k: (x.values if isinstance(x, Choice) else tuple(x))[end]
            for k, x in SPACES[name].items()
        }
        for stage, chosen in stages(name, tried).items():
            configure(stage, chosen.options)


def test_a_search_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = searched(tmp_path / "whole.db", 5)
    assert [x.number for x in whole.trials] == [1, 2, 3, 4, 5]
    assert len({str(x.options) for x in whole.trials}) == 5
    assert whole.trials[0].options == {"embedding_size": 16, "reg": 10.0}  # as it comes
    now: list[Trial] = []
    assert searched(tmp_path / "parts.db", 2).trials == whole.trials[:2]
    assert searched(tmp_path / "parts.db", 5, told=now.append) == whole
    assert now == list(whole.trials[2:])
    assert searched(tmp_path / "parts.db", 5, told=now.append).best == whole.best
    assert len(now) == 3  # there was nothing left to do
    assert whole.best.value == min(x.value for x in whole.trials)
    again = searched(tmp_path / "other.db", 5, seed=1)
    assert again.trials[1].options != whole.trials[1].options


def test_a_trial_that_was_interrupted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = searched(tmp_path / "whole.db", 3)
    real = search.train

    def interrupted(name: str, job: Any, *, options: Any) -> Trained:
        if options == whole.trials[1].options:
            raise KeyboardInterrupt
        return real(name, job, options=options)

    monkeypatch.setattr(search, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "parts.db", 3)
    monkeypatch.setattr(search, "train", real)
    assert searched(tmp_path / "parts.db", 3) == whole


def test_one_file_holds_several_searches_but_never_mixes_them(tmp_path: Path) -> None:
    storage = tmp_path / "trials.db"
    searched(storage, 1)
    assert searched(storage, 1, "ease").model == "ease"
    with pytest.raises(ConfigError, match="another data"):
        searched(storage, 2, world=data(seed=5))
    with pytest.raises(ConfigError, match="another seed"):
        searched(storage, 2, "ease", seed=3)
    with pytest.raises(ConfigError, match="another options"):
        searched(storage, 2, options={"embedding_size": 4})
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to be read\n")
    with pytest.raises(ConfigError, match=r"text\.db cannot keep trials"):
        searched(tmp_path / "text.db", 1)


def test_implicit_feedback_and_two_stages(tmp_path: Path) -> None:
    world = data(implicit=True)
    fixed = {"train.epochs": 2, "heads": 1}
    found = searched(tmp_path / "t.db", 2, "idcf-dot", world=world, options=fixed)
    assert found.metric == "1-auc"
    assert all(0 <= x.value <= 1 for x in found.trials)
    assert "heads" not in found.best.options
    rows = tomllib.loads(found.toml("clean", "mine.csv"))["clean"]
    assert rows["pmf"]["default"]["options"] == {
        "embedding_size": found.best.options["embedding_size"]
    }
    own = rows["idcf-dot"]["default"]
    again = own["options"] | {f"train.{k}": v for k, v in own["train"].items()}
    assert again | rows["pmf"]["default"]["options"] == found.best.options
    assert parse_overrides(found.words().split(" ")[1::2]) == found.best.options


def test_what_cannot_be_tuned() -> None:
    with pytest.raises(ConfigError, match="knows only the users it was trained on"):
        space_of("pmf", {})
    with pytest.raises(ConfigError, match="nothing to tune"):
        space_of("popularity", {})
    with pytest.raises(ConfigError, match="is fixed"):
        space_of("ease", {"reg": 3})


def test_without_optuna_the_way_out_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'idcf\[tune\]'"):
        searched(tmp_path / "t.db", 1)


def test_the_command_after_a_kill(ratings_file: Callable[..., Path], tmp_path: Path) -> None:
    """Killed once a trial is done, and started again: what an unharmed search finds."""
    path, ends = ratings_file(), {}

    def words(name: str) -> list[str]:
        given = ["tune", str(path), "--model", "item-knn", "--trials", "3", "--key-threshold", "12"]
        storage = ["--storage", str(tmp_path / f"{name}.db"), "--device", "cpu", "--json"]
        return [sys.executable, "-m", "idcf", *given, *storage]

    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words("killed"), stderr=subprocess.PIPE, text=True, env=env) as running:
        assert running.stderr
        assert running.stderr.readline().startswith("trial 1 of 3: ")
        running.send_signal(signal.SIGKILL)
    for name in ("killed", "whole"):
        done = subprocess.run(words(name), capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        ends[name] = json.loads(done.stdout)
        row = tomllib.loads((tmp_path / f"{name}.toml").read_text())
        assert row["clean"]["item-knn"]["default"]["options"] == ends[name]["best"]["options"]
    for key in ("best", "first", "trials", "words", "people"):
        assert ends["killed"][key] == ends["whole"][key]
    assert ends["whole"]["words"].startswith("--set neighbours=")
