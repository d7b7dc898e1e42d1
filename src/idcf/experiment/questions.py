"""Does it pay to ask the right questions? Newcomers answer five, then their test rows are guessed.

A person can only tell of what they rated, so each is asked about items of their own history: the
five that `reasons.gains` picks one after the other, the five most popular, or five at random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from idcf.data.interactions import Interactions, Mask
from idcf.data.split import Split
from idcf.experiment.measure import Exam, errors
from idcf.metrics import Interval
from idcf.models.bayes import Bayes
from idcf.reasons import gains

LEAST = 10  # rows a person must have, or there is nothing to choose
_AT_ONCE = 64
Worth = np.typing.NDArray[np.float64]


def compare(
    model: Bayes, split: Split, rng: np.random.Generator, asked: int = 5
) -> dict[str, Interval]:
    """RMSE after the answers, for each way to ask; and with nothing or everything told."""
    who = split.query_users[split.train.counts()[split.query_users] >= LEAST]
    exam = Exam.of(split, who)
    own = split.train.of(exam.users)
    chance, popular = rng.random(len(own)), model.raters.cpu().numpy()[own.item]
    ways: dict[str, Callable[[], Mask]] = {
        "nothing": lambda: np.zeros(len(own), bool),
        f"{asked} at random": lambda: best(own, chance, asked),
        f"{asked} most popular": lambda: best(own, popular + chance, asked),
        f"{asked} questions": lambda: in_turn(model, own, asked),
        "everything": lambda: np.ones(len(own), bool),
    }
    return {name: errors(exam, model, own.where(way())) for name, way in ways.items()}


def best(table: Interactions, worth: Worth, n: int) -> Mask:
    """Which rows are among the n that are worth most to their user."""
    order = np.lexsort((-worth, table.user))
    start = np.concatenate([[0], np.cumsum(table.counts())])
    rank = np.empty(len(table), np.int64)
    rank[order] = np.arange(len(table)) - start[table.user[order]]
    return rank < n


def in_turn(model: Bayes, table: Interactions, n: int) -> Mask:
    """Question by question: the next depends on what was answered before."""
    told = np.zeros(len(table), bool)
    for _ in range(n):
        worth = _worth(model, table, table.where(told))
        worth[told] = -np.inf
        told |= best(table, worth, 1) & ~told
    return told


def _worth(model: Bayes, table: Interactions, told: Interactions) -> Worth:
    """What an answer about each row would tell, given what was told."""
    out = np.empty(len(table))
    order, start = table.by_user
    who = np.flatnonzero(table.counts())
    for at in range(0, len(who), _AT_ONCE):
        some = who[at : at + _AT_ONCE]
        found = gains(model, told.people(some).to(model.device), known=True).cpu()
        rows = np.concatenate([order[start[u] : start[u + 1]] for u in some])
        place = torch.from_numpy(np.searchsorted(some, table.user[rows]))
        out[rows] = found[place, torch.from_numpy(table.item[rows])].numpy()
    return out
