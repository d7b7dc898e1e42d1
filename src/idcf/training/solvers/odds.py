"""Solver of `OddsModel`: compute the item relations, fit the logit on held-out key users.

Key users are divided into folds. The users of a fold are treated as new users: relations are
computed without them, they get a part of their interactions as history, and the logit is fitted on
their next items (positives), on items near their history and on a sample of the remaining items
(negatives). A sampled row is weighted by the number of items it stands for, so that the fitted
probabilities are unbiased. With `SolverContext.query_users_in_table` the short histories stay in
the table, as those of the query users will.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, vstack
from torch import Tensor

from idcf.data.interactions import Interactions, Ints, slice_index
from idcf.data.progress import progress_bar
from idcf.models.odds import OddsModel, design_matrix
from idcf.models.options import OddsConfig
from idcf.rng import random_stream
from idcf.training.solvers import SolverContext
from idcf.training.solvers.item_item import ease_weights, shrunk_cosines
from idcf.training.solvers.singular_directions import right_singular_vectors
from idcf.types import Domain, History, select_histories

_MAX_BATCH_CELLS = 1 << 22  # cells of a score matrix held at once
_N_NEAR_ITEMS = 300  # items near a history: the highest-ranked of each relation
_MAX_NEWTON_STEPS = 50
_RECENCY_ITERATIONS = 20  # alternations between the times of items and of users
_RECENCY_PSEUDO_COUNT = 5.0  # users that shrink the time of an item towards 0

Array = NDArray[np.float64]


class HeldOutUsers(NamedTuple):
    """Users held out of the relations: their short histories and their next items."""

    history: History  # H short histories
    targets: History  # the next items of the same H users


def fit_odds(config: OddsConfig, table: Interactions, context: SolverContext) -> OddsModel:
    """Compute the relations of the whole table, and fit the coefficients on held-out folds."""
    domain, x = table.domain(), interaction_matrix(table)
    in_table = context.query_users_in_table
    rng = random_stream(context.seed, "odds")
    rows = []
    with progress_bar(context.progress_label, total=config.folds, unit="fold") as bar:
        for train_matrix, held_out in held_out_folds(config, x, in_table, rng):
            fold_model = build_without_coefficients(config, domain, train_matrix, in_table, x)
            rows.append(sample_logit_rows(fold_model, *held_out, rng, config.negatives))
            bar.update()
    features, labels, weights = (np.concatenate(column) for column in zip(*rows, strict=True))
    model = build_without_coefficients(config, domain, x, in_table, x)
    coefficients = fit_logistic(features, labels, weights, config.ridge)
    model.coefficients = torch.from_numpy(coefficients).float()
    return model


def interaction_matrix(table: Interactions) -> csr_array:
    """Return the 0/1 matrix [U, I] of the users with rows, or that of the weights.

    The entries of a row are ordered by time, or by position in the table if there are no times.
    """
    order, start = table.rows_by_user
    if table.time is not None:
        order = np.lexsort((table.time, table.user))
    shape = (len(table.users), len(table.items))
    x = csr_array((table.row_weights()[order], table.item[order], start), shape=shape)
    return csr_array(x[np.flatnonzero(np.diff(start))])


def build_without_coefficients(
    config: OddsConfig,
    domain: Domain,
    x: csr_array,
    query_users_in_table: bool,
    full_matrix: csr_array,
) -> OddsModel:
    """Return a model with all its buffers set but the coefficients.

    The relations are computed from the 0/1 matrix x. Its counts are scaled up to `full_matrix`, the
    matrix before users were held out, so that the coefficients hold for the full counts.
    """
    model = OddsModel(config, domain)
    model.subsample_ratio = full_matrix.nnz / max(x.nnz, 1)
    item_counts, lengths = x.sum(0).astype(np.float64), x.sum(1).astype(np.float64)
    other_users = np.maximum(item_counts - 1, 0)[x.indices]  # of each entry: users but its own
    history_factors, item_factors = spectral_embeddings(x, item_counts, lengths, config)
    unseen_share = (other_users == 0).mean()
    mean_popularity = np.log1p(other_users * model.subsample_ratio).mean()
    buffers = {
        "item_counts": item_counts,
        "history_factors": history_factors,
        "item_factors": item_factors,
        # used only where "next" means next in time
        "recency": item_recency(x) * (config.holdout_order == "last"),
        "prior_features": np.array([unseen_share, mean_popularity]),
        "exclude_self": np.array(float(query_users_in_table)),
    }
    for name, value in buffers.items():
        setattr(model, name, torch.from_numpy(np.array(value, np.float32, order="C")))
    model.similarity.set_entries(item_similarity(x, config, model.subsample_ratio))
    return model


def item_similarity(x: csr_array, config: OddsConfig, subsample_ratio: float) -> csr_array:
    """Return K^p, K the mean of EASE and shrunk cosines, negatives set to 0, each divided by its
    mean positive column maximum; `reg` and `support` are divided by `subsample_ratio`."""
    ease = ease_weights(x, config.reg / subsample_ratio, config.neighbors)
    cosines = shrunk_cosines(x, config.support / subsample_ratio, config.cosine_neighbors)
    parts = []
    for matrix in (ease, cosines):
        matrix.data = matrix.data.clip(0)
        largest = matrix.max(0).toarray()
        positive = largest > 0
        parts.append(matrix / (2 * largest[positive].mean()) if positive.any() else matrix)
    similarity = csr_array(parts[0] + parts[1])
    similarity.eliminate_zeros()
    similarity.data **= config.power
    return similarity


def item_recency(x: csr_array) -> Array:
    """Return the time at which users come to each item [I]; 0 is the middle.

    Every user's entries span one unit of a common time line, in their order. The times of items
    and the midpoints of users are fitted in turn; items with few users are shrunk towards 0.
    """
    lengths, items, n_items = np.diff(x.indptr), x.indices, x.shape[1]
    user = np.repeat(np.arange(len(lengths)), lengths)
    position = (np.arange(len(items)) - x.indptr[user] + 0.5) / lengths[user] - 0.5
    counts = np.bincount(items, minlength=n_items)
    recency = np.zeros(n_items)
    for _ in range(_RECENCY_ITERATIONS):
        midpoint = np.bincount(user, recency[items], minlength=len(lengths)) / lengths
        total = np.bincount(items, midpoint[user] + position, minlength=n_items)
        recency = total / (counts + _RECENCY_PSEUDO_COUNT)
    return recency


def spectral_embeddings(
    x: csr_array, item_counts: Array, history_lengths: Array, config: OddsConfig
) -> tuple[Array, Array]:
    """Return the factors of histories and of items: [I, rank] each.

    V holds the first right singular vectors of (L + s)^-½ X (n + s)^-½ with s = `degree_smoothing`.
    The sum of V (n + s)^-½ over a history, times V (n + s)^½ of an item, estimates how often the
    item occurs together with the history.
    """
    item_scale = np.where(item_counts > 0, (item_counts + config.degree_smoothing) ** -0.5, 0)
    user_scale = (history_lengths + config.degree_smoothing) ** -0.5
    normalized = diags_array(user_scale) @ x.astype(np.float64) @ diags_array(item_scale)
    smaller_side = min(x.shape)
    rank = min(config.rank, smaller_side - 1)
    vectors = np.zeros((len(item_counts), config.rank))
    if rank > 0:
        # a fixed start vector makes the result a function of the table
        vectors[:, :rank] = right_singular_vectors(normalized, rank, np.ones(smaller_side))
    inverse_scale = np.divide(1, item_scale, out=np.zeros_like(item_scale), where=item_scale > 0)
    return vectors * item_scale[:, None], vectors * inverse_scale[:, None]


def held_out_folds(
    config: OddsConfig, x: csr_array, query_users_in_table: bool, rng: np.random.Generator
) -> Iterator[tuple[csr_array, HeldOutUsers]]:
    """Yield, for each fold, the matrix without its users and the users.

    At most `max_fit_users` users are held out over all folds. With `query_users_in_table` the
    matrix holds their short histories.
    """
    lengths = np.diff(x.indptr)
    # half of the users must have enough items for both a history and the next items
    n_next_items = max(1, min(config.n_next_items, int(np.median(lengths)) // 2))
    long_enough = lengths > n_next_items
    eligible = np.flatnonzero(long_enough) if long_enough.any() else np.arange(len(lengths))
    fold, n_held_out = rng.permutation(len(eligible)) % config.folds, 0
    for number in range(config.folds):
        users = eligible[fold == number]
        if n_held_out >= config.max_fit_users or not len(users):
            return
        n_left = config.max_fit_users - n_held_out
        n_held_out += len(users)
        users = users[:n_left]
        held_out = cut_histories(
            csr_array(x[users]),
            config.history_lengths,
            n_next_items,
            rng,
            shuffle=config.holdout_order == "random",
        )
        stays = np.ones(x.shape[0], bool)
        stays[users] = False
        train_matrix = csr_array(x[stays])
        if query_users_in_table:
            short = held_out.history
            parts = (short.values.numpy(), short.items.numpy(), short.offsets.numpy())
            short_rows = csr_array(parts, shape=(len(users), x.shape[1]))
            train_matrix = csr_array(vstack([train_matrix, short_rows]))
            train_matrix = train_matrix[np.flatnonzero(np.diff(train_matrix.indptr))]
        yield train_matrix, held_out


def cut_histories(
    x: csr_array,
    history_lengths: tuple[int, int],
    n_next_items: int,
    rng: np.random.Generator,
    *,
    shuffle: bool = True,
    new_user_lengths: Ints | None = None,
) -> HeldOutUsers:
    """Split the end of each row into a history and targets, the last `n_next_items` items.

    The history is a random number of items just before them, between the two `history_lengths`, or
    all if the row has fewer; with `new_user_lengths`, one of these for every second row. With
    `shuffle` the order of the rows does not count.
    """
    lengths, items = np.diff(x.indptr), x.indices
    if shuffle:
        owner = np.repeat(np.arange(len(lengths)), lengths)
        items = items[np.lexsort((rng.random(len(items)), owner))]
    n_targets = np.minimum(n_next_items, lengths)
    low, high = history_lengths
    drawn = rng.integers(low, high + 1, size=len(lengths))
    if new_user_lengths is not None and len(new_user_lengths):
        drawn[::2] = rng.choice(new_user_lengths, size=len(drawn[::2]))
    n_history = np.minimum(drawn, lengths - n_targets)
    target_start = x.indptr[1:].astype(np.int64) - n_targets
    return HeldOutUsers(
        _slice_histories(items, target_start - n_history, n_history),
        _slice_histories(items, target_start, n_targets),
    )


def cut_after(
    x: csr_array, n_history: Ints, n_next_items: int, rng: np.random.Generator
) -> HeldOutUsers:
    """Split each row, in random order, into a history of `n_history` items [U], at most all but
    two, and targets: the next `n_next_items` items, or as many as there are."""
    lengths = np.diff(x.indptr)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    items = x.indices[np.lexsort((rng.random(x.nnz), owner))]
    n_history = np.minimum(n_history, np.maximum(lengths - 2, lengths // 2))
    n_targets = np.minimum(n_next_items, lengths - n_history)
    start = x.indptr[:-1].astype(np.int64)
    return HeldOutUsers(
        _slice_histories(items, start, n_history),
        _slice_histories(items, start + n_history, n_targets),
    )


def _slice_histories(items: NDArray[np.integer], start: Ints, length: Ints) -> History:
    """Return the runs of `items` that begin at `start` as histories of ones."""
    index, offsets = slice_index(start, length)
    entries = torch.from_numpy(items[index].astype(np.int64))
    return History(entries, torch.ones(len(entries)), torch.from_numpy(offsets))


def sample_logit_rows(
    model: OddsModel, history: History, targets: History, rng: np.random.Generator, n_negatives: int
) -> tuple[Array, Array, Array]:
    """Return features [M, C], labels [M] and weights [M] that the logit is fitted on.

    The relations of `model` were computed without the users. Per user there are `n_negatives`
    negatives near the history, and about as many of the remaining items.
    """
    n_users = len(history.offsets) - 1
    step, parts = max(1, _MAX_BATCH_CELLS // model.n_items), []
    for low in range(0, n_users, step):
        users = torch.arange(low, min(low + step, n_users))
        batch = select_histories(history, users), select_histories(targets, users)
        parts.append(_sample_batch_rows(model, *batch, rng, n_negatives))
    features, labels, weights = (np.concatenate(column) for column in zip(*parts, strict=True))
    return features, labels, weights


def _sample_batch_rows(
    model: OddsModel, history: History, targets: History, rng: np.random.Generator, n_negatives: int
) -> tuple[Array, Array, Array]:
    """`sample_logit_rows` for users whose scores fit into memory at once."""
    summary, n_users = model.summarize_history(history), len(history.offsets) - 1
    is_candidate = np.ones((n_users, model.n_items), bool)
    is_candidate[history.owner(), history.items] = False
    is_positive = np.zeros_like(is_candidate)
    is_positive[targets.owner(), targets.items] = True
    is_near = _top_items_mask(summary.similarity)
    is_near |= _top_items_mask(summary.spectral_vector @ model.item_factors.T)
    is_near &= is_candidate & ~is_positive
    near_share = np.minimum(1, n_negatives / np.maximum(is_near.sum(1), 1))
    near_cells = np.argwhere(is_near)
    near_cells = near_cells[rng.random(len(near_cells)) < near_share[near_cells[:, 0]]]
    is_far = is_candidate & ~is_positive & ~is_near
    drawn = (
        np.repeat(np.arange(n_users), n_negatives),
        rng.integers(model.n_items, size=n_users * n_negatives),
    )
    far_cells = np.stack(drawn, 1)[is_far[drawn]]
    n_drawn = np.bincount(far_cells[:, 0], minlength=n_users)
    far_weight = is_far.sum(1) / np.maximum(n_drawn, 1)
    positive_cells = np.argwhere(is_positive)
    cells = np.concatenate([positive_cells, near_cells, far_cells])
    weights = np.concatenate(
        [
            np.ones(len(positive_cells)),
            1 / near_share[near_cells[:, 0]],
            far_weight[far_cells[:, 0]],
        ]
    )
    labels = (np.arange(len(cells)) < len(positive_cells)).astype(np.float64)
    user, item = (torch.from_numpy(x) for x in cells.T)
    is_unseen, relations = model.relation_features(summary, item[:, None], user)
    features = design_matrix(
        summary.user_features[user], is_unseen[:, 0], [x[:, 0] for x in relations]
    )
    return features.double().numpy(), labels, weights


def _top_items_mask(scores: Tensor) -> NDArray[np.bool_]:
    """Return which items are among the highest positive scores of each row: [B, I]."""
    top = scores.topk(min(_N_NEAR_ITEMS, scores.shape[1]))
    selected = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, top.indices, top.values > 0)
    mask: NDArray[np.bool_] = selected.numpy()
    return mask


def fit_logistic(features: Array, labels: Array, weights: Array, ridge: float) -> Array:
    """Fit a weighted logistic regression by Newton's method; return the coefficients [C].

    The first column is 1 and is not penalized; `ridge` is on the standardized columns. A constant
    column has coefficient 0.
    """
    mean, scale = features.mean(0), features.std(0)
    constant = scale < 1e-6
    constant[0], mean[0], scale[0] = False, 0, 1
    scale = np.where(constant, 1, scale)
    z = np.where(constant, 0, (features - mean) / scale)
    penalty = np.full(z.shape[1], ridge)
    penalty[0], penalty[constant] = 1e-9, 1
    b = np.zeros(z.shape[1])
    for _ in range(_MAX_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-(z @ b)))
        hessian = (z * (weights * p * (1 - p))[:, None]).T @ z + np.diag(penalty)
        step = np.linalg.solve(hessian, z.T @ (weights * (labels - p)) - penalty * b)
        b += step
        if np.abs(step).max() < 1e-5:
            break
    coefficients = np.where(constant, 0, b / scale)
    coefficients[0] = b[0] - (coefficients[1:] * mean[1:]).sum()
    return coefficients
