"""The cold-start study of the paper's appendix: seconds per epoch, and its figures from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from idcf.data.datasets.cold_start import SUPPORT_SIZES, TEST_ROWS
from idcf.data.split import Split
from idcf.evaluation.results import ResultRow
from idcf.metrics import Interval, mean_of_seeds
from idcf.models.registry import model_entry
from idcf.paper.figures import make_subplots, with_style
from idcf.training.gradient import fit_standalone
from idcf.training.job import LOCAL_RUNTIME, Runtime
from idcf.training.presets import stage_configs
from idcf.training.train import TrainingJob, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASET = "ml-1m-cold"
TIMED_SYSTEMS = ("wide-deep", "gcmc-features", "agnn", "melu", "melu-first-order", "idcf-hy")
HAND_OVER_SYSTEMS = ("bias", "gcmc-features", "melu", "idcf-bayes", "idcf-bayes-features")
_N_TIMED_EPOCHS = 2  # the first is longer: kernels are loaded
_COLORS = ("#7f7f7f", "#a6761d", "#009e73", "#0072b2", "#cc79a7")


@dataclass(frozen=True)
class EpochTime:
    """Seconds of one epoch of a system; in an epoch each training rating is a target once."""

    dataset: str
    model: str
    device: str
    seconds_by_stage: Mapping[str, float]
    seconds: float  # of all stages
    # for as many targets as an epoch of MeLU's authors has: ten of each user
    seconds_per_task_epoch: float

    def as_row(self) -> dict[str, Any]:
        """Return the row that is stored."""
        return asdict(self)


def time_epochs(
    model: str, split: Split, dataset: str = DATASET, runtime: Runtime = LOCAL_RUNTIME
) -> EpochTime:
    """Train a system for two epochs a stage and return the time of the second."""
    job = TrainingJob(split, dataset=dataset, runtime=runtime)
    options = {"train.epochs": _N_TIMED_EPOCHS}
    if model_entry(model).backbone:
        logs = dict(train(model, job, options=options).logs)
    else:
        stage = stage_configs(model, options, dataset=dataset)[model]
        table = job.training_table()
        logs = {model: fit_standalone(model, job, stage, table, n_epochs=_N_TIMED_EPOCHS).log}
    seconds = {name: round(float(log.records[-1]["seconds"]), 3) for name, log in logs.items()}
    total = sum(seconds.values())
    share = TEST_ROWS * len(split.key_users) / max(len(split.train), 1)
    device = runtime.device.type
    return EpochTime(dataset, model, device, seconds, round(total, 3), round(total * share, 3))


def mean_by_system(
    rows: Iterable[ResultRow], group: str, metric: str = "rmse"
) -> dict[str, Interval]:
    """Return the mean over seeds of each system under the preset `clean`, for a group of users."""
    by_system: dict[str, list[Interval]] = {}
    for row in rows:
        if (row.users, row.metric, row.preset) == (group, metric, "clean"):
            by_system.setdefault(row.model, []).append(row.interval)
    return {model: mean_of_seeds(values) for model, values in by_system.items()}


@with_style
def plot_cold_start(rows: Sequence[ResultRow], epochs: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the RMSE of cold users on both test sets, and the seconds per epoch on a log axis."""
    figure, axes = make_subplots(1, 3, (12.0, 4.2))
    titles = {"new": "All ratings of cold users", "cold-0": "Ten ratings of each light cold user"}
    for axis, (group, title) in zip(axes[0], titles.items(), strict=False):
        means = sorted(mean_by_system(rows, group).items(), key=lambda x: -x[1].value)
        for position, (_, mean) in enumerate(means):
            axis.plot([mean.low, mean.high], [position] * 2, color="#999999", lw=1.6)
            axis.plot(mean.value, position, "o", color="#0072b2", ms=5)
        axis.set_yticks(range(len(means)), [name for name, _ in means])
        axis.set(title=title, xlabel="RMSE, no rating known")
    axis = axes[0][2]
    times = sorted(epochs, key=lambda row: row["seconds"])
    axis.barh([row["model"] for row in times], [row["seconds"] for row in times], color="#cfe3f1")
    axis.set_xscale("log")
    axis.set(title="Time per epoch", xlabel="seconds")
    return figure


@with_style
def plot_hand_over(rows: Sequence[ResultRow]) -> Figure:
    """Draw the RMSE of cold users against the number of ratings that are known of each."""
    figure, axes = make_subplots(1, 1, (6.4, 4.2))
    axis = axes[0][0]
    groups = [group for group in SUPPORT_SIZES if group != "cold-all"]
    for model, color in zip(HAND_OVER_SYSTEMS, _COLORS, strict=True):
        means = [mean_by_system(rows, group).get(model) for group in groups]
        values = [None if mean is None else mean.value for mean in means]
        if None not in values:
            axis.plot(range(len(groups)), values, "o-", color=color, lw=1.8, ms=5, label=model)
    axis.set_xticks(range(len(groups)), [str(SUPPORT_SIZES[group]) for group in groups])
    axis.set(title="From features to history", xlabel="known ratings of a cold user", ylabel="RMSE")
    axis.legend()
    return figure
