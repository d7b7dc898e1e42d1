"""From a table to `Bayes`: sample, keep the chain in blocks, learn what newcomers are like.

φ and ψ say which items a user had, and which users had an item. The prior of newcomers is learnt
apart from the chain's, on histories cut as short as theirs: what a long history says of a user is
not what a short one says.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds
from torch import Tensor
from tqdm import tqdm

from idcf.data.interactions import Floats, Interactions, Ints, ragged
from idcf.data.split import Task, hold_out_users, lightest_users
from idcf.inference.scoring import deviations, predict, rmse_on
from idcf.models.baselines import BiasConfig
from idcf.models.bayes import Bayes, BayesConfig, raw_features
from idcf.models.layers.ragged import turn
from idcf.rng import derive, stream
from idcf.training.solvers.bias import bias
from idcf.training.solvers.cohorts import gather
from idcf.training.solvers.context import Work
from idcf.training.solvers.gibbs import FREEDOM, Chain, Side
from idcf.types import History, Users

_DOUBT = 50.0  # rows of people watched for whom intervals need no widening
_ASKED = 1000  # key users, at most, of whom it is learnt what choosing an item says
_RATERS = 10.0  # whose choice of an item is worth as much as what is expected of everybody


def bayes(config: BayesConfig, table: Interactions, work: Work) -> Bayes:
    """Sample, and keep the sweeps after the burn-in in blocks. The lightest users are held out of
    the chain, being most like newcomers: they show on the bar how well those are predicted, and
    in the end how much wider intervals must be for them."""
    rng = stream(work.seed, "watched")
    away = lightest_users(table, config.validation, rng)
    rest, task = hold_out_users(table, away, config.lengths, rng)
    keys = np.flatnonzero(rest.counts())
    model = Bayes(config, table.domain())
    people = rest.where(stream(work.seed, "shuffle").permutation(len(rest))).people(keys)
    if not config.user_features:
        people = Users(people.ids, people.history)
    users, items = _sides(model, config, people, table.item_features, work)
    chain = Chain(users, items, config.freedom, work.seed)
    kept = Kept(model, people.to(work.device), config, work.seed)
    per_block = -(-config.sweeps // config.blocks)
    sweeps = range(-config.burn_in, per_block * config.blocks)
    quiet = None if work.progress else True  # None: a bar where there is a person to see it
    with tqdm(sweeps, desc=work.progress, unit="sweep", disable=quiet) as bar:
        for number in bar:
            mean, factor = chain.sweep()
            if number >= 0:
                kept.add(number // per_block, 1 / per_block, chain, mean, factor)
            if len(task.rows) and number >= 0 and (number + 1) % per_block == 0 and not bar.disable:
                part = model.part((number + 1) // per_block)
                bar.set_postfix(valid=f"{rmse_on(part, task.rows, task.seen):.4f}")
    _settle(model, rest, keys, config, work.seed)
    model.raters.copy_(torch.from_numpy(rest.item_counts()))
    gather(model, people, work.seed)
    if len(task.rows):
        _widen(model, task)
    return model


def _settle(model: Bayes, table: Interactions, keys: Ints, config: BayesConfig, seed: int) -> None:
    """What choosing an item says: measured on key users who are shown a piece of their history
    and asked about the rest."""
    rng = stream(seed, "selection")
    away = np.sort(keys[rng.permutation(len(keys))[:_ASKED]])
    _, task = hold_out_users(table, away, config.lengths, rng)
    off = task.rows.rating - predict(model, task.rows, task.seen, anonymous=True)
    left, n = np.maximum(task.rows.counts()[away], 1), task.seen.counts()[away]
    mean = np.bincount(task.rows.user, off, len(table.users))[away] / left
    read = np.stack([(1 + n) ** -0.5, 1 / (1 + n)], 1)
    found = np.linalg.solve(read.T @ read + FREEDOM * np.eye(2), read.T @ mean)
    model.selection.copy_(torch.from_numpy(found))
    usual = bias(BiasConfig(), table, Work()).item_bias.numpy()
    count, own = table.item_counts(), model.means[..., -1].mean(1).cpu().numpy()
    gap = (usual - own) * count / (count + _RATERS)
    model.usual.copy_(torch.from_numpy(gap))


def _widen(model: Bayes, task: Task) -> None:
    """Intervals of newcomers as wide as the errors of the people who were watched ask for."""
    off = predict(model, task.rows, task.seen, anonymous=True) - task.rows.rating
    off = off / deviations(model, task.rows, task.seen, anonymous=True)
    squares = float(np.square(off, dtype=np.float64).sum())
    model.stretch.fill_(((squares + _DOUBT) / (len(off) + _DOUBT)) ** 0.5)


def _sides(
    model: Bayes, config: BayesConfig, people: Users, known: Floats | None, work: Work
) -> tuple[Side, Side]:
    """Both halves of the chain where it starts. The model learns how to tell histories apart."""
    whole, rank = people.history, config.rank
    centred = History(whole.items, whole.values - model.mean, whole.offsets)
    turned = turn(centred, model.n_items).history
    model.basis = directions(whole, model.n_items, rank, work.seed)
    raters = directions(turned, len(people), rank, work.seed)
    of_users, of_items = raw_features(model.basis, whole), raw_features(raters, turned)
    model.shift, model.scale = of_users.mean(0), of_users.std(0, correction=0) + 1e-6
    if people.features is not None:
        of_users = torch.cat([of_users, people.features], 1)
        blocks, wide = len(model.noise), of_users.shape[1] + 1
        model.link = torch.zeros(blocks, wide, config.embedding_size + 1)
    if config.item_features and known is not None:
        of_items = torch.cat([of_items, torch.from_numpy(known)], 1)
    model.to(work.device)
    draw = torch.Generator(work.device).manual_seed(derive(work.seed, "start"))
    size = config.embedding_size + 1
    users, items = (
        Side.of(h.to(work.device), x.double().to(work.device), config.strength, size, draw)
        for h, x in ((centred, of_users), (turned, of_items))
    )
    return users, items


class Kept:
    """The sums of a block of sweeps, for the model."""

    def __init__(self, model: Bayes, people: Users, config: BayesConfig, seed: int) -> None:
        self.model, self.people, self.config = model, people, config
        self.rng = stream(seed, "cut histories")
        self.low = torch.tril_indices(*model.triangle.shape).to(model.device)
        model.noise.zero_()
        model.precision.zero_()
        model.item_precision.zero_()

    def add(self, block: int, share: float, chain: Chain, mean: Tensor, factor: Tensor) -> None:
        """One sweep, which is this share of its block."""
        model, users = self.model, chain.users.latent.double()
        second = torch.cholesky_inverse(factor) + mean[:, :, None] * mean[:, None, :]
        model.means[:, block] += share * mean
        model.seconds[:, block] += share * second[:, self.low[0], self.low[1]]
        model.noise[block] += share * chain.alpha
        model.average[block] += share * users.mean(0).float()
        link, precision = self._relation(users)
        model.precision[block] += share * precision.float()
        model.link[block] += share * (link @ precision).float()
        items = chain.items.latent.double()
        center, precision = items.mean(0), _precision(items - items.mean(0))
        model.item_precision[block] += share * precision.float()
        model.item_link[block] += share * (center @ precision).float()

    def _relation(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """What short histories say of the users: ridge regression on random pieces of them."""
        pieces = Users(self.people.ids, self._pieces(), self.people.features)
        features = self.model.features(pieces).double()
        read = torch.cat([torch.ones_like(features[:, :1]), features], 1)
        ridge = torch.full_like(read[0], self.config.strength)
        ridge[0] = FREEDOM
        link = torch.linalg.solve(read.T @ read + ridge.diag(), read.T @ users)
        return link, _precision(users - read @ link)

    def _pieces(self) -> History:
        """Of each history, which was shuffled once, a random run: any part of it is as likely."""
        table = self.people.history
        offsets = table.offsets.cpu().numpy()
        counts = np.diff(offsets)
        low, high = self.config.lengths
        lengths = np.minimum(self.rng.integers(low, high + 1, len(counts)), counts)
        start = (self.rng.random(len(counts)) * (counts - lengths + 1)).astype(np.int64)
        index, cut = ragged(offsets[:-1] + start, lengths)
        at, ends = (torch.from_numpy(x).to(table.items.device) for x in (index, cut))
        return History(table.items[at], table.values[at], ends)


def _precision(left: Tensor) -> Tensor:
    """Of rows whose mean is 0, shrunk a little towards 1."""
    eye = torch.eye(left.shape[1], dtype=left.dtype, device=left.device)
    found: Tensor = (len(left) + len(eye)) * torch.linalg.inv(left.T @ left + eye)
    return found


def directions(history: History, columns: int, rank: int, seed: int) -> Tensor:
    """Right singular vectors of the 0/1 histories scaled by 1/√n: [columns, rank]."""
    n = history.lengths().numpy()
    scaled = np.repeat(1 / np.sqrt(np.maximum(n, 1)), n)
    shape = (len(n), columns)
    matrix = csr_matrix((scaled, history.items.numpy(), history.offsets.numpy()), shape=shape)
    found = np.zeros((rank, columns))
    if rank < min(shape):
        begin = stream(seed, "directions").normal(size=min(shape))
        found[:] = svds(matrix, k=rank, v0=begin)[2]
    else:  # a small world: it has fewer directions than asked for
        every = np.linalg.svd(matrix.toarray(), full_matrices=False)[2]
        found[: len(every)] = every
    return torch.from_numpy(found.T.copy()).float()
