"""`idcf-bayes` with an ordered-probit likelihood, compared with the Gaussian one.

    z_ui ~ N(μ + b_u + b_i + p_uᵀq_i, 1 / (α w_u)),   r_ui is level k where c_k-1 < z_ui < c_k

The utilities z take the place of the ratings in every step of the sampler (Albert and Chib 1993).
The first and the last cut point lie halfway between two levels, so that α is free and utilities are
on the scale of ratings; the others are uniform between these two and ascend. They are drawn jointly
with the utilities, which a Metropolis step integrates out (Cowles 1996): its likelihood is a sum
over users.

A new user has the posterior of `BayesModel` given expected utilities, which are those given the
posterior, in turn. The prediction is the expected level, which needs the variance of each score.

    python experiments/ordered_probit.py douban --on validation --seeds 3
    python experiments/ordered_probit.py douban --on test --seeds 3

`validation` holds out key users as `idcf tune` does. Rows are appended to
experiments/results/ordered-probit.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from idcf import types
from idcf.evaluation.evaluation_set import EvaluationSet
from idcf.evaluation.measure import ModelAssignment, compute_metrics
from idcf.evaluation.protocol import open_dataset, standard_split
from idcf.evaluation.source_commit import source_commit
from idcf.evaluation.tune import make_tuning_split
from idcf.inference.scoring import interaction_std, score_interactions
from idcf.models import bayes as models
from idcf.models.base import TwoTower
from idcf.models.bayes import BayesConfig, BayesModel, UserPosterior, rating_std
from idcf.models.layers.ragged import nearest_level, transpose
from idcf.training.solvers import bayes as solver
from idcf.training.solvers.bayes import BlockAccumulator, GibbsSampler
from idcf.training.train import TrainingJob, train
from idcf.types import Domain, History, Users

FILE = Path(__file__).resolve().parent / "results" / "ordered-probit.jsonl"
N_UTILITY_STEPS = 6  # of a new user's posterior
_STEP_SCALE = 1.5  # of the proposals of cut points, in standard deviations


def lower_tail(x: Tensor) -> Tensor:
    """Return P(y < x) of a standard normal y, to full precision below 0, unlike `ndtr`."""
    return torch.special.erfc(-x * 0.5**0.5) / 2


def interval_probability(low: Tensor, high: Tensor) -> Tensor:
    """Return P(low < x < high) of a standard normal x, exact in both tails."""
    mirrored = low + high > 0
    low, high = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    return lower_tail(high) - lower_tail(low)


def truncated_normal_mean(low: Tensor, high: Tensor) -> Tensor:
    """Return E(x | low < x < high) of a standard normal x."""
    density = torch.exp(-low.square() / 2) - torch.exp(-high.square() / 2)
    mass = interval_probability(low, high).clamp(min=1e-300)
    mean = density / mass * (2 * torch.pi) ** -0.5
    return torch.minimum(torch.maximum(mean, low), high)


def draw_truncated_normal(low: Tensor, high: Tensor, generator: torch.Generator) -> Tensor:
    """Draw x | low < x < high of a standard normal x."""
    mirrored = low + high > 0
    a, b = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    share = torch.rand(a.shape, generator=generator, dtype=a.dtype, device=a.device)
    low_mass, high_mass = lower_tail(a), lower_tail(b)
    x = torch.special.ndtri(low_mass + share * (high_mass - low_mass))
    x = torch.minimum(torch.maximum(x, a), b)
    return torch.where(mirrored, -x, x)


def midpoints(levels: Tensor) -> Tensor:
    """Return the L - 1 midpoints of L levels."""
    return (levels[1:] + levels[:-1]) / 2


class OrderedSampler(GibbsSampler):
    """The chain of `GibbsSampler`, whose ratings are utilities; `levels` are less μ."""

    def __init__(self, *arguments: Any, levels: Tensor) -> None:
        super().__init__(*arguments)
        ratings = self.users.ratings
        self.level = nearest_level(ratings.values, levels.to(ratings.values))  # [N]
        self.order = transpose(ratings, len(self.items.latents)).order
        self.cut_points = midpoints(levels.double())  # [L - 1]

    def sweep(self) -> tuple[Tensor, Tensor]:
        """Draw cut points and utilities, then every variable of `GibbsSampler`."""
        self.draw_utilities()
        return super().sweep()

    def without_users(self, removed: Tensor) -> OrderedSampler:
        """Return a sampler in this one's state without the ratings of some users, bool [U]."""
        kept = ~removed[self.users.ratings.owner()]
        out: OrderedSampler = super().without_users(removed)  # type: ignore[assignment]
        out.level = self.level[kept]
        out.order = transpose(out.users.ratings, len(out.items.latents)).order
        return out

    def draw_utilities(self) -> None:
        """Draw the cut points with the utilities integrated out, then the utilities."""
        users, items = self.users.latents.double(), self.items.latents.double()
        ratings = self.users.ratings
        owner = ratings.owner()
        p, q = users[owner], items[ratings.indices]
        fitted = (p[:, :-1] * q[:, :-1]).sum(1) + p[:, -1] + q[:, -1]
        root = (self.noise_precision * self.user_weights.double()).sqrt()[owner]
        self._draw_cut_points(fitted, root)
        low, high = self._bounds(self.cut_points, fitted, root)
        utilities = fitted + draw_truncated_normal(low, high, self.generator) / root
        values = utilities.to(ratings.values)
        self.users = replace(self.users, ratings=replace(ratings, values=values))
        by_item = replace(self.items.ratings, values=values[self.order])
        self.items = replace(self.items, ratings=by_item)

    def _bounds(self, cut_points: Tensor, fitted: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Return the standardized bounds of each utility."""
        infinity = cut_points.new_full((1,), torch.inf)
        bounds = torch.cat([-infinity, cut_points, infinity])
        return (bounds[self.level] - fitted) * root, (bounds[self.level + 1] - fitted) * root

    def _log_likelihood(self, cut_points: Tensor, fitted: Tensor, root: Tensor) -> float:
        """Return Σ log P(level): a sum over ratings."""
        probability = interval_probability(*self._bounds(cut_points, fitted, root))
        return float(probability.clamp(min=1e-300).log().sum())

    def _draw_cut_points(self, fitted: Tensor, root: Tensor) -> None:
        """One Metropolis step of all cut points between the first and the last."""
        n_free = len(self.cut_points) - 2
        if n_free < 1:
            return
        counts = torch.bincount(self.level, minlength=len(self.cut_points) + 1).double()
        n_near = (counts[1:-2] + counts[2:-1]).clamp(min=1).cpu().numpy()
        scale = _STEP_SCALE / np.sqrt(n_free * self.noise_precision * n_near)
        proposal = self.cut_points.clone()
        proposal[1:-1] += torch.from_numpy(scale * self.rng.normal(size=n_free)).to(proposal)
        threshold = np.log(self.rng.random())
        if not bool((proposal.diff() > 0).all()):
            return
        change = self._log_likelihood(proposal, fitted, root)
        change -= self._log_likelihood(self.cut_points, fitted, root)
        if threshold < change:
            self.cut_points = proposal


class OrderedBayesModel(BayesModel):
    """`BayesModel` of utilities: predictions are expected levels."""

    cut_points: Tensor  # [T, L - 1]: less μ
    levels: Tensor  # [L]

    def __init__(self, config: BayesConfig, domain: Domain) -> None:
        super().__init__(config, domain)
        n_blocks = config.n_blocks(self.n_items)
        self.register_buffer("levels", torch.tensor(domain.levels, dtype=torch.float32))
        self.register_buffer("cut_points", torch.zeros(n_blocks, len(domain.levels) - 1))

    def bounds(self) -> Tensor:
        """Return the cut points on the scale of ratings, between -∞ and ∞: [L + 1]."""
        infinity = self.cut_points.new_full((1,), torch.inf)
        return torch.cat([-infinity, self.mean + self.cut_points.mean(0), infinity]).double()

    def posterior(self, users: Users) -> UserPosterior:
        """Return the posterior given expected utilities, which are those given the posterior."""
        history = users.history
        level, bounds = nearest_level(history.values, self.levels), self.bounds()
        std = float((1 / self.noise_precision).mean().sqrt())
        posterior = super().posterior(users)
        for _ in range(N_UTILITY_STEPS):
            fitted = self._utilities(posterior, history.items, history.owner()).double()
            low, high = (bounds[level] - fitted) / std, (bounds[level + 1] - fitted) / std
            expected = fitted + std * truncated_normal_mean(low, high)
            values = expected.to(history.values)
            changed = Users(
                users.ids, History(history.items, values, history.offsets), users.features
            )
            posterior = super().posterior(changed)
        return posterior

    def _utilities(self, posterior: UserPosterior, items: Tensor, owner: Tensor) -> Tensor:
        """Return the mean utility of items [N] for users [N], over the blocks: [N]."""
        p, q = posterior.mean[owner], self.means[items]
        return self.mean + ((p[..., :-1] * q[..., :-1]).sum(-1) + p[..., -1] + q[..., -1]).mean(1)

    def level_probabilities(
        self, users: Users, items: Tensor, owner: Tensor, *, calibrated: bool = False
    ) -> Tensor:
        """Return the probability of each level of each pair [M, K]: [M, K, L]; `calibrated` by the
        deviations of held-out users."""
        embeddings = self.embed_users(users)
        utility = TwoTower.score_embedded(self, embeddings, users, items, owner)
        std = rating_std(self, self.posterior(users), items, owner)
        std = std if calibrated else std / self.std_scale
        z = (self.bounds() - utility[..., None].double()) / std[..., None].double()
        return interval_probability(z[..., :-1], z[..., 1:])

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the expected level of each pair [M, K]."""
        expected = (self.level_probabilities(users, items, owner) @ self.levels.double()).float()
        if not self.corrects_scores():
            return expected
        history = users.history
        of_history = self.level_probabilities(users, history.items[:, None], history.owner())
        of_history = (of_history @ self.levels.double()).float()[:, 0]
        return expected + self._correction(history, of_history).of_pairs(items, owner)

    def predictive_std(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the standard deviation of the level of each pair [M, K], calibrated."""
        probabilities, levels = self.level_probabilities(users, items, owner), self.levels.double()
        variance = probabilities @ levels.square() - (probabilities @ levels).square()
        return self.std_scale * variance.clamp(min=1e-6).sqrt().float()


class OrderedBlocks(BlockAccumulator):
    """Averages the cut points of the sweeps of a block, too."""

    def _add_state(self, block: int, weight: float, sampler: Any, items: Tensor) -> None:
        """Add the state after one sweep."""
        super()._add_state(block, weight, sampler, items)
        self.model.cut_points[block] += weight * sampler.cut_points.to(self.model.cut_points)


@contextmanager
def ordered_probit(levels: np.ndarray[Any, Any], mean: float) -> Iterator[None]:
    """Let `fit_bayes` use the classes of this file."""
    shifted = torch.tensor(levels, dtype=torch.float64) - mean

    def sampler(*arguments: Any) -> OrderedSampler:
        return OrderedSampler(*arguments, levels=shifted)

    buffers = (*models.BLOCK_BUFFERS, "cut_points")
    with ExitStack() as stack:
        for module, name, value in (
            (solver, "BayesModel", OrderedBayesModel),
            (solver, "BlockAccumulator", OrderedBlocks),
            (solver, "_initialize_sampler", _initializer(sampler)),
            (solver, "BLOCK_BUFFERS", buffers),
            (models, "BLOCK_BUFFERS", buffers),
            (types, "rating_unit", lambda std: 1.0),  # levels have no unit
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def _initializer(make: Any) -> Any:
    """Return `_initialize_sampler` with another class of sampler."""
    plain = solver._initialize_sampler

    def initialize(*arguments: Any) -> OrderedSampler:
        start = plain(*arguments)
        return make(start.users, start.items, start.noise_dof, arguments[-1].seed)

    return initialize


class Task(NamedTuple):
    """One training and what it is measured on."""

    dataset: str
    on: str  # validation or test
    users: str  # new, few-shot
    likelihood: str
    seed: int


def measure(task: Task) -> dict[str, Any]:
    """Train a model and return its row."""
    torch.set_num_threads(1)
    split, split_name = standard_split(open_dataset(task.dataset, progress=False))
    if task.on == "validation":
        split = make_tuning_split(split, task.seed)
    mode = "few-shot" if task.users == "few-shot" else "new"
    job = TrainingJob(split, mode, dataset=task.dataset, seed=task.seed)
    began = time.perf_counter()
    with ExitStack() as stack:
        if task.likelihood == "ordered-probit":
            domain = job.training_table().domain()
            stack.enter_context(ordered_probit(np.array(domain.levels), domain.mean))
        model = train("idcf-bayes", job).model
    seconds = time.perf_counter() - began
    assert isinstance(model, BayesModel)
    evaluation_set = EvaluationSet.from_split(split, split.query_users)
    assignments = [ModelAssignment(model, split.query_users)]
    names = ("rmse", "mae", "nll", "cover90", "ndcg")
    results = compute_metrics(evaluation_set, assignments, names=names, rank_catalog=False)
    row = {name: round(x.interval.value, 5) for name, x in results.items()}
    row["log-score"] = round(log_score(model, evaluation_set), 5)
    if isinstance(model, OrderedBayesModel):
        row["cut_points"] = [round(x, 3) for x in (model.cut_points.mean(0) + model.mean).tolist()]
    row["noise_std"] = round(float(model.noise_precision.mean() ** -0.5), 4)
    row |= {"neighbor_weight": round(float(model.neighbor_scale) * model.corrects_scores(), 3)}
    row |= {"n_users": len(evaluation_set.users), "n_ratings": len(evaluation_set.test_rows)}
    return {
        **task._asdict(),
        "split": split_name,
        **row,
        "seconds": round(seconds, 1),
        "commit": source_commit(),
    }


def log_score(model: BayesModel, data: EvaluationSet) -> float:
    """Return the mean of -log P(level) of the test rows, of a normal distribution with the model's
    mean and deviation that is cut at the midpoints of levels, or of the model's own levels."""
    rows, histories = data.test_rows, data.history_table
    levels = torch.tensor(data.history_table.domain().levels, dtype=torch.float64)
    level = nearest_level(torch.from_numpy(rows.rating).double(), levels).numpy()
    if isinstance(model, OrderedBayesModel):
        probabilities = np.empty(len(rows))
        for user in np.unique(rows.user):
            mask = rows.user == user
            users = histories.build_users(np.array([user])).anonymous()
            items = torch.from_numpy(rows.item[mask])[None]
            owner = torch.zeros(1, dtype=torch.int64)
            of_levels = model.level_probabilities(users, items, owner, calibrated=True)
            probabilities[mask] = of_levels[0].numpy()[np.arange(mask.sum()), level[mask]]
    else:
        score = score_interactions(model, rows, histories, anonymous=True).astype(np.float64)
        std = interaction_std(model, rows, histories, anonymous=True).astype(np.float64)
        cuts = np.concatenate([[-np.inf], midpoints(levels).numpy(), [np.inf]])
        low, high = (cuts[level] - score) / std, (cuts[level + 1] - score) / std
        probabilities = interval_probability(torch.tensor(low), torch.tensor(high)).numpy()
    return float(-np.log(np.maximum(probabilities, 1e-12)).mean())


def main() -> None:
    """Make the missing trainings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dataset")
    parser.add_argument("--on", choices=("validation", "test"), default="validation")
    parser.add_argument("--users", choices=("new", "few-shot"), default="new")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=FILE)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.results.exists():
        lines = arguments.results.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
    for seed in range(arguments.seeds):
        for likelihood in ("gaussian", "ordered-probit"):
            task = Task(arguments.dataset, arguments.on, arguments.users, likelihood, seed)
            if any(task._asdict().items() <= row.items() for row in rows):
                continue
            line = json.dumps(measure(task))
            print(line, flush=True)
            with arguments.results.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
