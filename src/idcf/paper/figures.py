"""The style of all figures, and those of the demo's report: functions from results to figures.

No figure needs a display. Without matplotlib, the functions raise ConfigError.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from idcf.errors import require_extra
from idcf.evaluation.results import LOWER_IS_BETTER, ResultRow
from idcf.evaluation.tables import CellKey, intervals_by_cell
from idcf.metrics import Interval
from idcf.paper.table_spec import paper_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from idcf.training.checkpoint import TrainingLog

COLORS = {  # safe for color-blind readers (Okabe & Ito); baselines in gray and brown
    "bias": "#7f7f7f",
    "als": "#a6761d",
    "idcf-dot": "#0072b2",
    "idcf-nn": "#d55e00",
    "idcf-gc": "#009e73",
    "idcf-bayes": "#cc79a7",
}
_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
P = ParamSpec("P")


def with_style(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that returns a figure: draw it in this module's style, and leave the
    caller's matplotlib settings as they are."""

    @wraps(draw)
    def draw_with_style(*args: P.args, **options: P.kwargs) -> Figure:
        """Draw in the style of this module; raise ConfigError without matplotlib."""
        require_extra("plots", "matplotlib")
        from matplotlib import rc_context

        with rc_context(_STYLE):  # type: ignore[arg-type]
            return draw(*args, **options)

    return draw_with_style


def to_png(figure: Figure, dpi: int = 150, description: str = "") -> bytes:
    """Render a figure as a PNG image; the file carries the description."""
    buffer = io.BytesIO()
    metadata = {"Description": description} if description else None
    figure.savefig(buffer, format="png", dpi=dpi, metadata=metadata)
    return buffer.getvalue()


@with_style
def plot_forest(rows: Sequence[ResultRow], metrics: Sequence[str]) -> Figure:
    """Draw each system's value and interval beside the paper's number, one panel per metric. The
    rows are those of one dataset and user group."""
    intervals = intervals_by_cell(rows)
    models = [m for m in dict.fromkeys(r.model for r in rows) if m != "random"][::-1]
    figure, axes = make_subplots(1, len(metrics), (3.6 * len(metrics), 0.36 * len(models) + 1.2))
    for axis, metric in zip(axes[0], metrics, strict=True):
        for position, model in enumerate(models):
            if interval := intervals.get((model, metric)):
                color = COLORS.get(model, "#444444")
                axis.hlines(position, interval.low, interval.high, color=color, lw=2.2, alpha=0.55)
                axis.plot(interval.value, position, "o", color=color, ms=6, zorder=3)
            cell = CellKey(rows[0].dataset, rows[0].users, metric, model)
            published = paper_numbers().numbers.get(cell)
            if published is not None:
                axis.plot(published, position, "D", mfc="white", mec="#cc0000", ms=6, zorder=4)
        if random_order := intervals.get(("random", metric)):
            axis.axvline(random_order.value, color="#999999", ls=":", lw=1.2)
        direction = "lower" if metric in LOWER_IS_BETTER else "higher"
        axis.set_yticks(range(len(models)), models if axis is axes[0][0] else [""] * len(models))
        axis.set(title=f"{metric} ({direction} is better)", ylim=(-0.6, len(models) - 0.4))
    marks = [
        axes[0][0].plot([], [], "o-", color="#444444", label="measured here, 95 % over users")[0],
        axes[0][0].plot([], [], "D", mfc="white", mec="#cc0000", label="paper")[0],
        axes[0][0].plot([], [], color="#999999", ls=":", label="random order")[0],
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3)
    return figure


@with_style
def plot_rmse_by_history_length(
    curves: Mapping[str, Sequence[Interval]],
    history_lengths: Sequence[int | None],
    model: str,
    baseline: str,
) -> Figure:
    """Draw how many ratings a model must read to be ahead of a baseline: RMSE against the number of
    ratings, None being the whole history, with the interval of the model; the other curves are
    gray."""
    figure, axes = make_subplots(1, 1, (7.6, 4.2))
    axis = axes[0][0]
    positions = np.arange(len(history_lengths))
    others = [name for name in curves if name not in (model, baseline)]
    for name in others:
        values = [x.value for x in curves[name]]
        label = f"others: {', '.join(others)}" if name == others[0] else None
        axis.plot(positions, values, "-", color="#bdbdbd", lw=1.2, label=label)
    if baseline in curves:
        values = [x.value for x in curves[baseline]]
        axis.plot(positions, values, "s--", color="#444444", ms=4.5, lw=1.8, label=baseline)
    if model in curves:
        value, low, high = np.array(curves[model]).T
        axis.fill_between(positions, low, high, color=COLORS.get(model), alpha=0.18, lw=0)
        axis.plot(positions, value, "o-", color=COLORS.get(model), ms=5, lw=2.4, label=model)
    axis.set_xticks(positions, ["all" if n is None else str(n) for n in history_lengths])
    axis.set_xlabel("ratings of the new user that the model reads")
    axis.set_ylabel("RMSE of held-out ratings")
    axis.legend(loc="upper right")
    return figure


def first_length_ahead(
    curves: Mapping[str, Sequence[Interval]],
    history_lengths: Sequence[int | None],
    model: str,
    baseline: str,
) -> str:
    """Say from how many ratings on the RMSE of a model is below that of a baseline."""
    ahead = [a.value < b.value for a, b in zip(curves[model], curves[baseline], strict=True)]
    first = len(ahead) - next((n for n, x in enumerate(ahead[::-1]) if not x), len(ahead))
    if first == len(ahead):
        return f"With a whole history, `{model}` is not ahead of `{baseline}`."
    length = history_lengths[first]
    ratings = "the whole history" if length is None else f"{length} rating{'s' * (length != 1)}"
    return f"`{model}` is ahead of `{baseline}` from {ratings} on."


@with_style
def plot_reliability(shares: Mapping[str, NDArray[Any]], levels: Sequence[float]) -> Figure:
    """Draw the share of ratings inside predicted intervals against the level of the intervals."""
    figure, axes = make_subplots(1, 1, (4.8, 4.4))
    axis = axes[0][0]
    axis.plot([0, 1], [0, 1], color="#999999", ls=":", lw=1.2, label="calibrated")
    for name, share in shares.items():
        axis.plot(levels, share, "o-", color=COLORS.get(name), ms=4.5, lw=1.8, label=name)
    axis.set(xlabel="level of the interval", ylabel="share of ratings inside it")
    axis.set(title="Calibration for new users", xlim=(0, 1), ylim=(0, 1))
    axis.legend(loc="upper left")
    return figure


@with_style
def plot_attention(weights: NDArray[Any], n_shown: int = 80) -> Figure:
    """Draw attention weights [heads, new users, key users], as means over heads, of the `n_shown`
    key users with the largest mean weight."""
    from matplotlib.colors import LogNorm

    _, n_users, n_keys = weights.shape
    figure, axes = make_subplots(1, 1, (7.6, 4.2))
    axis = axes[0][0]
    relative = weights.mean(0) * n_keys  # 1: the weight of uniform attention
    top_keys = np.argsort(-relative.mean(0), kind="stable")[:n_shown]
    order = np.argsort(relative[:, top_keys].argmax(1), kind="stable")
    image = axis.imshow(
        relative[np.ix_(order, top_keys)].clip(0.1),
        aspect="auto",
        cmap="Blues",
        norm=LogNorm(0.1, max(10.0, float(relative.max()))),
        interpolation="nearest",
    )
    axis.grid(False)
    axis.set_xlabel(f"the {len(top_keys)} of {n_keys} key users with the largest weights")
    axis.set_ylabel(f"{n_users} new users")
    figure.colorbar(image, ax=axis, label="weight (1 = uniform attention)", pad=0.02)
    return figure


@with_style
def plot_attention_spread(weights: NDArray[Any]) -> Figure:
    """Draw over how many key users each head spreads its attention: the exponential of the entropy
    of its weights [heads, new users, key users]."""
    n_heads, _, n_keys = weights.shape
    figure, axes = make_subplots(1, 1, (6.2, 3.6))
    axis = axes[0][0]
    entropy = -(weights * np.log(weights.clip(1e-12))).sum(-1)
    effective_keys = np.exp(entropy)  # [heads, new users]
    plots = axis.boxplot(list(effective_keys), widths=0.55, patch_artist=True, showfliers=False)
    for box, median in zip(plots["boxes"], plots["medians"], strict=True):
        box.set(facecolor="#cfe3f1", edgecolor="#0072b2")
        median.set(color="#0072b2", lw=2)
    axis.axhline(n_keys, color="#999999", ls=":", lw=1.2)
    axis.set_xticks(range(1, n_heads + 1), [f"head {n + 1}" for n in range(n_heads)])
    axis.set(ylim=(0, n_keys * 1.06), ylabel="effective number of key users")
    return figure


@with_style
def plot_training(logs: Mapping[str, Mapping[str, TrainingLog]]) -> Figure:
    """Draw the validation RMSE by model and stage; a ring marks the chosen epoch."""
    figure, axes = make_subplots(1, 2, (9.0, 3.6))
    for name, stages in logs.items():
        for axis, log in zip(axes[0], stages.values(), strict=False):
            _plot_curve(axis, log, "valid", name)
    titles = ("Stage 1, on key users", "Stage 2, adaption to new users")
    for axis, title, rows in zip(axes[0], titles, ("ratings", "users"), strict=True):
        axis.set(title=title, xlabel="epoch", ylabel=f"RMSE, held-out {rows}")
    lines = [line for line in axes[0, 0].get_lines() if not line.get_label().startswith("_")]
    figure.legend(handles=lines, loc="outside lower center", ncols=max(len(logs), 1))
    return figure


def _plot_curve(axis: Axes, log: TrainingLog, key: str, name: str) -> None:
    """Plot the value `key` of a log against the epochs, from 1; a ring marks the best epoch."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    epochs = [r["epoch"] + 1 for r in log.records if key in r]
    values, color = log.column(key), COLORS.get(name)
    axis.plot(epochs, values, "-", color=color, lw=1.8, label=name)
    if values and 0 <= log.best_epoch < len(values):
        best = (epochs[log.best_epoch], values[log.best_epoch])
        axis.plot(*best, "o", mfc="white", mec=color, mew=1.8, ms=7)


def use_log_scale(axis: Axes, *names: str) -> None:
    """Make the axes of these names ("x", "y") logarithmic, with ticks at 1, 2 and 5 in plain
    numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for name in names:
        axis.set(**{f"{name}scale": "log"})
        one_axis = axis.xaxis if name == "x" else axis.yaxis
        one_axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        one_axis.set_minor_locator(NullLocator())
        one_axis.set_major_formatter(
            FuncFormatter(lambda x, _: f"{x:,.0f}" if x >= 1 else f"{x:.10g}")
        )


def make_subplots(
    rows: int, columns: int, size: tuple[float, float], **grid: Any
) -> tuple[Figure, NDArray[Any]]:
    """Return a figure and its axes [rows, columns]; `grid` are options of matplotlib's `GridSpec`,
    such as `width_ratios`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid or None)
