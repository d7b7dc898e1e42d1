"""The figures of a report. Each takes plain results and gives a matplotlib figure."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from idcf.errors import ConfigError
from idcf.evaluation.results import LOWER, Row
from idcf.evaluation.tables import Cell, intervals
from idcf.metrics import Interval
from idcf.paper.published_numbers import paper_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from idcf.training.checkpoint import Log

COLOURS = {  # colour-blind safe (Okabe & Ito); simple systems grey and brown, ours bright
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


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw in our style and leave the caller's alone."""

    @wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> Figure:
        try:
            from matplotlib import rc_context
        except ImportError:
            raise ConfigError("plots need matplotlib; install 'idcf[plots]'") from None
        with rc_context(_STYLE):  # type: ignore[arg-type]
            return draw(*args, **options)

    return drawn


def png(figure: Figure, dpi: int = 150) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi)
    return out.getvalue()


@_styled
def forest(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Each system's value and interval, the paper's number beside ours."""
    cells = intervals(rows)
    models = [m for m in dict.fromkeys(r.model for r in rows) if m != "random"][::-1]
    figure, axes = _subplots(1, len(metrics), (3.6 * len(metrics), 0.36 * len(models) + 1.2))
    for axis, metric in zip(axes[0], metrics, strict=True):
        for place, model in enumerate(models):
            if found := cells.get((model, metric)):
                _whisker(axis, place, found, COLOURS.get(model, "#444444"))
            there = paper_numbers().numbers.get(Cell(rows[0].dataset, rows[0].users, metric, model))
            if there is not None:
                axis.plot(there, place, "D", mfc="white", mec="#cc0000", ms=6, zorder=4)
        if floor := cells.get(("random", metric)):
            axis.axvline(floor.value, color="#999999", ls=":", lw=1.2)
        axis.set_title(f"{metric} ({'lower' if metric in LOWER else 'higher'} is better)")
        axis.set_yticks(range(len(models)), models if axis is axes[0][0] else [""] * len(models))
        axis.set_ylim(-0.6, len(models) - 0.4)
    marks = [
        axes[0][0].plot([], [], "o-", color="#444444", label="measured here, 95 % over users")[0],
        axes[0][0].plot([], [], "D", mfc="white", mec="#cc0000", label="paper")[0],
        axes[0][0].plot([], [], color="#999999", ls=":", label="random order")[0],
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=3)
    return figure


@_styled
def quality(curves: Mapping[str, Sequence[Interval]], lengths: Sequence[int | None]) -> Figure:
    """RMSE against how many ratings of a newcomer were shown."""
    figure, axes = _subplots(1, 1, (7.6, 4.2))
    axis = axes[0][0]
    places = np.arange(len(lengths))
    for number, (name, curve) in enumerate(curves.items()):
        value, low, high = np.array(curve).T
        shifted = places + (number - (len(curves) - 1) / 2) * 0.09
        colour = COLOURS.get(name)
        axis.vlines(shifted, low, high, color=colour, alpha=0.28, lw=3)
        axis.plot(shifted, value, "o-", color=colour, ms=4.5, lw=1.8, label=name)
    axis.set_xticks(places, ["all" if n is None else str(n) for n in lengths])
    axis.set_xlabel("ratings of the newcomer that the model may read")
    axis.set_ylabel("RMSE of their held-out ratings")
    axis.set_title("How much must be known of a newcomer?")
    axis.legend(ncols=len(curves), loc="upper right", columnspacing=1.2, handlelength=1.4)
    return figure


@_styled
def reliability(shares: Mapping[str, NDArray[Any]], levels: Sequence[float]) -> Figure:
    """The share of ratings inside intervals, against the level of the intervals."""
    figure, axes = _subplots(1, 1, (4.8, 4.4))
    axis = axes[0][0]
    axis.plot([0, 1], [0, 1], color="#999999", ls=":", lw=1.2, label="calibrated")
    for name, share in shares.items():
        axis.plot(levels, share, "o-", color=COLOURS.get(name), ms=4.5, lw=1.8, label=name)
    axis.set_xlabel("level of the interval")
    axis.set_ylabel("share of ratings inside it")
    axis.set_title("Calibration for newcomers")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.legend(loc="upper left")
    return figure


@_styled
def budget(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """RMSE on new users against how many key users were trained on, and how they were chosen."""
    figure, axes = _subplots(1, 1, (6.4, 4.0))
    axis = axes[0][0]
    for chosen, colour in (("random", "#7f7f7f"), ("informative", COLOURS["idcf-bayes"])):
        mine = sorted((r["key_users"], r["rmse"]) for r in rows if r["chosen"] == chosen)
        if mine:
            axis.plot(*zip(*mine, strict=True), "o-", color=colour, lw=1.8, ms=5, label=chosen)
    for r in rows:
        if r["chosen"] == "all":
            axis.axhline(r["rmse"], color="#444444", lw=1.2, label=f"all {r['key_users']:,}")
            axis.axhline(r["rmse"] * 1.005, color="#444444", ls=":", lw=1.2, label="0.5 % worse")
    axis.set_xscale("log")
    axis.set_xlabel("key users trained on")
    axis.set_ylabel("RMSE of new users")
    axis.set_title("How many key users are enough?")
    axis.legend()
    return figure


@_styled
def attention(weights: NDArray[Any], shown: int = 80) -> Figure:
    """How newcomers listen to key users: weights [heads, newcomers, key users]."""
    from matplotlib.colors import LogNorm

    heads, people, keys = weights.shape
    figure, axes = _subplots(1, 2, (10.5, 4.2), width_ratios=[2.1, 1])
    left, right = axes[0]
    mean = weights.mean(0) * keys  # 1: no more than anybody
    loudest = np.argsort(-mean.mean(0), kind="stable")[:shown]
    order = np.argsort(mean[:, loudest].argmax(1), kind="stable")
    image = left.imshow(
        mean[np.ix_(order, loudest)].clip(0.1),
        aspect="auto",
        cmap="magma",
        norm=LogNorm(0.1, max(10.0, float(mean.max()))),
        interpolation="nearest",
    )
    left.grid(False)
    left.set_title("Attention on key users")
    left.set_xlabel(f"the {len(loudest)} of {keys} key users most listened to")
    left.set_ylabel(f"{people} newcomers")
    figure.colorbar(image, ax=left, label="weight (1 = an equal share)", pad=0.02)
    entropy = -(weights * np.log(weights.clip(1e-12))).sum(-1)
    voices = np.exp(entropy)  # [heads, people]
    parts = right.boxplot(list(voices), widths=0.55, patch_artist=True, showfliers=False)
    for box, line in zip(parts["boxes"], parts["medians"], strict=True):
        box.set(facecolor="#cfe3f1", edgecolor="#0072b2")
        line.set(color="#0072b2", lw=2)
    right.axhline(keys, color="#999999", ls=":", lw=1.2)
    right.set_title("How many voices a head hears")
    right.set_xticks(range(1, heads + 1), [f"head {n + 1}" for n in range(heads)])
    right.set_ylim(0, keys * 1.06)
    right.set_ylabel("exp(entropy); dotted: everybody equally")
    return figure


@_styled
def training(logs: Mapping[str, Mapping[str, Log]]) -> Figure:
    """Validation and loss of both stages, per model; a ring marks the epoch that was chosen."""
    figure, axes = _subplots(2, 2, (10.5, 5.6))
    for name, stages in logs.items():
        for column, log in enumerate(stages.values()):
            for axis, key in zip(axes[:, column], ("valid", "loss"), strict=True):
                _curve(axis, log, key, name)
    titles = ("Stage 1, pretraining on key users", "Stage 2, adaption: learning to relate")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title)
    axes[0, 0].set_ylabel("RMSE, held-out ratings")
    axes[0, 1].set_ylabel("RMSE, held-out users")
    for axis in axes[1]:
        axis.set_ylabel("training loss")
        axis.set_xlabel("epoch")
    lines = [x for x in axes[0, 0].get_lines() if not x.get_label().startswith("_")]
    figure.legend(handles=lines, loc="outside lower center", ncols=max(len(logs), 1))
    return figure


def _curve(axis: Axes, log: Log, key: str, name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    epochs = [r["epoch"] + 1 for r in log.records if key in r]
    values, colour = log.column(key), COLOURS.get(name)
    axis.plot(epochs, values, "-", color=colour, lw=1.8, label=name)
    if values and 0 <= log.best < len(values):
        best = (epochs[log.best], values[log.best])
        axis.plot(*best, "o", mfc="white", mec=colour, mew=1.8, ms=7)


def _whisker(axis: Axes, place: float, found: Interval, colour: str) -> None:
    axis.hlines(place, found.low, found.high, color=colour, lw=2.2, alpha=0.55)
    axis.plot(found.value, place, "o", color=colour, ms=6, zorder=3)


def _subplots(
    rows: int, columns: int, size: tuple[float, float], **grid: Any
) -> tuple[Figure, NDArray[Any]]:
    """A figure that needs no display and belongs to nobody's session."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid or None)
