"""The odds model: relations are counted and decomposed, the logit is fitted on people it hid.

Key users are dealt into folds. Those of a fold come as newcomers, with a part of what they
had, to relations made without them, and are asked about ten of their other items, about the items
near to their history and about some of the rest. Rows stand for as many items as they were drawn
from, so the fitted chances are true ones. Where people of the table will be asked about
(`Work.known`), the short history stays in the table, as theirs will.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, vstack
from scipy.sparse.linalg import svds
from torch import Tensor

from idcf.data.interactions import Interactions, Ints, ragged
from idcf.models.odds import Odds, OddsConfig, design
from idcf.rng import stream
from idcf.training.solvers.context import Work
from idcf.training.solvers.item_item import linear, shrunk_cosines
from idcf.types import Domain, History, pick

_CELLS = 1 << 22  # of a matrix of scores held at once
_NEAR = 300  # items that a relation puts first are near
_ROUNDS = 50  # of Newton's method, at most
_TURNS = 20  # between the times of items and those of people
_MIDDLE = 5.0  # readers that hold an item in the middle

Array = NDArray[np.float64]


def odds(config: OddsConfig, table: Interactions, work: Work) -> Odds:
    domain, x = table.domain(), matrix(table)
    rng = stream(work.seed, "odds")
    rows = [
        ask(relations(config, domain, rest, work.known, x), *cut, rng, config.negatives)
        for rest, cut in newcomers(config, x, work.known, rng)
    ]
    columns, label, weight = (np.concatenate(each) for each in zip(*rows, strict=True))
    model = relations(config, domain, x, work.known, x)
    found = logistic(columns, label, weight, config.ridge)
    model.coefficients = torch.from_numpy(found).float()
    return model


def matrix(table: Interactions) -> csr_array:
    """Who had what: [U, I], ones, of the users who had anything. A row is in order of time, or of
    the table where that is all there is."""
    order, start = table.by_user
    if table.time is not None:
        order = np.lexsort((table.time, table.user))
    shape = (len(table.users), len(table.items))
    x = csr_array((np.ones(len(table), np.float32), table.item[order], start), shape=shape)
    return csr_array(x[np.flatnonzero(np.diff(start))])


def relations(
    config: OddsConfig, domain: Domain, x: csr_array, known: bool, whole: csr_array
) -> Odds:
    """A model with all but its coefficients. Where some of the `whole` table is hidden, those who
    are left stand for all: what is fitted must hold for the counts of all."""
    model = Odds(config, domain)
    model.crowd = whole.nnz / max(x.nnz, 1)
    readers, length = x.sum(0).astype(np.float64), x.sum(1).astype(np.float64)
    others = np.maximum(readers - 1, 0)[x.indices]
    into, out = spectrum(x, readers, length, config)
    found = {
        "readers": readers,
        "into": into,
        "out": out,
        # of an item that somebody had, as it looked without them
        "late": lateness(x) * (config.cut == "last"),  # where "next" means in time
        "usual": np.array([(others == 0).mean(), np.log1p(others * model.crowd).mean()]),
        "own": np.array(float(known)),
    }
    for name, value in found.items():
        setattr(model, name, torch.from_numpy(np.array(value, np.float32, order="C")))
    model.kin.fill(kinship(x, config, model.crowd))
    return model


def kinship(x: csr_array, config: OddsConfig, crowd: float) -> csr_array:
    """K to the power p: EASE and shrunk cosines, each in units of the next of kin."""
    both = (
        linear(x, config.reg / crowd, config.neighbours),
        shrunk_cosines(x, config.support / crowd, config.nearest),
    )
    parts = []
    for each in both:
        each.data = each.data.clip(0)
        first = each.max(0).toarray()
        parts.append(each / (2 * first[first > 0].mean()) if (first > 0).any() else each)
    kin = csr_array(parts[0] + parts[1])
    kin.eliminate_zeros()
    kin.data **= config.power
    return kin


def lateness(x: csr_array) -> Array:
    """When people come to each item: the times that agree best with the order of all rows, of
    which each spans one unit somewhere on a common line. Few readers are drawn to the middle."""
    length, items = np.diff(x.indptr), x.indices
    who = np.repeat(np.arange(len(length)), length)
    place = (np.arange(len(items)) - x.indptr[who] + 0.5) / length[who] - 0.5
    readers, late = np.bincount(items, minlength=x.shape[1]), np.zeros(x.shape[1])
    for _ in range(_TURNS):
        middle = np.bincount(who, late[items], minlength=len(length)) / length
        late = np.bincount(items, middle[who] + place, minlength=x.shape[1]) / (readers + _MIDDLE)
    return late


def spectrum(
    x: csr_array, readers: Array, length: Array, config: OddsConfig
) -> tuple[Array, Array]:
    """The first right singular vectors of (L + damp)^-½ X (n + damp)^-½, scaled so that the
    product of a history's sum of the one with the other is how often an item goes with it."""
    right = np.where(readers > 0, (readers + config.damp) ** -0.5, 0)
    left = (length + config.damp) ** -0.5
    normal = diags_array(left) @ x.astype(np.float64) @ diags_array(right)
    rank, side = min(config.rank, min(x.shape) - 1), min(x.shape)
    vectors = np.zeros((len(readers), config.rank))
    if rank > 0:
        # from a fixed beginning: the same table gives the same vectors
        vectors[:, :rank] = svds(normal, rank, v0=np.ones(side))[2].T
    back = np.divide(1, right, out=np.zeros_like(right), where=right > 0)
    return vectors * right[:, None], vectors * back[:, None]


class Cut(NamedTuple):
    """Newcomers, for the fit: what they come with, and what they had next."""

    history: History
    wanted: History


def newcomers(
    config: OddsConfig, x: csr_array, known: bool, rng: np.random.Generator
) -> Iterator[tuple[csr_array, Cut]]:
    """Fold by fold: the table without these people, and these people."""
    length = np.diff(x.indptr)
    # ten items, or as many as most people can spare
    horizon = max(1, min(config.horizon, int(np.median(length)) // 2))
    spare = np.flatnonzero(length > horizon) if (length > horizon).any() else np.arange(len(length))
    fold, asked = rng.permutation(len(spare)) % config.folds, 0
    for number in range(config.folds):
        mine = spare[fold == number]
        if asked >= config.people or not len(mine):
            return
        mine, asked = mine[: config.people - asked], asked + len(mine)
        cut = shorten(csr_array(x[mine]), config, horizon, rng)
        away = np.ones(x.shape[0], bool)
        away[mine] = False
        rest = csr_array(x[away])
        if known:
            short = cut.history
            parts = (short.values.numpy(), short.items.numpy(), short.offsets.numpy())
            rest = csr_array(vstack([rest, csr_array(parts, shape=(len(mine), x.shape[1]))]))
            rest = rest[np.flatnonzero(np.diff(rest.indptr))]
        yield rest, cut


def shorten(x: csr_array, config: OddsConfig, horizon: int, rng: np.random.Generator) -> Cut:
    """Of each row the last `horizon` items, and a history of some length before them; or the same
    of a row that was shuffled."""
    length, items = np.diff(x.indptr), x.indices
    if config.cut == "random":
        items = items[
            np.lexsort((rng.random(len(items)), np.repeat(np.arange(len(length)), length)))
        ]
    wanted = np.minimum(horizon, length)
    drawn = rng.integers(config.lengths[0], config.lengths[1] + 1, size=len(length))
    read, middle = np.minimum(drawn, length - wanted), x.indptr[1:].astype(np.int64) - wanted
    return Cut(_taken(items, middle - read, read), _taken(items, middle, wanted))


def _taken(items: NDArray[np.integer], start: Ints, length: Ints) -> History:
    index, offsets = ragged(start, length)
    chosen = torch.from_numpy(items[index].astype(np.int64))
    return History(chosen, torch.ones(len(chosen)), torch.from_numpy(offsets))


def ask(
    model: Odds, history: History, wanted: History, rng: np.random.Generator, negatives: int
) -> tuple[Array, Array, Array]:
    """Rows for the logit: columns, labels and weights."""
    people, parts = len(history.offsets) - 1, []
    step = max(1, _CELLS // model.n_items)
    for low in range(0, people, step):
        some = torch.arange(low, min(low + step, people))
        parts.append(_ask(model, pick(history, some), pick(wanted, some), rng, negatives))
    columns, label, weight = (np.concatenate(each) for each in zip(*parts, strict=True))
    return columns, label, weight


def _ask(
    model: Odds, history: History, wanted: History, rng: np.random.Generator, negatives: int
) -> tuple[Array, Array, Array]:
    told, people = model.read(history), len(history.offsets) - 1
    free = np.ones((people, model.n_items), bool)
    free[history.owner(), history.items] = False
    positive = np.zeros_like(free)
    positive[wanted.owner(), wanted.items] = True
    near = _first(told.kin) | _first(told.direction @ model.out.T)
    near &= free & ~positive
    share = np.minimum(1, negatives / np.maximum(near.sum(1), 1))
    close = np.argwhere(near)
    close = close[rng.random(len(close)) < share[close[:, 0]]]
    # of what is neither, as many again
    far = free & ~positive & ~near
    drawn = (
        np.repeat(np.arange(people), negatives),
        rng.integers(model.n_items, size=people * negatives),
    )
    other = np.stack(drawn, 1)[far[drawn]]
    each = far.sum(1) / np.maximum(np.bincount(other[:, 0], minlength=people), 1)
    true = np.argwhere(positive)
    who, item = (torch.from_numpy(x) for x in np.concatenate([true, close, other]).T)
    weight = np.concatenate([np.ones(len(true)), 1 / share[close[:, 0]], each[other[:, 0]]])
    label = (np.arange(len(who)) < len(true)).astype(np.float64)
    unknown, relations = model.relate(told, item[:, None], who)
    columns = design(told.user[who], unknown[:, 0], [x[:, 0] for x in relations])
    return columns.double().numpy(), label, weight


def _first(scores: Tensor) -> NDArray[np.bool_]:
    """The items that come first, of those that were reached at all."""
    best = scores.topk(min(_NEAR, scores.shape[1]))
    mask = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, best.indices, best.values > 0)
    found: NDArray[np.bool_] = mask.numpy()
    return found


def logistic(columns: Array, label: Array, weight: Array, ridge: float) -> Array:
    """Weighted ridge regression of the logit by Newton's method. Columns are standardised for the
    penalty, the first, which is 1, is free; coefficients are for the columns as they are."""
    mean, scale = columns.mean(0), columns.std(0)
    flat = scale < 1e-6
    flat[0], mean[0], scale[0] = False, 0, 1
    z = np.where(flat, 0, (columns - mean) / np.where(flat, 1, scale))
    penalty = np.full(z.shape[1], ridge)
    penalty[0], penalty[flat] = 1e-9, 1
    b = np.zeros(z.shape[1])
    for _ in range(_ROUNDS):
        p = 1 / (1 + np.exp(-(z @ b)))
        left = (z * (weight * p * (1 - p))[:, None]).T @ z + np.diag(penalty)
        step = np.linalg.solve(left, z.T @ (weight * (label - p)) - penalty * b)
        b += step
        if np.abs(step).max() < 1e-5:
            break
    out = np.where(flat, 0, b / np.where(flat, 1, scale))
    out[0] = b[0] - (out[1:] * mean[1:]).sum()
    return out
