"""Solver of `TakeUpModel`: choose the relation between items, and fit the probabilities.

The least active quarter of the key users is held out, and treated as new users: a part of their
items is the history, others are what they go on to choose. The settings of the relation
(`idcf.training.solvers.item_relation`) are chosen by NDCG@20 on these users, one after the other.
Half of the histories lack a tenth of the user's items, as that of a user whose every interaction is
known; the others are as long as those of the users who are not trained on, if there are such users.
The probabilities are fitted to the less active half of the held-out users, with histories of all
lengths. Then the relation is computed for all key users.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from idcf.data.interactions import Interactions, Ints
from idcf.data.progress import progress_bar
from idcf.inference.topk import top_k
from idcf.metrics import RelevantItems, ndcg_at
from idcf.models.layers.ragged import sum_pool
from idcf.models.options import TakeUpConfig
from idcf.models.take_up import N_LINK_KNOTS, TakeUpModel, take_up_features
from idcf.rng import random_stream
from idcf.training.solvers import SolverContext
from idcf.training.solvers.cooccurrences import CooccurrenceSource, MatrixSource
from idcf.training.solvers.item_relation import (
    ItemRelation,
    LowRankFactors,
    RelationParts,
    Settings,
)
from idcf.training.solvers.odds import (
    HeldOutUsers,
    cut_after,
    cut_histories,
    fit_logistic,
    interaction_matrix,
)
from idcf.types import Domain, History, select_histories

_MAX_BATCH_CELLS = 1 << 22  # cells of a score matrix held at once
MAX_SCORED_CELLS = 200_000_000  # scores of held-out users: a large catalogue has fewer users
N_HISTORIES, MAX_CUTS = 2000, 4  # histories of the held-out users in all, and of each
_UNKNOWN_SHARE = 0.1  # of the items of a held-out user whose history is nearly whole
_N_NEAR_ITEMS = 300  # best items of a user, all of which calibrate
_N_FAR_ITEMS = 100  # other items of a user, sampled
_RIDGE = 1e-3  # of the calibration
_MAX_SHARE_LEFT_OUT = 0.02  # of the rows: more are worth a second solution of a large catalogue
_PRIOR_WEIGHT = 0.03  # m of the most popular item, in units of a typical score
_SCORE_UNITS = 100  # σ is the typical score divided by this
_IDENTITY_SHARE = 0.05  # of f, so that it increases where observed rates are equal
_OUTSIDE = 30.0  # how far beyond its groups f is a straight line

Changes = Mapping[str, Any]  # of some settings
_POWERS: tuple[Changes, ...] = tuple({"power": x} for x in (1.0, 1.25, 1.5, 2.0))
_SPECTRAL_WEIGHTS: tuple[Changes, ...] = tuple(
    {"spectral_weight": x} for x in (0.0, 0.1, 0.3, 1.0, 3.0)
)
_PENALTIES: tuple[Changes, ...] = tuple(
    {"reg": x, "shown_items": y} for x, y in ((100.0, 40.0), (100.0, 20.0), (20.0, 10.0))
)
_NEAREST: Changes = {"regression": "nearest", "reg": 50.0}
_COSINES: Changes = {"regression": "cosines", "power": 1.0, "spectral_weight": 0.0}
_UNREAD = {  # settings that a kind of regression does not read
    "all": ("count_reg",),
    "nearest": ("shown_items",),
    "cosines": ("reg", "shown_items", "count_reg"),
}
_FIRST_SMALL, _FIRST_LARGE = Settings(reg=100.0), Settings(**_NEAREST)
# each stage tries its values in place of those of the best settings so far
_SMALL_STAGES = (
    _SPECTRAL_WEIGHTS,
    _POWERS,
    _PENALTIES,
    (_NEAREST,),
    _SPECTRAL_WEIGHTS,
    _POWERS,
    (_COSINES,),
)
_LARGE_STAGES = (_SPECTRAL_WEIGHTS, _POWERS, _SPECTRAL_WEIGHTS, (_COSINES,))

Array = NDArray[np.float64]


class TakeUpRows(NamedTuple):
    """The rows of the key users, and the held-out users among them."""

    all_users: CooccurrenceSource
    others: CooccurrenceSource  # but for the held-out users
    light_rows: csr_array  # of the held-out users, the least active first


def fit_take_up(config: TakeUpConfig, table: Interactions, context: SolverContext) -> TakeUpModel:
    """Choose the settings, fit the probabilities, and compute the relation of all rows.

    Ratings are not read. `context.query_users_in_table` makes no difference.
    """
    x, rng = interaction_matrix(table), random_stream(context.seed, "take-up")
    others, light_rows = _hold_out_users(config, x, rng)
    rows = TakeUpRows(MatrixSource(x), MatrixSource(others), light_rows)
    return fit_relation(config, table.domain(), rows, context, rng)


def fit_relation(
    config: TakeUpConfig,
    domain: Domain,
    rows: TakeUpRows,
    context: SolverContext,
    rng: np.random.Generator,
) -> TakeUpModel:
    """Fit the model to rows in memory or in shards."""
    light_rows, whole = rows.light_rows, rows.all_users
    n_next = max(1, min(config.n_next_items, int(np.median(np.diff(light_rows.indptr))) // 2))
    share = rows.others.n_entries / max(whole.n_entries, 1)
    relation = ItemRelation(config, rows.others, share)
    n_history = _history_lengths(config, context, np.diff(light_rows.indptr), rng)
    shown = cut_after(light_rows, n_history, n_next, rng)
    settings = choose_settings(config, relation, shown, context.progress_label)
    context.details.update(_details(settings))
    model = TakeUpModel(config, domain).eval()  # adds whole rows where they are small
    _set_relation(model, *relation.stored(settings))
    less_active = light_rows[: -(-light_rows.shape[0] // 2)]
    held_out = cut_histories(
        csr_array(less_active),
        config.history_lengths,
        n_next,
        rng,
        new_user_lengths=context.new_user_lengths,
    )
    typical_score = _typical_score(model, held_out)
    _set_counts(model, rows.others, typical_score)
    _fit_probabilities(model, held_out, config.history_lengths[1], typical_score, rng)
    is_small = relation.is_small
    del relation  # its nearest items take as much memory as those of the next one
    if is_small or share < 1 - _MAX_SHARE_LEFT_OUT:
        _set_relation(model, *ItemRelation(config, whole).stored(settings))
        _set_counts(model, whole, typical_score)
    return model


def _details(settings: Settings) -> dict[str, Any]:
    """Return what the manifest says of the settings: those of the regression that was chosen."""
    values = settings._asdict()
    regression = values.pop("regression")
    relation = regression if regression == "cosines" else f"{regression} items"
    read = {name: x for name, x in values.items() if name not in _UNREAD[regression]}
    return {"relation": relation, **read}


def _set_relation(model: TakeUpModel, weights: csr_array, factors: LowRankFactors | None) -> None:
    """Set B and S."""
    model.item_weights.set_entries(weights)
    if factors is not None:
        model.low_rank_weights.set_factors(*map(torch.from_numpy, factors))


def _history_lengths(
    config: TakeUpConfig, context: SolverContext, row_lengths: Ints, rng: np.random.Generator
) -> Ints:
    """Return the lengths of the histories of the held-out rows, by which settings are chosen."""
    low, high = config.history_lengths
    n_history = rng.integers(low, high + 1, size=len(row_lengths))
    if context.new_user_lengths is not None and len(context.new_user_lengths):
        n_history = rng.choice(context.new_user_lengths, size=len(row_lengths))
    whole = row_lengths - np.maximum(2, np.rint(_UNKNOWN_SHARE * row_lengths)).astype(np.int64)
    whole = np.maximum(whole, 0)  # of a single item, that is predicted from nothing
    return np.where(np.arange(len(row_lengths)) % 2, whole, n_history)


def _set_counts(model: TakeUpModel, rows: CooccurrenceSource, typical_score: float) -> None:
    """Set the counts of the items in some rows, and the prior scores that follow from them."""
    counts = torch.from_numpy(rows.item_counts.astype(np.float32))
    model.item_counts = counts
    model.prior_scores = counts * (_PRIOR_WEIGHT * typical_score / counts.max().clamp(min=1))


def _hold_out_users(
    config: TakeUpConfig, x: csr_array, rng: np.random.Generator
) -> tuple[csr_array, csr_array]:
    """Hold out users of the least active quarter; return the other rows, and theirs, the least
    active first. A row is repeated where there are few users, to be cut in several ways."""
    lengths = np.diff(x.indptr)
    light = np.flatnonzero((lengths <= np.quantile(lengths, 0.25)) & (lengths > 1))
    if len(light) == 0:
        light = np.arange(len(lengths))
    max_users = min(config.max_held_out_users, max(100, MAX_SCORED_CELLS // x.shape[1]))
    users = rng.permutation(light)[:max_users]
    users = users[np.argsort(lengths[users], kind="stable")]
    stays = np.ones(x.shape[0], bool)
    stays[users] = False
    n_cuts = min(MAX_CUTS, max(1, N_HISTORIES // len(users)))
    light_rows = csr_array(x[np.repeat(users, n_cuts)])
    return csr_array(x[stays]) if stays.any() else x, light_rows


def choose_settings(
    config: TakeUpConfig,
    relation: ItemRelation,
    held_out: HeldOutUsers,
    progress_label: str | None = None,
) -> Settings:
    """Return the settings with the best NDCG@20 of the held-out users; those of the config stay."""
    given = {name: getattr(config, name) for name in Settings._fields}
    given = {name: value for name, value in given.items() if value is not None}
    first = _FIRST_SMALL if relation.is_small else _FIRST_LARGE
    if relation.is_small and given.get("regression", "all") != "all":
        first = _FIRST_LARGE
    best, ndcg_by_settings = first._replace(**given), dict[Settings, float]()
    stages = _SMALL_STAGES if relation.is_small else _LARGE_STAGES
    with progress_bar(progress_label, total=sum(1 + len(x) for x in stages), unit="fit") as bar:
        for stage in stages:
            trials = [best, *(best._replace(**_without(x, given)) for x in stage)]
            for settings in trials:
                if settings not in ndcg_by_settings:
                    parts = relation.in_settings(settings)
                    ndcg_by_settings[settings] = _mean_ndcg(parts, held_out)
                bar.update()
            best = max(trials, key=ndcg_by_settings.__getitem__)
    return best


def _without(changes: Changes, given: Changes) -> dict[str, Any]:
    """Return the changes of settings that are not given."""
    return {name: value for name, value in changes.items() if name not in given}


def _batches(held_out: HeldOutUsers, n_items: int) -> Iterator[tuple[History, History]]:
    """Yield histories and next items of some held-out users at a time."""
    n_users, size = len(held_out.history.offsets) - 1, max(1, _MAX_BATCH_CELLS // n_items)
    for low in range(0, n_users, size):
        users = torch.arange(low, min(low + size, n_users))
        yield select_histories(held_out.history, users), select_histories(held_out.targets, users)


def _mean_ndcg(relation: RelationParts, held_out: HeldOutUsers) -> float:
    """Return NDCG@20 of the held-out users' next items with a relation."""
    n_items, values = relation.weights.shape[0], []
    for history, targets in _batches(held_out, n_items):
        score = _relation_scores(relation, history, n_items)
        score[history.owner(), history.items] = -torch.inf
        top = top_k(score, 20).item_rows.numpy()  # ties by row: topk orders them at will
        relevant = RelevantItems(targets.items.numpy(), targets.offsets.numpy())
        values.append(ndcg_at(top, relevant, k=top.shape[1]))
    return float(np.nanmean(np.concatenate(values)))


def _relation_scores(relation: RelationParts, history: History, n_items: int) -> Tensor:
    """Return Σ_j w_j B_ji of items that are not in the history: [B, I]."""
    if isinstance(relation.weights, Tensor):
        return sum_pool(relation.weights, history, history.values)
    parts = (x.numpy() for x in (history.values, history.items, history.offsets))
    rows = csr_array((*parts,), shape=(len(history.offsets) - 1, n_items))
    score = torch.from_numpy((rows @ relation.weights).toarray())
    if relation.factors is None:
        return score
    sources, targets = map(torch.from_numpy, relation.factors)
    return score.addmm_(sum_pool(sources, history, history.values), targets.T)


def _typical_score(model: TakeUpModel, held_out: HeldOutUsers) -> float:
    """Return the mean of the 20 highest scores of the held-out users, 1 if it is not positive."""
    means = []
    for history, _ in _batches(held_out, model.n_items):
        score = model.relation_scores(history)
        score[history.owner(), history.items] = 0
        means.append(score.topk(min(20, model.n_items)).values.mean(1))
    typical = float(torch.cat(means).mean())
    return typical if typical > 0 else 1.0


def _fit_probabilities(
    model: TakeUpModel,
    held_out: HeldOutUsers,
    max_length: int,
    typical_score: float,
    rng: np.random.Generator,
) -> None:
    """Fit logit P to the held-out users' next items: a logistic regression, then its correction.

    P is meant for histories of up to `max_length` items, or of the longest one.
    """
    model.score_unit.fill_(typical_score / _SCORE_UNITS)
    model.n_next_items.fill_(float(held_out.targets.lengths().float().mean()))
    max_log_length = float(np.log1p(max(max_length, int(held_out.history.lengths().max()))))
    model.max_log_length.fill_(max_log_length)
    parts = [_sample_cells(model, *x, rng) for x in _batches(held_out, model.n_items)]
    features, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    c = fit_logistic(features, labels, weights, _RIDGE)
    if min(c[2] + c[3] * np.log(2), c[2] + c[3] * max_log_length) <= 0:
        # z must grow with t whatever the length of the history
        c = np.append(fit_logistic(features[:, :3], labels, weights, _RIDGE), 0.0)
        c[2] = max(c[2], 1e-6)
    model.coefficients = torch.from_numpy(c).float()
    knots, logits = fit_link(features @ c, labels, weights)
    model.link_knots, model.link_logits = (torch.from_numpy(x).float() for x in (knots, logits))


def fit_link(z: Array, labels: Array, weights: Array) -> tuple[Array, Array]:
    """Return the knots and the values of an increasing piecewise linear function f of z.

    Rows are divided, in the order of z, into groups with equal sums of two shares: of expected
    labels, and of rows. At the mean of z of a group f is the logit of its observed rate; adjacent
    groups whose rates do not increase have the rate of all of them.
    """
    n_groups, order = N_LINK_KNOTS - 2, np.argsort(z)
    z, labels, weights = z[order], labels[order], weights[order]
    expected, rows = np.cumsum(weights / (1 + np.exp(-z))), np.cumsum(weights)
    share = (expected / expected[-1] + rows / rows[-1]) / 2
    group = np.minimum(share * n_groups, n_groups - 1).astype(np.int64)
    size, total, hits = (
        np.bincount(group, x, n_groups).astype(np.float64)
        for x in (weights, weights * z, weights * labels)
    )
    knots = np.divide(total, size, np.full(n_groups, -np.inf), where=size > 0)
    knots = np.maximum.accumulate(np.maximum(knots, z[0])) + 1e-6 * np.arange(n_groups)
    rate = isotonic_rates(hits + 0.5 * size / size.sum(), size)
    logits = (1 - _IDENTITY_SHARE) * np.log(rate / (1 - rate)) + _IDENTITY_SHARE * knots
    ends = np.array([-_OUTSIDE, _OUTSIDE])
    knots, logits = (np.concatenate([[x[0]], x, [x[-1]]]) for x in (knots, logits))
    knots[[0, -1]] += ends
    logits[[0, -1]] += ends
    return knots, logits


def isotonic_rates(hits: Array, size: Array) -> Array:
    """Return rates [K] that do not fall and are nearest to hits / size, weighted by size."""
    pools: list[tuple[float, float, int]] = []  # hits, size and number of adjacent groups
    for pool in zip(hits.tolist(), size.tolist(), strict=True):
        pools.append((*pool, 1))
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
            a, b = pools.pop(), pools.pop()
            pools.append((a[0] + b[0], a[1] + b[1], a[2] + b[2]))
    pooled_hits, pooled_size, n = (np.array(x) for x in zip(*pools, strict=True))
    rates: Array = np.repeat(pooled_hits / np.maximum(pooled_size, 1e-12), n).clip(1e-12, 1 - 1e-6)
    return rates


def _sample_cells(
    model: TakeUpModel, history: History, targets: History, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Return features [M, 4], labels [M] and weights [M] of items that were not in the history.

    The items near the top of a user's list and the next items are all taken. Of the others some are
    drawn, and weighted by the number of items that they stand for.
    """
    score = model.relation_scores(history)
    score[history.owner(), history.items] = -torch.inf
    n_items = score.shape[1]
    n_near = min(_N_NEAR_ITEMS, n_items)
    is_target = torch.zeros_like(score, dtype=torch.bool)
    is_target[targets.owner(), targets.items] = True
    is_certain = is_target.scatter(1, score.topk(n_near).indices, True)
    share = min(1.0, _N_FAR_ITEMS / max(1, n_items - n_near))
    is_drawn = torch.from_numpy(rng.random(score.shape, np.float32) < share)
    user, item = ((is_certain | is_drawn) & (score > -torch.inf)).nonzero(as_tuple=True)
    lengths = history.lengths()[user].clamp(min=1)
    t, log_length = take_up_features(score[user, item].double(), lengths, model.score_unit)
    columns = [torch.ones_like(t), log_length, t, t * log_length]
    weights = torch.where(is_certain[user, item], 1.0, 1 / share).double()
    labels = is_target[user, item].double()
    return torch.stack(columns, 1).numpy(), labels.numpy(), weights.numpy()
