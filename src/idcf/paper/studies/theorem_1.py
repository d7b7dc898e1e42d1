"""Theorem 1 on trained models: combinations of key users lose nothing against free latents.

If P_k has full column rank, every latent p* is P_kᵀc for some c, so that min over C of the loss of
query users equals min over free latents. P_k is that of a trained IDCF model, with the bias as its
last column, which the relation combines too. Softmax attention is not free: its weights are
positive and sum to 1, so each head stays in the convex hull of the key latents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from idcf.data.datasets.catalog import Dataset
from idcf.data.interactions import Doubles, Interactions, Ints
from idcf.data.split import Split
from idcf.errors import ConfigError
from idcf.evaluation.protocol import standard_split
from idcf.inference.scoring import score_interactions
from idcf.models.idcf import IDCF
from idcf.models.layers.heads import DotHead
from idcf.paper.figures import COLORS, make_subplots, use_log_scale, with_style
from idcf.paper.studies.study import FigureRow, Point, Study, require_dataset, select
from idcf.rng import random_stream
from idcf.training.job import Runtime
from idcf.training.train import TrainingJob, train
from idcf.types import Embeddings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = (("idcf-dot", "clean"), ("idcf-nn", "clean"), ("idcf-gc", "clean"),
          ("idcf-nn", "published"))  # fmt: skip
GAMMA = 0.5  # half of the users, drawn at random, are query users: many have long histories
MAX_QUERIES, MAX_KEYS = 150, 400  # of the least-squares problems
HULL_STEPS = 400  # of the search in the convex hull


def theorem_1_points(dataset: str, n_seeds: int) -> list[Point]:
    """Return a point for each model and preset."""
    return [
        {
            "dataset": dataset,
            "model": model,
            "preset": preset,
            "users": "few-shot",
            "seed": seed,
        }
        for seed in range(n_seeds)
        for model, preset in MODELS
    ]


class QueryRatings(NamedTuple):
    """The training rows of query users as least-squares problems, one for each user: y ≈ X p."""

    items: list[Doubles]  # X: item vectors with a last column of 1 [n, D + 1]
    residuals: list[Doubles]  # y: ratings less mean and item bias [n]

    def loss(self, latents: Doubles) -> float:
        """Return the mean squared error of latents with biases [Q, D + 1]."""
        errors = [
            y - x @ p for x, y, p in zip(self.items, self.residuals, latents, strict=True)
        ]  # fmt: skip
        return float(np.mean(np.concatenate(errors) ** 2))


def measure_theorem_1(point: Point, dataset: Dataset | None, runtime: Runtime) -> list[FigureRow]:
    """Train IDCF; return the singular values of P_k and, for the dot product, the losses."""
    data = require_dataset(dataset, point)
    split, _ = standard_split(data, gamma=GAMMA)
    job = TrainingJob(split, "few-shot", point["preset"], data.name, point["seed"], runtime)
    model = train(point["model"], job).model
    if not isinstance(model, IDCF):
        raise ConfigError(f"{point['model']!r} has no key latents; use an idcf-* model")
    keys = model.key_latents.double().cpu().numpy()
    singular_values = np.linalg.svd(keys, compute_uv=False)
    row: FigureRow = {
        "n_keys": len(keys),
        "size": keys.shape[1],
        "rank": int(np.linalg.matrix_rank(keys.astype(np.float32))),
        "singular_values": singular_values.tolist(),
        "condition": float(singular_values[0] / max(singular_values[-1], 1e-300)),
    }
    if isinstance(model.head, DotHead):
        row |= reconstruction_losses(model, split)
    return [row]


def reconstruction_losses(model: IDCF, split: Split) -> FigureRow:
    """Return the losses on training rows of query users: with free latents, free combinations of
    key users, their convex hull, the trained relation and the mean key user."""
    rng = random_stream(0, "theorem 1")
    users = np.flatnonzero(split.train.for_users(split.query_users).user_counts())
    users = np.sort(rng.permutation(users)[:MAX_QUERIES])
    rows = split.train.for_users(users)
    problems = query_ratings(model, rows, users)
    keys = model.key_latents.double().cpu().numpy()
    keys = keys[rng.permutation(len(keys))[: max(MAX_KEYS, keys.shape[1])]]
    predicted = score_interactions(model, rows, split.train, anonymous=model.ignores_user_ids)
    free = problems.loss(free_latents(problems))
    combined = problems.loss(free_combinations(problems, keys))
    return {
        "n_queries": len(users),
        "n_ratings": len(rows),
        "n_keys_combined": len(keys),
        "loss_free": free,
        "loss_combined": combined,
        "relative_difference": abs(combined - free) / free,
        "loss_hull": problems.loss(hull_latents(problems, keys)),
        "loss_relation": float(np.mean((predicted.astype(np.float64) - rows.rating) ** 2)),
        "loss_mean_key": problems.loss(np.tile(keys.mean(0), (len(users), 1))),
    }


@torch.no_grad()
def query_ratings(model: IDCF, rows: Interactions, users: Ints) -> QueryRatings:
    """Return the least-squares problems of users, with the item vectors and biases of a model."""
    history = rows.history(users)
    items = history.items.to(model.device)
    embedded: Embeddings = model.embed_items(items)
    vectors = torch.cat([embedded.vector, torch.ones_like(embedded.bias)[:, None]], 1)
    targets = history.values.to(model.device) - model.mean - embedded.bias
    ends = history.offsets[1:-1].tolist()
    return QueryRatings(
        np.split(vectors.double().cpu().numpy(), ends),
        np.split(targets.double().cpu().numpy(), ends),
    )


def free_latents(problems: QueryRatings) -> Doubles:
    """Return the latents of least loss, min over p of ‖y - X p‖² (Eq. 3): [Q, D + 1]."""
    pairs = zip(problems.items, problems.residuals, strict=True)
    return np.array([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in pairs])


def free_combinations(problems: QueryRatings, keys: Doubles) -> Doubles:
    """Return P_kᵀc for the c of least loss, min over c of ‖y - X P_kᵀ c‖² (Eq. 2): [Q, D + 1]."""
    pairs = zip(problems.items, problems.residuals, strict=True)
    weights = [np.linalg.lstsq(x @ keys.T, y, rcond=1e-12)[0] for x, y in pairs]
    return np.array(weights) @ keys


def hull_latents(problems: QueryRatings, keys: Doubles, n_steps: int = HULL_STEPS) -> Doubles:
    """Return the latents of least loss in the convex hull of the key latents [K, D + 1]: [Q, D + 1]

    Frank-Wolfe: step towards the key user who lowers the linearized loss most, as far as is best.
    """
    gram = np.array([x.T @ x for x in problems.items])
    moment = np.array(
        [x.T @ y for x, y in zip(problems.items, problems.residuals, strict=True)]
    )  # fmt: skip
    latents = np.tile(keys.mean(0), (len(gram), 1))
    for _ in range(n_steps):
        gradient = (gram @ latents[:, :, None])[:, :, 0] - moment
        direction = keys[(gradient @ keys.T).argmin(1)] - latents
        slope = -(gradient * direction).sum(1)
        curvature = np.einsum("qd,qde,qe->q", direction, gram, direction)
        step = np.clip(slope / np.maximum(curvature, 1e-300), 0, 1)
        latents = latents + step[:, None] * direction
    return latents


STUDY = Study("theorem-1", ("ml-100k",), theorem_1_points, measure_theorem_1)
_LOSSES = {  # key of a row -> label
    "loss_mean_key": "mean key user",
    "loss_relation": "trained relation",
    "loss_hull": "best convex\ncombination",
    "loss_combined": "best free\ncombination",
    "loss_free": "free latents",
}


@with_style
def plot_theorem_1(rows: Sequence[FigureRow]) -> Figure:
    """Draw the singular values of P_k of each model, and the losses of IDCF-dot."""
    figure, axes = make_subplots(1, 2, (11.0, 4.4), width_ratios=[1.15, 1])
    curves, bars = axes[0]
    for model, preset in MODELS:
        for row in select(rows, model=model, preset=preset, seed=0):
            values = np.array(row["singular_values"])
            style = "o--" if preset == "published" else "o-"
            label = f"{model}, {preset} (rank {row['rank']} of {row['size']})"
            curves.plot(range(1, len(values) + 1), values / values[0], style, ms=3.5,
                      color=COLORS[model], label=label)  # fmt: skip
    use_log_scale(curves, "y")
    curves.set(xlabel="number of the singular value")
    curves.set(ylabel="singular value / largest", title="Singular values of the key latents")
    curves.legend(loc="upper right", fontsize=9)
    _plot_losses(bars, select(rows, model="idcf-dot", seed=0))
    return figure


def _plot_losses(axis: Axes, rows: Sequence[FigureRow]) -> None:
    """Plot the losses of the training rows of query users as bars."""
    axis.set_title("Loss of query users, IDCF-dot")
    axis.set_xlabel("mean squared error of training ratings (stars²)")
    if not rows:
        return
    values = [rows[0][key] for key in _LOSSES]
    axis.barh(range(len(values)), values, color=["#bbbbbb", COLORS["idcf-dot"], "#56b4e9",
              COLORS["idcf-gc"], COLORS["idcf-gc"]], height=0.6)  # fmt: skip
    for position, value in enumerate(values):
        axis.text(value, position, f" {value:.3f}", va="center")
    axis.set_yticks(range(len(values)), list(_LOSSES.values()))
    axis.set_xlim(0, max(values) * 1.15)
    axis.grid(axis="y", visible=False)


def describe_theorem_1(rows: Sequence[FigureRow]) -> str:
    """Return the ranks and condition numbers, and the losses, in sentences."""
    ranks = [
        f"{row['model']} ({row['preset']}) {row['rank']} of {row['size']}, condition number "
        f"{row['condition']:.3g}"
        for row in select(rows, seed=0)
    ]
    text = f"Rank of P_k with its bias column: {'; '.join(ranks)}."
    for row in select(rows, model="idcf-dot", seed=0):
        text += (
            f" For idcf-dot, the best free combination of {row['n_keys_combined']} key users has a "
            f"loss of {row['loss_combined']:.4f} on the {row['n_ratings']:,} training ratings of "
            f"{row['n_queries']} query users, free latents {row['loss_free']:.4f}; relative to it "
            f"they differ by {max(row['relative_difference'], 1e-15):.0e} or less. In the convex "
            f"hull the best loss is {row['loss_hull']:.4f}; the trained relation, which is not "
            "fitted to single users, "
            f"has {row['loss_relation']:.4f}."
        )
    return text
