"""Attention of query users on key users: a sample of the weights, and their sum by key user.

Weights are means over heads, relative to uniform attention: 1 is the weight that a key user would
have if all key users had the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from idcf.data.datasets.catalog import Dataset
from idcf.errors import ConfigError
from idcf.evaluation.protocol import standard_split
from idcf.models.idcf import IDCF
from idcf.paper.figures import COLORS, make_subplots, use_log_scale, with_style
from idcf.paper.studies.study import FigureRow, Point, Study, require_dataset, select
from idcf.rng import random_stream
from idcf.training.job import Runtime
from idcf.training.train import TrainingJob, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_QUERIES, N_KEYS = 60, 100  # of the heat map
PRESETS = ("clean", "published")
PRESET_COLORS = {"clean": COLORS["idcf-bayes"], "published": COLORS["idcf-dot"]}
TOP_SHARE = 0.01  # of the key users
_BATCH = 256  # query users whose weights are in memory at a time


def attention_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for IDCF-NN under each preset and seed; few-shot users are trained on."""
    return [
        {
            "dataset": dataset,
            "model": "idcf-nn",
            "preset": preset,
            "users": "few-shot",
            "seed": seed,
        }
        for preset, seed in product(PRESETS, range(n_seeds))
    ]


def measure_attention(point: Point, dataset: Dataset | None, runtime: Runtime) -> list[FigureRow]:
    """Train IDCF; return a row of sums over query users, and a row for each query user shown."""
    data = require_dataset(dataset, point)
    split, _ = standard_split(data)
    job = TrainingJob(split, "few-shot", point["preset"], data.name, point["seed"], runtime)
    model = train(point["model"], job).model
    if not isinstance(model, IDCF):
        raise ConfigError(f"{point['model']!r} has no attention weights; use an idcf-* model")
    counts = split.train.user_counts()
    key_lengths = counts[split.key_users]
    key_lengths = key_lengths[key_lengths > 0]
    queries = split.query_users[counts[split.query_users] > 0]
    queries = queries[np.argsort(counts[queries], kind="stable")]
    batches = np.array_split(queries, 1 + len(queries) // _BATCH)
    weights = np.concatenate([relative_weights(model, data_users) for data_users in (
        split.train.build_users(batch) for batch in batches)])  # fmt: skip
    return [
        _summary_row(weights, key_lengths),
        *_heat_map_rows(weights, counts[queries], random_stream(0, "attention")),
    ]


@torch.no_grad()
def relative_weights(model: IDCF, users: Any) -> NDArray[np.float64]:
    """Return the mean weight over heads of each key user for each user, times the number of key
    users: [B, K]."""
    weights = model.eval().attention_weights(users.to(model.device)).mean(0).double()
    result: NDArray[np.float64] = (weights * weights.shape[1]).cpu().numpy()
    return result


def _summary_row(weights: NDArray[np.float64], key_lengths: NDArray[np.int64]) -> FigureRow:
    """Return the sums over query users, and how even the weights [Q, K] are."""
    n_keys = weights.shape[1]
    share = weights.clip(1e-12) / n_keys
    accumulated = weights.mean(0)
    n_top = max(1, round(TOP_SHARE * n_keys))
    return {
        "kind": "summary",
        "n_queries": len(weights),
        "n_keys": n_keys,
        "entropy": float(-(share * np.log(share)).sum(1).mean() / np.log(n_keys)),
        "top_share": float(np.sort(accumulated)[-n_top:].sum() / accumulated.sum()),
        "rank_correlation": float(spearmanr(key_lengths, accumulated).statistic),
        "lengths": key_lengths.tolist(),
        "accumulated": accumulated.tolist(),
    }


def _heat_map_rows(
    weights: NDArray[np.float64], query_lengths: NDArray[np.int64], rng: np.random.Generator
) -> list[FigureRow]:
    """Return a row for each query user of a random sample, by history length, with the weights of
    a random sample of key users, the one with the largest sum first."""
    n_queries, n_keys = min(N_QUERIES, len(weights)), min(N_KEYS, weights.shape[1])
    queries = np.sort(rng.permutation(len(weights))[:n_queries])
    keys = rng.permutation(weights.shape[1])[:n_keys]
    keys = keys[np.argsort(-weights[:, keys].sum(0), kind="stable")]
    return [
        {
            "kind": "query",
            "query": position,
            "length": int(query_lengths[query]),
            "weights": [float(f"{x:.3g}") for x in weights[query, keys]],
        }
        for position, query in enumerate(queries)
    ]


STUDY = Study("attention", ("ml-1m",), attention_points, measure_attention)


@with_style
def plot_heat_map(rows: Sequence[FigureRow]) -> Figure:
    """Draw the weights of sampled query users on sampled key users, one panel per preset."""
    from matplotlib.colors import LogNorm

    presets = [preset for preset in PRESETS if select(rows, preset=preset)]
    figure, axes = make_subplots(1, len(presets), (5.2 * len(presets) + 0.8, 4.4))
    image = None
    for axis, preset in zip(axes[0], presets, strict=True):
        cells = select(rows, preset=preset, kind="query", seed=0)
        summary = select(rows, preset=preset, kind="summary", seed=0)[0]
        weights = np.array([row["weights"] for row in cells])
        image = axis.imshow(
            weights.clip(0.1, 10), aspect="auto", cmap="RdBu_r", norm=LogNorm(0.1, 10),
            interpolation="nearest",
        )  # fmt: skip
        axis.grid(False)
        axis.set_title(f"Attention of IDCF-NN, preset {preset}")
        axis.set_xlabel(f"{weights.shape[1]} of {summary['n_keys']:,} key users (random), by sum")
        axis.set_ylabel(f"{len(cells)} of {summary['n_queries']:,} query users (random)")
    if image is not None:
        label = "weight (1: as in uniform attention)"
        bar = figure.colorbar(image, ax=list(axes[0]), label=label)
        bar.set_ticks([0.1, 0.3, 1, 3, 10], labels=["≤ 0.1", "0.3", "1", "3", "≥ 10"])
        bar.minorticks_off()
    return figure


@with_style
def plot_attention_by_length(rows: Sequence[FigureRow]) -> Figure:
    """Draw the accumulated attention of each key user against the length of its history."""
    summaries = {row["preset"]: row for row in select(rows, kind="summary", seed=0)}
    figure, axes = make_subplots(1, len(summaries), (4.9 * len(summaries) + 0.3, 4.2))
    for axis, preset in zip(axes[0], (p for p in PRESETS if p in summaries), strict=True):
        row = summaries[preset]
        _plot_points(axis, np.array(row["lengths"]), np.array(row["accumulated"]), preset)
        axis.set_title(f"Attention by history length, preset {preset}")
        axis.set_xlabel("training ratings of the key user")
    axes[0][0].set_ylabel("mean weight over query users\n(1: as in uniform attention)")
    axes[0][0].legend(loc="upper left")
    return figure


def _plot_points(axis: Axes, lengths: NDArray[Any], accumulated: NDArray[Any], preset: str) -> None:
    """Plot the accumulated weights, with their median and deciles in groups of equal size."""
    color = PRESET_COLORS[preset]
    axis.plot(lengths, accumulated, ".", color=color, ms=3, alpha=0.35, label="key user")
    order = np.argsort(lengths, kind="stable")
    groups = np.array_split(order, min(10, max(1, len(order) // 5)))
    middle = [np.median(lengths[group]) for group in groups]
    quantiles = np.array([np.quantile(accumulated[group], (0.1, 0.5, 0.9)) for group in groups])
    axis.plot(middle, quantiles[:, 1], "-", color="#222222", lw=1.8, label="median")
    axis.fill_between(
        middle, quantiles[:, 0], quantiles[:, 2], color="#222222", alpha=0.15, lw=0, label="80 %"
    )
    use_log_scale(axis, "x")


def describe_heat_map(rows: Sequence[FigureRow]) -> str:
    """Return how uneven attention is, in sentences."""
    return " ".join(
        f"Under {row['preset']}, the {100 * TOP_SHARE:g} % of the {row['n_keys']:,} key users with "
        f"the largest sums have {100 * row['top_share']:.1f} % of all attention, and the mean "
        f"entropy of a query user's weights is {row['entropy']:.4f} of that of uniform attention."
        for row in select(rows, kind="summary", seed=0)
    )


def describe_attention_by_length(rows: Sequence[FigureRow]) -> str:
    """Return how attention goes with the length of the history, in sentences."""
    parts = []
    for row in select(rows, kind="summary", seed=0):
        lengths, accumulated = np.array(row["lengths"]), np.array(row["accumulated"])
        longest = lengths >= np.quantile(lengths, 0.75)
        shortest = lengths <= np.quantile(lengths, 0.25)
        parts.append(
            f"Under {row['preset']}, the rank correlation of accumulated attention with history "
            f"length is {row['rank_correlation']:+.2f}; the quarter of key users with the longest "
            f"histories has a mean weight of {accumulated[longest].mean():.2f} (standard deviation "
            f"{accumulated[longest].std():.2f}), that with the shortest "
            f"{accumulated[shortest].mean():.2f} ({accumulated[shortest].std():.2f})."
        )
    return " ".join(parts)


def tabulate_attention(rows: Sequence[FigureRow]) -> Mapping[str, list[str]]:
    """Return column -> cells for the page: one line per preset and seed."""
    summaries = select(rows, kind="summary")
    return {
        "preset": [row["preset"] for row in summaries],
        "seed": [str(row["seed"]) for row in summaries],
        "key users": [f"{row['n_keys']:,}" for row in summaries],
        "entropy / ln K": [f"{row['entropy']:.4f}" for row in summaries],
        "attention on the top 1 %": [f"{100 * row['top_share']:.1f} %" for row in summaries],
        "correlation with length": [f"{row['rank_correlation']:+.2f}" for row in summaries],
    }
