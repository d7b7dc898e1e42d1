"""Theorem 2: the generalization gap against the numbers of key users and of query ratings.

The bound is 2 L H B √(2 M_q ln M_k / T_q) + √(ln(1/δ) / T_q). It holds for f = dot product and
combinations c of key users with ‖c‖₁ ≤ H. Two models of that form are measured: the theorem's
class itself, each query user's best convex combination of key users (H = 1), and `idcf-dot`, whose
relation is trained on the rows of query users only. Predictions are clipped to the rating scale,
so that the squared error has the Lipschitz constant L = 2 · (width of the scale).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Doubles, Floats, Interactions
from idcf.data.split import Split
from idcf.errors import ConfigError
from idcf.evaluation.protocol import standard_split
from idcf.inference.scoring import score_interactions
from idcf.models.idcf import IDCF
from idcf.models.registry import model_entry
from idcf.paper.figures import COLORS, make_subplots, use_log_scale, with_style
from idcf.paper.studies.study import FigureRow, Point, Study, require_dataset, select
from idcf.paper.studies.theorem_1 import GAMMA, hull_latents, query_ratings
from idcf.rng import random_stream
from idcf.training.job import Runtime
from idcf.training.presets import stage_configs
from idcf.training.train import TrainingJob
from idcf.training.two_stage import train_two_stage

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KEY_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the key users
ROW_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the rows of query users
CLASSES = ("convex", "idcf-dot")
CLASS_LABELS = {"convex": "best convex combination", "idcf-dot": "trained relation (idcf-dot)"}
CLASS_COLORS = {"convex": COLORS["idcf-gc"], "idcf-dot": COLORS["idcf-dot"]}
DELTA = 0.05  # the bound holds with probability 1 - δ
HULL_STEPS = 200


def theorem_2_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for each share of key users, then of rows; the other share is 1."""
    shares = [(k, 1.0) for k in KEY_SHARES] + [(1.0, t) for t in ROW_SHARES[:-1]]
    return [
        {
            "dataset": dataset,
            "model": "idcf-dot",
            "preset": "clean",
            "users": "few-shot",
            "key_share": key_share,
            "row_share": row_share,
            "seed": seed,
        }
        for seed in range(n_seeds)
        for key_share, row_share in shares
    ]


def reduce_split(split: Split, key_share: float, row_share: float, seed: int) -> Split:
    """Return the split with a random share of the key users and of the rows of query users. Query
    users without a row lose their test rows."""
    rng = random_stream(seed, "theorem 2")
    keys = rng.permutation(split.key_users)
    rows = split.train.for_users(split.query_users)
    chosen = np.sort(rng.permutation(len(rows))[: max(1, round(row_share * len(rows)))])
    query_rows = rows.where(chosen)
    key_users = np.sort(keys[: max(3, round(key_share * len(keys)))])
    users = np.flatnonzero(query_rows.user_counts())
    return replace(
        split,
        train=split.train.for_users(key_users).concat(query_rows),
        test=split.test.for_users(users),
        key_users=key_users,
        query_users=users,
    )


def measure_theorem_2(point: Point, dataset: Dataset | None, runtime: Runtime) -> list[FigureRow]:
    """Train on some key users and rows; return the errors of query users, and the bound."""
    data = require_dataset(dataset, point)
    whole, _ = standard_split(data, gamma=GAMMA)
    split = reduce_split(whole, point["key_share"], point["row_share"], point["seed"])
    job = TrainingJob(split, "few-shot", point["preset"], data.name, point["seed"], runtime)
    model = _train_on_query_rows(point["model"], job)
    train_rows = split.train.for_users(split.query_users)
    predictions: dict[str, tuple[Floats | Doubles, Floats | Doubles]] = {
        "convex": _convex_predictions(model, split, train_rows),
        "idcf-dot": (
            score_interactions(model, train_rows, split.train, anonymous=model.ignores_user_ids),
            score_interactions(model, split.test, split.train, anonymous=model.ignores_user_ids),
        ),
    }
    scale = float(split.train.rating.min()), float(split.train.rating.max())
    n_keys, n_queries = len(model.key_latents), len(split.query_users)
    largest = largest_prediction(model)
    sizes = {
        "n_keys": n_keys,
        "n_queries": n_queries,
        "n_ratings": len(train_rows),
        "n_test": len(split.test),
        "largest": largest,
        "bound": theorem_bound(2 * (scale[1] - scale[0]), largest, n_queries, n_keys,
                               len(train_rows)),
    }  # fmt: skip
    rows = []
    for kind, (fitted, predicted) in predictions.items():
        train_error = _squared_error(fitted, train_rows, scale)
        test_error = _squared_error(predicted, split.test, scale)
        errors = {"train_error": train_error, "test_error": test_error}
        rows.append({"class": kind, **errors, "gap": test_error - train_error, **sizes})
    return rows


def theorem_bound(
    lipschitz: float, largest: float, n_queries: int, n_keys: int, n_ratings: int, norm: float = 1.0
) -> float:
    """Return 2 L H B √(2 M_q ln M_k / T_q) + √(ln(1/δ) / T_q), with constant 1 in the O."""
    complexity = norm * largest * np.sqrt(2 * n_queries * np.log(n_keys) / n_ratings)
    return float(2 * lipschitz * complexity + np.sqrt(np.log(1 / DELTA) / n_ratings))


@torch.no_grad()
def largest_prediction(model: IDCF) -> float:
    """Return B, the largest |p_uᵀq_i + b_u| of the key users over the catalogue."""
    items = model.embed_catalog().vector
    keys = model.key_latents
    return float((keys[:, :-1] @ items.T + keys[:, -1:]).abs().max())


def _train_on_query_rows(name: str, job: TrainingJob) -> IDCF:
    """Train IDCF with a relation that sees the rows of query users only, as in the theorem."""
    backbone = model_entry(name).backbone
    configs = stage_configs(
        name, preset=job.preset, dataset=job.dataset, query_user_mode="few-shot"
    )
    if backbone is None:
        raise ConfigError(f"{name!r} has no key users; use an idcf-* model")
    stage = replace(configs[name], train_on_all_users=False)
    with torch.random.fork_rng():
        model = train_two_stage(name, backbone, job, stage, configs[backbone]).model
    if not isinstance(model, IDCF):
        raise ConfigError(f"{name!r} has no relation; use an idcf-* model")
    return model


@torch.no_grad()
def _convex_predictions(
    model: IDCF, split: Split, train_rows: Interactions
) -> tuple[Doubles, Doubles]:
    """Return the predictions of training and test rows by each query user's convex combination of
    key users that fits the training rows best."""
    keys = model.key_latents.double().cpu().numpy()
    problems = query_ratings(model, train_rows, split.query_users)
    latents = np.zeros((len(split.train.users), keys.shape[1]))
    latents[split.query_users] = hull_latents(problems, keys, HULL_STEPS)
    items = model.embed_catalog()
    vectors = items.vector.double().cpu().numpy()
    biases = items.bias.double().cpu().numpy() + model.mean

    def predict(rows: Interactions) -> Doubles:
        """Return p·q + b_u + b_i + μ of each row."""
        products = (latents[rows.user, :-1] * vectors[rows.item]).sum(1)
        predicted: Doubles = products + latents[rows.user, -1] + biases[rows.item]
        return predicted

    return predict(train_rows), predict(split.test)


def _squared_error(
    predicted: Floats | Doubles, rows: Interactions, scale: tuple[float, float]
) -> float:
    """Return the mean squared error of predictions that are clipped to the scale."""
    return float(np.mean((np.clip(predicted, *scale).astype(np.float64) - rows.rating) ** 2))


STUDY = Study("theorem-2", ("ml-100k",), theorem_2_points, measure_theorem_2)


def sweep(rows: Sequence[FigureRow], kind: str, variable: str) -> tuple[Doubles, Doubles, Doubles]:
    """Return the variable ("n_keys" or "n_ratings"), and the means over seeds of the gap and of the
    bound, of the rows in which only that variable changes."""
    other = {"n_keys": "row_share", "n_ratings": "key_share"}[variable]
    groups: dict[float, list[FigureRow]] = {}
    for row in select(rows, **{"class": kind, other: 1.0}):
        groups.setdefault(row[variable], []).append(row)
    means = [
        (x, *(float(np.mean([row[key] for row in group])) for key in ("gap", "bound")))
        for x, group in sorted(groups.items())
    ]
    x, gap, bound = np.array(means).T
    return x, gap, bound


def log_slope(x: Doubles, y: Doubles) -> float:
    """Return the slope of log y against log x, over the positive y; NaN for fewer than two."""
    is_positive = y > 0
    if is_positive.sum() < 2:
        return float("nan")
    return float(np.polyfit(np.log(x[is_positive]), np.log(y[is_positive]), 1)[0])


@with_style
def plot_theorem_2(rows: Sequence[FigureRow]) -> Figure:
    """Draw the gap and the bound against M_k and T_q, on log axes."""
    figure, axes = make_subplots(1, 2, (10.0, 4.4))
    for axis, variable in zip(axes[0], ("n_keys", "n_ratings"), strict=True):
        _plot_sweep(axis, rows, variable)
    axes[0][0].set(title="Gap against key users", xlabel="key users M_k")
    axes[0][1].set(title="Gap against query ratings", xlabel="training ratings of query users T_q")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _plot_sweep(axis: Axes, rows: Sequence[FigureRow], variable: str) -> None:
    """Plot gap and bound against one variable."""
    for kind in CLASSES:
        if not select(rows, **{"class": kind}):
            continue
        x, gap, bound = sweep(rows, kind, variable)
        shown = gap > 0
        axis.plot(x[shown], gap[shown], "o-", color=CLASS_COLORS[kind], label=CLASS_LABELS[kind])
        if kind == CLASSES[0]:
            axis.plot(x, bound, "--", color="#444444", label="bound of the theorem")
    use_log_scale(axis, "x", "y")
    axis.set_ylabel("test minus training error (stars²)")


def describe_theorem_2(rows: Sequence[FigureRow]) -> str:
    """Return the slopes of gap and bound, and how far apart they are, in sentences."""
    parts = []
    for kind in CLASSES:
        if select(rows, **{"class": kind}):
            keys, ratings = (sweep(rows, kind, x) for x in ("n_keys", "n_ratings"))
            ratio = min(np.min(s[2] / np.abs(s[1])) for s in (keys, ratings))
            parts.append(
                f"{CLASS_LABELS[kind]}: the slope of the gap's logarithm is "
                f"{log_slope(*keys[:2]):+.2f} in ln M_k (bound {log_slope(keys[0], keys[2]):+.2f}) "
                f"and {log_slope(*ratings[:2]):+.2f} in ln T_q (bound "
                f"{log_slope(ratings[0], ratings[2]):+.2f}); the bound is at least {ratio:.0f} "
                "times the gap"
            )
    return f"{'. '.join(part[0].upper() + part[1:] for part in parts)}."


def tabulate_theorem_2(rows: Sequence[FigureRow]) -> Mapping[str, list[str]]:
    """Return column -> cells for the page: one line per row."""

    def column(key: str, form: str) -> list[str]:
        """Return a column of formatted numbers."""
        return [format(row[key], form) for row in rows]

    columns: dict[str, Any] = {
        "model": [CLASS_LABELS[row["class"]] for row in rows],
        "seed": column("seed", "d"),
        "M_k": column("n_keys", ",d"),
        "T_q": column("n_ratings", ",d"),
        "training error": column("train_error", ".3f"),
        "test error": column("test_error", ".3f"),
        "gap": column("gap", "+.3f"),
        "bound": column("bound", ".1f"),
    }
    return columns
