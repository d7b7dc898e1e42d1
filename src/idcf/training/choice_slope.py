"""How much more often users choose what they rate higher: the slope κ of `inference.if_shown`.

The history of a user is cut in two. Given the first part, the model predicts the ratings r̂ of all
other items, and the second part says which of them the user chose. With n_i the number of key users
who have item i, the choices are fitted by

    P(user u chooses item i) ∝ n_i · exp(κ x_ui),

where x is r̂ less its mean over the items of a user and over the users of an item: how popular an
item is and how generous a user is say nothing about κ.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Interactions, Ints
from idcf.inference.topk import CatalogRanker
from idcf.models.base import Model
from idcf.types import History, Users

_MAX_USERS = 1000
_MAX_CELLS = 1 << 22  # expected ratings held at once
_MIN_UNTRAINED_USERS = 100  # fewer users that the model has not seen are too few
_MIN_ROWS = 4  # of a user
_MAX_HISTORY = 25  # items of the first part
_PRIOR_PRECISION = 1.0  # of κ, around 0: a few users are no evidence
_MAX_SLOPE = 3.0
_N_STEPS = 25


def fit_choice_slope(
    model: Model, table: Interactions, key_users: Ints, rng: np.random.Generator
) -> float:
    """Return κ, at least 0, of a rating model trained on the key users of a table.

    It is estimated on users that the model was not trained on, if there are enough of them.
    """
    users = _choose_users(table, key_users, rng)
    if not len(users):
        return 0.0
    history, targets = _cut_histories(table, users, rng)
    rating = CatalogRanker(model).score_catalog(Users(torch.full((len(users),), -1), history))
    x = rating.double().cpu()
    unit = table.domain().rating_unit  # the prior of κ is of unit size
    x /= unit
    x -= x.mean(1, keepdim=True)
    x -= x.mean(0)
    counts = table.for_users(key_users).item_counts()
    log_weight = torch.from_numpy(np.log(counts + 0.5)).expand(len(x), -1).clone()
    log_weight[history.owner(), history.items] = -torch.inf
    chosen = x[targets.owner(), targets.items].sum()
    return _solve(x, log_weight, targets.lengths().double(), float(chosen)) / unit


def _choose_users(table: Interactions, key_users: Ints, rng: np.random.Generator) -> Ints:
    """Return the users to estimate on, ascending: no key users, if there are enough others."""
    has_rows = table.user_counts() >= _MIN_ROWS
    is_untrained = has_rows.copy()
    is_untrained[key_users] = False
    enough = is_untrained.sum() >= _MIN_UNTRAINED_USERS
    users = np.flatnonzero(is_untrained if enough else has_rows)
    n_users = max(1, min(_MAX_USERS, _MAX_CELLS // max(1, len(table.items))))
    return np.sort(rng.permutation(users)[:n_users])


def _cut_histories(
    table: Interactions, users: Ints, rng: np.random.Generator
) -> tuple[History, History]:
    """Divide the rows of each user at random: half, at most `_MAX_HISTORY`, are the history."""
    rows = table.history(users)
    owner, lengths = rows.owner().numpy(), rows.lengths().numpy()
    order = np.lexsort((rng.random(len(owner)), owner))
    position = np.arange(len(owner)) - rows.offsets.numpy()[owner]
    in_history = position < np.minimum(lengths // 2, _MAX_HISTORY)[owner]
    return tuple(  # type: ignore[return-value]
        _select_entries(rows, np.sort(order[part]), len(users))
        for part in (in_history, ~in_history)
    )


def _select_entries(rows: History, entries: Ints, n_users: int) -> History:
    """Return histories of some entries, in ascending order."""
    index = torch.from_numpy(entries)
    lengths = torch.bincount(rows.owner()[index], minlength=n_users)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return History(rows.items[index], rows.values[index], offsets)


def _solve(x: Tensor, log_weight: Tensor, n_chosen: Tensor, chosen: float) -> float:
    """Return κ of highest posterior by Newton's method; `chosen` is the sum of x over choices."""
    slope = 0.0
    for _ in range(_N_STEPS):
        share = (log_weight + slope * x).softmax(1)
        mean = (share * x).sum(1)
        variance = (share * x * x).sum(1) - mean**2
        gradient = chosen - float((n_chosen * mean).sum()) - _PRIOR_PRECISION * slope
        step = gradient / (float((n_chosen * variance).sum()) + _PRIOR_PRECISION)
        slope += min(max(step, -0.5), 0.5)
        if abs(step) < 1e-5:
            break
    return float(min(max(slope, 0.0), _MAX_SLOPE))
