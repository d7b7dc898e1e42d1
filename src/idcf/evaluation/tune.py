"""Look for better options of a model, on held-out people only, and go on where a run ended.

The people are a fifth of the key users, cut to a newcomer's length and absent from training: what
`evaluate` measures on, and its query users, are never looked at. Trials are kept in a file by
Optuna; what a trial tries depends on the seed and on the trials that are done, so that a search
that was killed and started again finds what an uninterrupted one finds.
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

from idcf.data.datasets.catalog import SOURCES, Dataset
from idcf.data.split import Split, hold_out_users, sample_users
from idcf.errors import ConfigError, unknown
from idcf.inference.manifest import Origin
from idcf.inference.scoring import loss_on, rmse_on
from idcf.models.registry import configure, model_entry
from idcf.rng import derive, stream
from idcf.training.distributed import LOCAL, Runtime
from idcf.training.presets import DATASET, DEFAULT, Setting, divide, stages
from idcf.training.train import Job, Trained, train

SHARE = 0.2  # of the key users, held out
NEGATIVES = 5
_RANDOM = 8  # trials before the search begins to aim


class Real(NamedTuple):
    """A positive number on a logarithmic scale, to three digits: what is printed was tried."""

    low: float
    high: float

    def ask(self, trial: Any, name: str) -> float:
        return float(f"{trial.suggest_float(name, self.low, self.high, log=True):.3g}")

    def near(self, value: Any) -> Any:
        return min(max(value, self.low), self.high)


class Whole(NamedTuple):
    """A count, on a logarithmic scale."""

    low: int
    high: int

    def ask(self, trial: Any, name: str) -> int:
        return int(trial.suggest_int(name, self.low, self.high, log=True))

    def near(self, value: Any) -> Any:
        return min(max(value, self.low), self.high)


class Choice(NamedTuple):
    values: tuple[Any, ...]

    def ask(self, trial: Any, name: str) -> Any:
        return trial.suggest_categorical(name, self.values)

    def near(self, value: Any) -> Any:
        return value if value in self.values else self.values[0]


Space = Mapping[str, Real | Whole | Choice]
_RELATION: Space = {
    "embedding_size": Whole(4, 64),
    "heads": Choice((1, 2, 4, 8)),
    "query": Choice(("items", "ratings")),
    "pooling": Choice(("mean", "root")),
    "bias_strength": Real(1.0, 30.0),
    "train.learning_rate": Real(0.0002, 0.02),
    "train.weight_decay": Real(0.01, 1.0),
    "train.contrast": Real(0.003, 0.3),
}
SPACES: dict[str, Space] = {
    "bias": {"strength": Real(0.5, 50.0), "item_strength": Real(0.5, 30.0)},
    "item-knn": {"neighbours": Whole(5, 400), "reg": Real(1.0, 1000.0)},
    "ease": {"reg": Real(5.0, 5000.0)},
    "als": {"embedding_size": Whole(2, 64), "reg": Real(1.0, 100.0)},
    "idcf-bayes": {
        "embedding_size": Whole(4, 40),
        "rank": Whole(4, 64),
        "strength": Real(5.0, 500.0),
        "freedom": Real(3.0, 30.0),
    },
    "idcf-dot": _RELATION,
    "idcf-nn": _RELATION,
    "idcf-gc": _RELATION,
}


class Trial(NamedTuple):
    number: int  # from 1
    value: float  # the lower, the better
    options: dict[str, Any]


@dataclass(frozen=True)
class Tuned:
    """All trials of a search, in their order."""

    model: str
    metric: str
    people: int
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return min(self.trials, key=lambda x: (x.value, x.number))

    def words(self) -> str:
        """The best options as `idcf train` and `idcf evaluate` take them."""
        return " ".join(f"--set {k}={v}" for k, v in self.best.options.items())

    def toml(self, preset: str, dataset: str) -> str:
        """Rows as they stand in training/presets; a backbone's options are in its own row."""
        best, name = self.best, f"{DATASET}.{dataset}" if dataset in SOURCES else DEFAULT
        mine, theirs = divide(self.model, best.options)
        parts: dict[str, dict[str, Any]] = {"options": {}, "train": {}}
        for key, value in mine.items():
            head, _, rest = key.partition(".")
            parts["train" if rest else "options"][rest or head] = value
        lines = [
            f"# {self.metric} {best.value:.4f} of {self.people} held-out people, "
            f"trial {best.number} of {len(self.trials)}",
            *_row(f"{preset}.{self.model}.{name}", parts),
        ]
        if theirs:
            lines += [
                "",
                *_row(f"{preset}.{model_entry(self.model).backbone}.{name}", {"options": theirs}),
            ]
        return "\n".join(lines) + "\n"


def _row(name: str, parts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"[{name}]"
    for part, values in parts.items():
        if values:
            inside = ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.items())
            yield f"{part} = {{ {inside} }}"


def tune(
    dataset: Dataset,
    model: str,
    trials: int,
    storage: Path,
    *,
    split: tuple[Split, str],
    preset: str = "clean",
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    runtime: Runtime = LOCAL,
    told: Callable[[Trial], None] | None = None,
) -> Tuned:
    """Until so many trials are in the file, those of earlier runs among them. `options` are fixed
    and not searched; `told` hears of every trial that was made now."""
    space = space_of(model, options or {})
    inner = newcomers(split[0], seed)
    job = Job(inner, preset=preset, dataset=dataset.name, seed=seed, runtime=runtime)
    metric = "1-auc" if inner.train.implicit else "rmse"
    about = {
        "data": Origin.of(split[0], 0).sha256,
        "split": split[1],
        "preset": preset,
        "seed": seed,
        "options": dict(options or {}),
    }
    with _study(storage, f"{model} {metric}", about) as study:
        while len(done := _ended(study)) < trials:
            trial = _next(study, space, len(done), job, model, options or {})
            tried = {name: kind.ask(trial, name) for name, kind in space.items()}
            trained = train(model, job, options={**(options or {}), **tried})
            value = score(trained, inner, seed)
            trial.set_user_attr("options", tried)
            study.tell(trial, math.inf if math.isnan(value) else value)
            if told:
                told(_ended(study)[-1])
    return Tuned(model, metric, len(inner.query_users), tuple(done))


def space_of(model: str, fixed: Mapping[str, Any]) -> Space:
    """What is searched: the model's row of the table, less what is fixed."""
    if not getattr(model_entry(model).model_class, "inductive", True):
        raise ConfigError(f"{model!r} knows only the users it was trained on: tune an idcf-* model")
    if model not in SPACES:
        raise ConfigError(f"nothing to tune: {unknown('search space', model, SPACES)}")
    left = {k: v for k, v in SPACES[model].items() if k not in fixed}
    if not left:
        raise ConfigError(f"every option of {model!r} that could be searched is fixed")
    return left


def newcomers(split: Split, seed: int = 0) -> Split:
    """A split inside the key users. Nothing of anybody else is in it."""
    lengths = Setting().newcomers
    away = sample_users(split.key_users, SHARE, stream(seed, "tuned on"))
    keys = split.train.of(split.key_users)
    rest, task = hold_out_users(keys, away, lengths, stream(seed, "tuned on, histories"))
    stay = np.setdiff1d(split.key_users, away)
    return Split(rest.plus(task.seen), task.rows, stay, away)


def score(trained: Trained, inner: Split, seed: int = 0) -> float:
    """What early stopping watches, too: RMSE, or 1 - AUC where there are no ratings."""
    rows, seen = inner.test, inner.train
    if not rows.implicit:
        return rmse_on(trained.model, rows, seen)
    rng = stream(seed, "tuned on, negatives")
    return loss_on(trained.model, rows, seen, negatives=NEGATIVES, rng=rng)


@contextmanager
def _study(storage: Path, name: str, about: Mapping[str, Any]) -> Iterator[Any]:
    """The trials of this search in the file, which may hold others, too."""
    optuna = _optuna()
    from sqlalchemy.engine import URL
    from sqlalchemy.exc import SQLAlchemyError

    address = URL.create("sqlite", database=str(storage.expanduser().resolve()))
    kept = None
    try:
        kept = optuna.storages.RDBStorage(address.render_as_string(hide_password=False))
        study = optuna.create_study(storage=kept, study_name=name, load_if_exists=True)
        for key, value in about.items():
            before = study.user_attrs.get(key, value)
            if before != value:
                raise ConfigError(
                    f"{storage} holds trials of {name!r} with another {key} ({before!r:.60}, not "
                    f"{value!r:.60}); give another --storage"
                )
            study.set_user_attr(key, value)
        for trial in study.get_trials(False, (optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # its process was killed
        yield study
    except (SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"{storage} cannot keep trials ({why}); give another file") from None
    finally:
        if kept is not None:
            kept.remove_session()
            kept.engine.dispose()


def _ended(study: Any) -> list[Trial]:
    states = (_optuna().trial.TrialState.COMPLETE,)
    found = study.get_trials(False, states)
    return [Trial(n, x.value, x.user_attrs["options"]) for n, x in enumerate(found, 1)]


def _next(
    study: Any, space: Space, done: int, job: Job, model: str, fixed: Mapping[str, Any]
) -> Any:
    """First of all what would be used anyhow; then what the trials so far and the seed say."""
    optuna = _optuna()
    if not done and not study.get_trials(False, (optuna.trial.TrialState.WAITING,)):
        usual = _usual(space, job, model, fixed)
        study.enqueue_trial({name: kind.near(usual[name]) for name, kind in space.items()})
    seed = derive(job.seed, "trial", done) % (1 << 32)
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_RANDOM)
    return study.ask()


def _usual(space: Space, job: Job, model: str, fixed: Mapping[str, Any]) -> dict[str, Any]:
    steps = stages(model, fixed, preset=job.preset, dataset=job.dataset)
    parts = [configure(name, chosen.options) for name, chosen in steps.items()]
    found = {}
    for name in space:
        head, _, rest = name.partition(".")
        own = [steps[model].train] if rest else parts
        found[name] = next(getattr(x, rest or head) for x in own if hasattr(x, rest or head))
    return found


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError:
        raise ConfigError("optuna is not installed; pip install 'idcf[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
