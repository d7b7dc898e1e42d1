"""Search the options of a model on held-out users, with trials stored in a file by Optuna.

The validation users are a fifth of the key users, with histories as short as those of new users,
and absent from training. The test rows and the query users of an evaluation are never read. What a
trial tries depends on the seed and on the completed trials only, so a search that was killed and
started again gives the trials of an uninterrupted one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from idcf.data.datasets.catalog import DATASET_SOURCES, Dataset
from idcf.data.progress import progress_bar
from idcf.data.split import Split, hold_out_users, sample_users
from idcf.errors import ConfigError, DataError, require_extra, unknown_name_message
from idcf.evaluation.evaluation_set import N_NEGATIVES
from idcf.inference.manifest import TrainingData
from idcf.inference.scoring import auc_loss_on, rmse_on
from idcf.models.registry import configure, model_entry, resolve_model
from idcf.rng import derive_seed, random_stream
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.presets import (
    DATASET_KEY,
    DEFAULT_KEY,
    StageConfig,
    split_backbone_options,
    stage_configs,
)
from idcf.training.train import MIN_KEY_USERS, TrainingJob, TrainingResult, train

HELD_OUT_SHARE = 0.2  # of the key users
_N_RANDOM_TRIALS = 8  # before the sampler models the trials


class LogRange(NamedTuple):
    """A positive number on a logarithmic scale: an integer if the bounds are integers, else rounded
    to three digits."""

    low: float  # included
    high: float  # included

    def suggest(self, trial: Any, name: str) -> float:
        """Return the value that an Optuna trial suggests for a parameter."""
        if isinstance(self.low, int):
            return int(trial.suggest_int(name, self.low, self.high, log=True))
        return float(f"{trial.suggest_float(name, self.low, self.high, log=True):.3g}")

    def nearest(self, value: Any) -> Any:
        """Return the value of the range that is closest to a value."""
        return min(max(value, self.low), self.high)


class CategoricalChoice(NamedTuple):
    """One of a few values."""

    values: tuple[Any, ...]  # the choices; the first is the fallback

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value that an Optuna trial suggests for a parameter."""
        return trial.suggest_categorical(name, self.values)

    def nearest(self, value: Any) -> Any:
        """Return the value itself if it is a choice, else the first choice."""
        return value if value in self.values else self.values[0]


SearchSpace = Mapping[str, LogRange | CategoricalChoice]
_IDCF_SPACE: SearchSpace = {
    "embedding_size": LogRange(4, 64),
    "heads": CategoricalChoice((1, 2, 4, 8)),
    "query": CategoricalChoice(("items", "ratings")),
    "pooling": CategoricalChoice(("mean", "root")),
    "bias_shrinkage": LogRange(1.0, 30.0),
    "train.learning_rate": LogRange(0.0002, 0.02),
    "train.weight_decay": LogRange(0.01, 1.0),
    "train.contrast": LogRange(0.003, 0.3),
}
SEARCH_SPACES: dict[str, SearchSpace] = {
    "bias": {"shrinkage": LogRange(0.5, 50.0), "item_shrinkage": LogRange(0.5, 30.0)},
    "item-knn": {"neighbors": LogRange(5, 400), "reg": LogRange(1.0, 1000.0)},
    "ease": {"reg": LogRange(5.0, 5000.0)},
    "slim": {"l1_reg": LogRange(0.03, 10.0), "reg": LogRange(1.0, 5000.0)},
    "als": {"embedding_size": LogRange(2, 64), "reg": LogRange(1.0, 100.0)},
    "idcf-bayes": {
        "embedding_size": LogRange(4, 40),
        "rank": LogRange(4, 64),
        "shrinkage": LogRange(5.0, 500.0),
        "noise_dof": LogRange(3.0, 30.0),
    },
    "idcf-dot": _IDCF_SPACE,
    "idcf-nn": _IDCF_SPACE,
    "idcf-gc": _IDCF_SPACE,
}


class Trial(NamedTuple):
    """One training run of a search."""

    number: int  # from 1
    value: float  # validation loss: lower is better
    options: dict[str, Any]  # the searched options


@dataclass(frozen=True)
class TuningResult:
    """The trials of a search, in the order in which they were run."""

    model: str
    metric: str  # "rmse", or "1-auc" for implicit feedback
    n_users: int  # validation users
    trials: tuple[Trial, ...]

    @property
    def best_trial(self) -> Trial:
        """The trial of the lowest loss; the first of equal ones."""
        return min(self.trials, key=lambda x: (x.value, x.number))

    def command_line_options(self) -> str:
        """Return the best options as arguments of `idcf train` and `idcf evaluate`."""
        return " ".join(f"--option {k}={v}" for k, v in self.best_trial.options.items())

    def to_toml(self, preset: str, dataset: str) -> str:
        """Return the best options as rows of a preset; a backbone's options are in a row of their
        own. A dataset outside the catalogue makes default rows."""
        best = self.best_trial
        name = f"{DATASET_KEY}.{dataset}" if dataset in DATASET_SOURCES else DEFAULT_KEY
        model_options, backbone_options = split_backbone_options(self.model, best.options)
        sections: dict[str, dict[str, Any]] = {"options": {}, "train": {}}
        for key, value in model_options.items():
            is_train_option = key.startswith("train.")
            sections["train" if is_train_option else "options"][key.removeprefix("train.")] = value
        lines = [
            f"# {self.metric} {best.value:.4f} of {self.n_users} held-out users, "
            f"trial {best.number} of {len(self.trials)}",
            *_toml_lines(f"{preset}.{self.model}.{name}", sections),
        ]
        if backbone_options:
            backbone = model_entry(self.model).backbone
            table_name = f"{preset}.{backbone}.{name}"
            lines += ["", *_toml_lines(table_name, {"options": backbone_options})]
        return "\n".join(lines) + "\n"


def _toml_lines(table_name: str, sections: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield a TOML table with an inline table for each section that is not empty."""
    yield f"[{table_name}]"
    for section, values in sections.items():
        if values:
            pairs = ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.items())
            yield f"{section} = {{ {pairs} }}"


def tune(
    dataset: Dataset,
    model: str,
    n_trials: int,
    storage: Path,
    *,
    split: tuple[Split, str],
    preset: str = "clean",
    fixed_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    runtime: Runtime = LOCAL_RUNTIME,
    progress: bool = False,
    on_trial: Callable[[Trial], None] | None = None,
) -> TuningResult:
    """Search the options of a model of `SEARCH_SPACES` until a file holds `n_trials` completed
    trials, those of earlier calls with the same file included.

    `storage` is an SQLite file, made if it does not exist. `split` is the split of the evaluation
    and its name; only the training rows of its key users are read. `fixed_options` are set and not
    searched. `on_trial` is called with every trial that this call completes. Raises `ConfigError`
    if nothing can be searched, or the file holds trials of other data, options or seed.
    """
    fixed_options = dict(fixed_options or {})
    model = resolve_model(model, split[0].train.implicit)
    space = search_space(model, fixed_options)
    tuning_split = make_tuning_split(split[0], seed)
    if len(tuning_split.key_users) < MIN_KEY_USERS:
        raise DataError(
            f"{len(split[0].key_users)} key users are too few to tune on: a share of "
            f"{HELD_OUT_SHARE:.0%}, but at least one, is held out, and {MIN_KEY_USERS} must be "
            "left; lower the key threshold or give more data"
        )
    job = TrainingJob(tuning_split, preset=preset, dataset=dataset.name, seed=seed, runtime=runtime)
    metric = "1-auc" if tuning_split.train.implicit else "rmse"
    settings = {
        "data": TrainingData.from_split(split[0], 0).sha256,
        "split": split[1],
        "preset": preset,
        "seed": seed,
        "options": fixed_options,
    }
    label = f"tune {model}" if progress else None
    with (
        _open_study(storage, f"{model} {metric}", settings) as study,
        progress_bar(
            label, total=n_trials, initial=len(_completed_trials(study)), unit="trial"
        ) as bar,
    ):
        while len(trials := _completed_trials(study)) < n_trials:
            if not trials:
                _enqueue_default_options(study, space, job, model, fixed_options)
            study.sampler = _import_optuna().samplers.TPESampler(
                seed=derive_seed(seed, "trial", len(trials)) % (1 << 32),
                n_startup_trials=_N_RANDOM_TRIALS,
            )
            trial = study.ask()
            options = {name: values.suggest(trial, name) for name, values in space.items()}
            trained = train(model, job, options={**fixed_options, **options})
            loss = validation_loss(trained, tuning_split, seed)
            trial.set_user_attr("options", options)
            study.tell(trial, math.inf if math.isnan(loss) else loss)
            bar.update()
            if on_trial:
                on_trial(_completed_trials(study)[-1])
    return TuningResult(model, metric, len(tuning_split.query_users), tuple(trials))


def search_space(model: str, fixed_options: Mapping[str, Any]) -> SearchSpace:
    """Return the options of a model that are searched, without those that are fixed. Raises
    `ConfigError` if the model cannot score new users, has no search space, or every option is
    fixed."""
    if not model_entry(model).inductive:
        raise ConfigError(f"{model!r} knows only the users it was trained on: tune an idcf-* model")
    if model not in SEARCH_SPACES:
        raise ConfigError(
            f"nothing to tune: {unknown_name_message('search space', model, SEARCH_SPACES)}"
        )
    space = {k: v for k, v in SEARCH_SPACES[model].items() if k not in fixed_options}
    if not space:
        raise ConfigError(
            f"every option of {model!r} that could be searched is fixed; leave one of them out"
        )
    return space


def make_tuning_split(split: Split, seed: int = 0) -> Split:
    """Split the training rows of the key users again; a share of the users becomes query users. No
    row of a query user and no test row of `split` is in the result."""
    lengths = StageConfig().validation_history_lengths
    held_out = sample_users(split.key_users, HELD_OUT_SHARE, random_stream(seed, "tuned on"))
    table = split.train.for_users(split.key_users)
    train_rows, task = hold_out_users(
        table, held_out, lengths, random_stream(seed, "tuned on, histories")
    )
    key_users = np.setdiff1d(split.key_users, held_out)
    return Split(train_rows.concat(task.history_table), task.target_table, key_users, held_out)


def validation_loss(trained: TrainingResult, tuning_split: Split, seed: int = 0) -> float:
    """Return the RMSE on the test rows of the split, or 1 - AUC for implicit feedback."""
    rows, seen = tuning_split.test, tuning_split.train
    if not rows.implicit:
        return rmse_on(trained.model, rows, seen)
    rng = random_stream(seed, "tuned on, negatives")
    return auc_loss_on(trained.model, rows, seen, n_negatives=N_NEGATIVES, rng=rng)


@contextmanager
def _open_study(storage: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Any]:
    """Open the study of one search; a file may hold several. Raises `ConfigError` if its trials
    were made with other settings, or the file is not usable."""
    optuna = _import_optuna()
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    address = URL.create("sqlite", database=str(storage.expanduser().resolve()))
    database = None
    try:
        database = optuna.storages.RDBStorage(address.render_as_string(hide_password=False))
        study = optuna.create_study(storage=database, study_name=name, load_if_exists=True)
        for key, value in settings.items():
            stored = study.user_attrs.get(key, value)
            if stored != value:
                raise ConfigError(
                    f"{storage} holds trials of {name!r} with another {key} ({stored!r:.60}, not "
                    f"{value!r:.60}); give another --storage"
                )
            study.set_user_attr(key, value)
        for trial in study.get_trials(False, (optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # its process was killed
        yield study
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{storage} cannot store trials ({reason}); give another file") from None
    finally:
        if database is not None:
            database.remove_session()
            database.engine.dispose()


def _completed_trials(study: Any) -> list[Trial]:
    """Return the completed trials of a study, numbered from 1."""
    completed = study.get_trials(False, (_import_optuna().trial.TrialState.COMPLETE,))
    return [Trial(n, x.value, x.user_attrs["options"]) for n, x in enumerate(completed, 1)]


def _enqueue_default_options(
    study: Any, space: SearchSpace, job: TrainingJob, model: str, fixed_options: Mapping[str, Any]
) -> None:
    """Make the preset's options, of the model or of its backbone, the next trial of a study."""
    if study.get_trials(False, (_import_optuna().trial.TrialState.WAITING,)):
        return  # by an earlier process
    stages = stage_configs(model, fixed_options, preset=job.preset, dataset=job.dataset)
    model_configs = [configure(name, stage.options) for name, stage in stages.items()]
    defaults = {}
    for name, values in space.items():
        option = name.removeprefix("train.")
        configs = model_configs if option == name else [stages[model].train]
        default = next(getattr(x, option) for x in configs if hasattr(x, option))
        defaults[name] = values.nearest(default)
    study.enqueue_trial(defaults)


def _import_optuna() -> Any:
    """Import Optuna, which is an optional dependency, and silence its log."""
    require_extra("tune", "optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
