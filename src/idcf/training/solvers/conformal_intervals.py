"""Intervals of `BayesModel` that hold the share of ratings they say, measured on held-out users.

After the last sweep the chain goes on for a few more, in folds: in each fold the rows of some users
are removed, the items are averaged over the sweeps, and those users are predicted from histories
cut to the lengths of new users. Every error is divided by its standard deviation: |z|.

Ratings of one user are not exchangeable with those of others, users are. With K users, the half
width of an interval of level c is the smallest h with

    1 / (K + 1) Σ_u (share of the |z| of user u that are at most h) ≥ c,

so that a rating of a new user lies inside with probability c or more if the user is exchangeable
with the K users, whatever the model (split conformal prediction with groups; Lee, Barber and
Willett 2023). This holds for the chains of the folds; the intervals served are those of the whole
chain, which has seen more users and is averaged over more sweeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from idcf.data.interactions import Doubles, Interactions, Ints
from idcf.data.split import PredictionTask, least_active_users, rank_in_user, sample_rows_per_user
from idcf.inference.scoring import interaction_std, score_interactions
from idcf.metrics.calibration import interval_half_width
from idcf.models.bayes import INTERVAL_LEVELS, BayesModel
from idcf.models.layers.neighbors import Neighbors
from idcf.training.solvers import SolverContext

N_FOLDS = 4
MIN_USERS = 20  # with fewer, intervals are those of a normal distribution
MAX_USERS = 300  # beside the share `validation` of the users
MAX_TARGETS = 10  # rows of a user that are predicted
_KNOWN_HISTORY_SHARE = 0.8  # of the rows of a user, where the users to be scored are trained on
_LENGTH_QUANTILES = (0.05, 0.95)  # of the histories of new users
_PSEUDO_COUNT = 50.0  # rows that favor leaving the standard deviations as they are

FitFold = Callable[[Ints], BayesModel]  # users whose rows are removed -> the model of a fold


@dataclass(frozen=True)
class HeldOutErrors:
    """The |z| of N held-out rows and the users they are of."""

    user: Ints  # [N]
    z: Doubles  # [N]

    @property
    def n_users(self) -> int:
        """Number of users: K."""
        return len(np.unique(self.user))

    def half_widths(self) -> Doubles:
        """Return h for each of `INTERVAL_LEVELS`, infinite where K users are too few for it."""
        order = np.argsort(self.z, kind="stable")
        _, position, counts = np.unique(self.user, return_inverse=True, return_counts=True)
        weight = 1 / (counts[position] * (len(counts) + 1.0))
        share = np.cumsum(weight[order]) + 1e-9  # that of all rows is K / (K + 1) but for rounding
        index = np.searchsorted(share, INTERVAL_LEVELS)
        half_widths: Doubles = np.append(self.z[order], np.inf)[index]
        return half_widths

    def interval_ratios(self) -> Doubles:
        """Return h divided by that of N(0, 1); for levels without one, the ratio of the last."""
        half_widths = self.half_widths()
        normal = np.array([interval_half_width(x) for x in INTERVAL_LEVELS])
        ratios: Doubles = half_widths / normal
        n_finite = int(np.isfinite(half_widths).sum())
        ratios[n_finite:] = ratios[n_finite - 1]
        return ratios


class HeldOutRows(NamedTuple):
    """Predictions of N held-out rows."""

    user: Ints  # [N]
    error: Doubles  # [N]: score less rating, without a correction
    std: Doubles  # [N]
    correction: Doubles  # [N]: what a `BayesModel` with `corrects_scores` adds to the score

    def errors(self, weight: float = 0.0) -> HeldOutErrors:
        """Return the errors of scores to which `weight` times the correction is added."""
        return HeldOutErrors(self.user, np.abs(self.error + weight * self.correction) / self.std)


class Fold(NamedTuple):
    """Users whose rows are removed from the chain, and what is to be predicted of them."""

    users: Ints
    task: PredictionTask


def plan_folds(
    table: Interactions,
    share: float,
    lengths: tuple[int, int],
    context: SolverContext,
    rng: np.random.Generator,
) -> Iterator[Fold]:
    """Yield folds of the lightest users, each with a quarter of all users at most.

    `share` of the users are held out, or `MAX_USERS` if that is more; none if there are fewer than
    `MIN_USERS` with two rows. Histories have the lengths of new users or, where those are unknown,
    between the `lengths`. If the users to be scored are trained on, the users are those of rows
    drawn at random, as test rows are, and `_KNOWN_HISTORY_SHARE` of their rows are the history.
    """
    counts = table.user_counts()
    n_users = int((counts > 0).sum())
    users = np.flatnonzero(counts > 1)
    n_held_out = min(len(users), max(round(share * n_users), MAX_USERS))
    if n_held_out < MIN_USERS:
        return
    if context.query_users_in_table:
        drawn = rng.permutation(table.user[counts[table.user] > 1])
        users = drawn[np.sort(np.unique(drawn, return_index=True)[1])][:n_held_out]
        cut = np.floor(_KNOWN_HISTORY_SHARE * counts).astype(np.int64)
    else:
        candidates = table.for_users(users)
        users = rng.permutation(least_active_users(candidates, n_held_out / len(users), rng))
        if context.new_user_lengths is not None and len(context.new_user_lengths):
            low, high = np.quantile(context.new_user_lengths, _LENGTH_QUANTILES)
            lengths = max(1, round(low)), max(1, round(high))
        cut = rng.integers(lengths[0], lengths[1] + 1, len(counts))
    cut = np.clip(cut, 1, np.maximum(counts - 1, 1))
    n_folds = -(-N_FOLDS * len(users) // n_users)
    for fold in np.array_split(users, n_folds):
        rows = table.for_users(np.sort(fold))
        in_history = rank_in_user(rows, rng.random(len(rows))) < cut[rows.user]
        targets = sample_rows_per_user(rows.where(~in_history), MAX_TARGETS, rng)
        yield Fold(np.sort(fold), PredictionTask(rows.where(in_history), targets))


def predict_held_out(folds: Iterable[Fold], fit_fold: FitFold) -> HeldOutRows:
    """Return the predictions of every fold's model for the users of the fold."""
    parts = [HeldOutRows(np.empty(0, np.int64), *np.empty((3, 0)))]
    for fold in folds:
        model, targets, history = (
            fit_fold(fold.users),
            fold.task.target_table,
            fold.task.history_table,
        )
        plain = model.with_neighbors(Neighbors.none(model.n_items))
        score = score_interactions(plain, targets, history, anonymous=True)
        correction = np.zeros(len(score))
        if model.corrects_scores():
            corrected = score_interactions(model, targets, history, anonymous=True)
            correction = corrected.astype(np.float64) - score
        std = interaction_std(model, targets, history, anonymous=True)
        error = (score - targets.rating).astype(np.float64)
        parts.append(HeldOutRows(targets.user, error, std.astype(np.float64), correction))
    return HeldOutRows(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def calibrate(model: BayesModel, errors: HeldOutErrors, context: SolverContext) -> None:
    """Scale standard deviations and intervals of a model whose `std_scale` is 1, and write what
    they rest on into the details of `context`."""
    squares, prior = float(np.square(errors.z).sum()), _PSEUDO_COUNT
    scale = ((squares + prior) / (len(errors.z) + prior)) ** 0.5
    model.std_scale.fill_(scale)
    n_users = errors.n_users
    if n_users >= MIN_USERS:
        ratios = torch.from_numpy(errors.interval_ratios() / scale)
        model.interval_ratios.copy_(ratios)
    rests_on = "held-out users" if n_users >= MIN_USERS else "too few users to hold out"
    context.details.update(intervals=rests_on, interval_users=n_users, interval_rows=len(errors.z))
