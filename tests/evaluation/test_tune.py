"""The search for options: its validation users, its trials, and that it can be resumed."""

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

import pytest
from builders import board

from idcf.config import parse_overrides
from idcf.data.datasets.catalog import Dataset
from idcf.errors import ConfigError, DataError
from idcf.evaluation import tune as tune_module
from idcf.evaluation.protocol import standard_split
from idcf.evaluation.tune import (
    HELD_OUT_SHARE,
    SEARCH_SPACES,
    CategoricalChoice,
    LogRange,
    Trial,
    TuningResult,
    make_tuning_split,
    search_space,
    tune,
)
from idcf.models.registry import configure
from idcf.training.presets import stage_configs
from idcf.training.train import TrainingResult


def make_dataset(implicit: bool = False, seed: int = 0) -> Dataset:
    """A checkerboard with light and heavy users."""
    table = board(60, 40, 14, 24, implicit=implicit, seed=seed)
    return Dataset("ratings.csv", table, None, None, {}, 5 if implicit else 12)


def search(
    storage: Path,
    trials: int,
    model: str = "als",
    *,
    dataset: Dataset | None = None,
    **options: Any,
) -> TuningResult:
    """Call `tune` with the standard split of a dataset."""
    dataset = dataset or make_dataset()
    return tune(dataset, model, trials, storage, split=standard_split(dataset), **options)


def test_only_rows_of_key_users_are_read() -> None:
    split, _ = standard_split(make_dataset())
    inner = make_tuning_split(split)
    assert set(inner.query_users) < set(split.key_users)
    assert not set(inner.query_users) & set(inner.key_users)
    assert set(inner.train.user) | set(inner.test.user) <= set(split.key_users)
    assert set(inner.test.user) <= set(inner.query_users)
    n = len(split.train.items)
    pairs = [set((x.user * n + x.item).tolist()) for x in (inner.train, inner.test, split.test)]
    assert not pairs[0] & pairs[1]
    assert not (pairs[0] | pairs[1]) & pairs[2]
    lengths = inner.train.user_counts()[inner.query_users]
    assert 4 <= lengths.min() <= lengths.max() <= 29


@pytest.mark.parametrize("name", SEARCH_SPACES)
def test_every_option_of_a_space_is_one_of_the_model(name: str) -> None:
    for end in (0, -1):
        options = {
            k: (x.values if isinstance(x, CategoricalChoice) else tuple(x))[end]
            for k, x in SEARCH_SPACES[name].items()
        }
        for stage, stage_config in stage_configs(name, options).items():
            configure(stage, stage_config.options)


def test_a_search_is_resumed(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole.db", 5)
    assert [x.number for x in whole.trials] == [1, 2, 3, 4, 5]
    assert len({str(x.options) for x in whole.trials}) == 5
    assert whole.trials[0].options == {
        "embedding_size": 16,
        "reg": 10.0,
    }  # the options of the preset
    new_trials: list[Trial] = []
    assert search(tmp_path / "parts.db", 2).trials == whole.trials[:2]
    assert search(tmp_path / "parts.db", 5, on_trial=new_trials.append) == whole
    assert new_trials == list(whole.trials[2:])
    complete = search(tmp_path / "parts.db", 5, on_trial=new_trials.append)
    assert complete.best_trial == whole.best_trial
    assert len(new_trials) == 3  # all trials were complete
    assert whole.best_trial.value == min(x.value for x in whole.trials)
    other = search(tmp_path / "other.db", 5, seed=1)
    assert other.trials[1].options != whole.trials[1].options


def test_an_interrupted_trial_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = search(tmp_path / "whole.db", 3)
    real_train = tune_module.train

    def interrupted(name: str, job: Any, *, options: Any) -> TrainingResult:
        if options == whole.trials[1].options:
            raise KeyboardInterrupt
        return real_train(name, job, options=options)

    monkeypatch.setattr(tune_module, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "parts.db", 3)
    monkeypatch.setattr(tune_module, "train", real_train)
    assert search(tmp_path / "parts.db", 3) == whole


def test_one_file_holds_several_searches_but_never_mixes_them(tmp_path: Path) -> None:
    storage = tmp_path / "trials.db"
    search(storage, 1)
    assert search(storage, 1, "ease").model == "ease"
    with pytest.raises(ConfigError, match="another data"):
        search(storage, 2, dataset=make_dataset(seed=5))
    with pytest.raises(ConfigError, match="another seed"):
        search(storage, 2, "ease", seed=3)
    with pytest.raises(ConfigError, match="another options"):
        search(storage, 2, fixed_options={"embedding_size": 4})
    (tmp_path / "text.db").write_text("this is no database, but it is long enough to be read\n")
    with pytest.raises(ConfigError, match=r"text\.db cannot store trials"):
        search(tmp_path / "text.db", 1)


def test_implicit_feedback_and_two_stages(tmp_path: Path) -> None:
    fixed = {"train.epochs": 2, "heads": 1}
    dataset = make_dataset(implicit=True)
    result = search(tmp_path / "t.db", 2, "idcf-dot", dataset=dataset, fixed_options=fixed)
    best = result.best_trial.options
    assert result.metric == "1-auc"
    assert all(0 <= x.value <= 1 for x in result.trials)
    assert "heads" not in best
    preset = tomllib.loads(result.to_toml("clean", "ratings.csv"))["clean"]
    model, backbone = preset["idcf-dot"]["default"], preset["pmf"]["default"]
    assert backbone["options"] == {"embedding_size": best["embedding_size"]}
    train_options = {f"train.{k}": v for k, v in model["train"].items()}
    assert model["options"] | train_options | backbone["options"] == best
    assert parse_overrides(result.command_line_options().split(" ")[1::2]) == best


def test_models_without_a_search_space_are_errors() -> None:
    with pytest.raises(ConfigError, match="knows only the users it was trained on"):
        search_space("pmf", {})
    with pytest.raises(ConfigError, match="nothing to tune"):
        search_space("popularity", {})
    with pytest.raises(ConfigError, match="is fixed"):
        search_space("ease", {"reg": 3})


def test_small_tables_are_tuned_or_an_error_says_what_is_missing(tmp_path: Path) -> None:
    """Nobody has 30 rows: the threshold is that of `fit`."""
    small = Dataset("small.csv", board(8, 8, 6, 6), None, None, {}, 30)
    result = search(tmp_path / "t.db", 1, dataset=small, fixed_options={"embedding_size": 2})
    assert (len(result.trials), result.n_users) == (1, 1)
    tiny = Dataset("tiny.csv", board(3, 8, 6, 6), None, None, {}, 30)
    with pytest.raises(DataError, match=r"\d key users are too few to tune on"):
        search(tmp_path / "u.db", 1, dataset=tiny)
    assert not (tmp_path / "u.db").exists()


def test_a_model_without_a_space_for_clicks_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to tune: no search space named 'idcf-takeup'"):
        search(tmp_path / "t.db", 1, "idcf-bayes", dataset=make_dataset(implicit=True))


def test_without_optuna_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'idcf\[tune\]'"):
        search(tmp_path / "t.db", 1)


def test_the_command_is_resumed_after_a_kill(
    ratings_file: Callable[..., Path], tmp_path: Path
) -> None:
    """A search that is killed after its first trial and started again gives the same trials."""
    path, summaries = ratings_file(), {}

    def command(name: str) -> list[str]:
        arguments = f"tune {path} --model item-knn --trials 3 --key-threshold 12".split()
        storage = ["--storage", str(tmp_path / f"{name}.db"), "--device", "cpu", "--json"]
        return [sys.executable, "-m", "idcf", *arguments, *storage]

    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command("killed"), stderr=subprocess.PIPE, text=True, env=env) as running:
        assert running.stderr
        assert running.stderr.readline().startswith("trial 1 of 3: ")
        running.send_signal(signal.SIGKILL)
    for name in ("killed", "whole"):
        done = subprocess.run(command(name), capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        summaries[name] = json.loads(done.stdout)
        preset = tomllib.loads((tmp_path / f"{name}.toml").read_text())["clean"]
        best = summaries[name]["best_trial"]["options"]
        assert preset["item-knn"]["default"]["options"] == best
        for key in ("seconds", "file"):
            del summaries[name][key]
    assert summaries["killed"] == summaries["whole"]
    assert summaries["whole"]["command_options"].startswith("--option neighbors=")


class OneValueTrial:
    """An Optuna trial that suggests one value, and checks what it is asked for."""

    def __init__(self, value: Any) -> None:
        self.value, self.asked = value, None

    def _answer(self, *asked: Any, **options: Any) -> Any:
        self.asked = (*asked, *options.items())
        return self.value

    suggest_int = suggest_float = suggest_categorical = _answer


def test_a_range_suggests_on_a_logarithmic_scale() -> None:
    trial = OneValueTrial(0.0123456)
    assert LogRange(0.001, 1.0).suggest(trial, "reg") == 0.0123
    assert trial.asked == ("reg", 0.001, 1.0, ("log", True))
    trial = OneValueTrial(7)
    value = LogRange(2, 64).suggest(trial, "size")
    assert (value, type(value)) == (7, int)
    trial = OneValueTrial("b")
    assert CategoricalChoice(("a", "b")).suggest(trial, "kind") == "b"
    assert trial.asked == ("kind", ("a", "b"))


@pytest.mark.parametrize(
    ("values", "value", "nearest"),
    [
        (LogRange(2, 64), 1, 2),
        (LogRange(2, 64), 65, 64),
        (LogRange(2, 64), 10, 10),
        (LogRange(0.5, 2.0), 0.0, 0.5),
        (CategoricalChoice((1, 2, 4)), 4, 4),
        (CategoricalChoice((1, 2, 4)), 3, 1),
    ],
)
def test_the_value_of_a_preset_is_moved_into_the_range(
    values: LogRange | CategoricalChoice, value: Any, nearest: Any
) -> None:
    assert values.nearest(value) == nearest


def result(model: str, *trials: tuple[float, dict[str, Any]]) -> TuningResult:
    numbered = (Trial(n, value, options) for n, (value, options) in enumerate(trials, 1))
    return TuningResult(model, "rmse", 30, tuple(numbered))


def test_the_best_trial_is_the_first_of_the_lowest_loss() -> None:
    tuned = result("als", (2.0, {"reg": 1}), (1.0, {"reg": 2}), (1.0, {"reg": 3}))
    assert tuned.best_trial.number == 2
    assert tuned.command_line_options() == "--option reg=2"
    failed = result("als", (float("inf"), {"reg": 1}), (3.0, {"reg": 2}))
    assert failed.best_trial.number == 2


def test_the_best_options_are_rows_of_a_preset() -> None:
    options = {"heads": 4, "query": "items", "embedding_size": 8, "train.learning_rate": 0.001}
    text = result("idcf-nn", (1.5, {}), (0.91234, options)).to_toml("clean", "ml-100k")
    assert text.startswith("# rmse 0.9123 of 30 held-out users, trial 2 of 2\n")
    rows = tomllib.loads(text)["clean"]
    assert rows["idcf-nn"]["dataset"]["ml-100k"] == {
        "options": {"heads": 4, "query": "items"},
        "train": {"learning_rate": 0.001},
    }
    assert rows["nnmf"]["dataset"]["ml-100k"] == {"options": {"embedding_size": 8}}
    default = tomllib.loads(result("als", (1.0, {"reg": 2.5})).to_toml("mine", "my-file.csv"))
    assert default == {"mine": {"als": {"default": {"options": {"reg": 2.5}}}}}


def test_the_best_options_are_arguments_of_the_command_line() -> None:
    options = {"embedding_size": 8, "query": "items", "train.learning_rate": 0.001}
    text = result("idcf-nn", (1.0, options)).command_line_options()
    words = text.split()
    assert words[::2] == ["--option"] * 3
    assert parse_overrides(words[1::2]) == options


def test_a_file_that_holds_no_trials_is_named(tmp_path: Path) -> None:
    storage = tmp_path / "trials.db"
    storage.write_text("not a database, " * 100)
    with pytest.raises(ConfigError, match=r"trials.db cannot store trials \(.*; give another file"):
        search(storage, 1)
    with pytest.raises(ConfigError, match=r"cannot store trials"):
        search(tmp_path / "no" / "such" / "folder.db", 1)


def test_a_loss_that_is_not_a_number_is_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([float("nan"), 2.0])
    monkeypatch.setattr(tune_module, "validation_loss", lambda *args: next(losses))
    tuned = search(tmp_path / "t.db", 2, "bias")
    assert [trial.value for trial in tuned.trials] == [float("inf"), 2.0]
    assert tuned.best_trial.number == 2


def test_fixed_options_are_not_searched_and_all_of_them_are_none_to_search() -> None:
    assert "reg" in search_space("als", {})
    assert list(search_space("als", {"reg": 3.0})) == ["embedding_size"]
    with pytest.raises(ConfigError, match=r"every option of 'als' .* is fixed; leave one"):
        search_space("als", {"reg": 3.0, "embedding_size": 4})


def test_another_seed_validates_on_other_users() -> None:
    split, _ = standard_split(make_dataset())
    first, again, other = (make_tuning_split(split, seed) for seed in (0, 0, 1))
    assert first.query_users.tolist() == again.query_users.tolist()
    assert first.query_users.tolist() != other.query_users.tolist()
    share = len(first.query_users) / len(split.key_users)
    assert share == pytest.approx(HELD_OUT_SHARE, abs=0.02)
