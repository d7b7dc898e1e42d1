"""Gibbs sampling of the Bayesian relation model: every step is exact conjugate algebra.

    (p_u, b_u) ~ N(m_U + Bᵀφ_u, Λ_U⁻¹),  (q_i, b_i) ~ N(m_V + Aᵀψ_i, Λ_V⁻¹),  α ~ Gamma

with Normal-Wishart priors on (m, Λ) and precision λΛ on A and B. φ and ψ say which items a user
had, and which users had an item. The prior of newcomers is learnt apart, on histories cut as short
as theirs: what a long history says of a user is not what a short one says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds
from torch import Tensor
from tqdm import tqdm

from idcf.data.interactions import Floats, Interactions, ragged
from idcf.data.split import Task, hold_out_users, lightest_users
from idcf.evaluate import deviations, predict, rmse_on
from idcf.models.bayes import Bayes, BayesConfig, raw_features
from idcf.nn.pooling import Pieces, normal_equations, pieces, segment_sum
from idcf.rng import derive, stream
from idcf.train.solvers.work import Work, turn
from idcf.types import History, Users

_FREEDOM = 2.0  # β₀ of the Normal-Wishart priors, and shape of the Gamma prior
_DOUBT = 50.0  # rows of people watched for whom intervals need no widening
_LINKED_AFTER = 6  # sweeps: first there must be something to relate

Matrix = NDArray[np.float64]


@dataclass
class Side:
    """Users or items, and the state of their half of the chain."""

    history: History  # what each of them has of the other side, values centred
    cut: Pieces
    features: Tensor  # [n, F] in float64
    inverse: Tensor  # (φᵀφ + λI)⁻¹
    latent: Tensor  # [n, D], the bias last
    mean: Tensor  # [D]
    precision: Tensor  # [D, D]
    link: Tensor  # [F, D]

    @classmethod
    def of(
        cls, history: History, raw: Tensor, strength: float, size: int, draw: torch.Generator
    ) -> Side:
        features = (raw - raw.mean(0)) / (raw.std(0, correction=0) + 1e-9)
        width, device = features.shape[1], history.values.device
        eye = torch.eye(width, dtype=torch.float64, device=device)
        latent = torch.randn(len(raw), size, generator=draw, device=device) * 0.1
        zero = torch.zeros(width, size, dtype=torch.float64, device=device)
        return cls(
            history,
            pieces(history),
            features,
            torch.linalg.inv(features.T @ features + strength * eye),
            latent,
            zero[0],
            torch.eye(size, dtype=torch.float64, device=device),
            zero,
        )

    def prior(self) -> Tensor:
        """Λ times the prior means: [n, D]."""
        return (self.mean + self.features @ self.link) @ self.precision


class Chain:
    """The sampler. `sweep` moves it by one draw of everything."""

    def __init__(self, users: Side, items: Side, freedom: float, seed: int) -> None:
        self.users, self.items, self.freedom = users, items, freedom
        self.alpha, self.done = 1.5, 0
        self.weight = torch.ones_like(users.latent[:, 0])  # of each user's ratings
        self.rng = stream(seed, "gibbs")
        self.draw = torch.Generator(users.latent.device).manual_seed(derive(seed, "gibbs"))

    def sweep(self) -> tuple[Tensor, Tensor]:
        """Hyper-parameters, users, items, noise. Returns the mean [I, D] of what the items were
        drawn from, and the Cholesky factor [I, D, D] of its precision: better than one draw."""
        for side in (self.users, self.items):
            self._hyper(side)
        alpha = self.alpha * self.weight[:, None]
        self.users.latent = self._latent(self.users, self.items, alpha)[0]
        self.items.latent, mean, factor = self._latent(self.items, self.users, None)
        self._noise()
        self.done += 1
        return mean, factor

    def _hyper(self, side: Side) -> None:
        latent = side.latent.double()
        left = (latent - side.features @ side.link).cpu().numpy()
        mean, precision = normal_wishart(left, self.rng)
        to = side.mean
        side.mean, side.precision = (torch.from_numpy(x).to(to) for x in (mean, precision))
        if self.done >= _LINKED_AFTER:
            center = side.inverse @ (side.features.T @ (latent - side.mean))
            noise = torch.from_numpy(self.rng.normal(size=center.shape)).to(to)
            rows = torch.linalg.cholesky(side.inverse)
            columns = torch.linalg.inv(torch.linalg.cholesky(side.precision))
            side.link = center + rows @ noise @ columns

    def _latent(
        self, side: Side, other: Side, alpha: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A draw of every row of one side, and the normal distributions it came from. The noise
        is that of the rows, α [n, 1], or where there is none that of the other side's rows."""
        history, latent = side.history, other.latent
        vectors = torch.cat([latent[:, :-1], torch.ones_like(latent[:, :1])], 1)
        target = history.values - latent[history.items, -1]
        if alpha is None:
            root = (self.alpha * self.weight).sqrt()
            vectors, target = vectors * root[:, None], target * root[history.items]
        outer, right = normal_equations(vectors, history, target, side.cut)
        if alpha is not None:
            outer, right = alpha[..., None] * outer, alpha * right
        factor = torch.linalg.cholesky(outer + side.precision.float())
        right = right + side.prior().float()
        mean = torch.cholesky_solve(right[..., None], factor)
        noise = torch.randn(mean.shape, generator=self.draw, device=mean.device)
        moved = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
        return (mean + moved)[..., 0], mean[..., 0], factor

    def _noise(self) -> None:
        """α, and how much more or less than that a user's ratings are worth: w ~ Gamma(ν/2, ν/2),
        scaled so that the mean rating has weight 1."""
        history, users, items = self.users.history, self.users.latent, self.items.latent
        p, q = users[history.owner()], items[history.items]
        fitted = (p[:, :-1] * q[:, :-1]).sum(1) + p[:, -1] + q[:, -1]
        squares = segment_sum((history.values - fitted).square(), history).double().cpu().numpy()
        n, weight = history.lengths().cpu().numpy(), np.ones(len(squares))
        if self.freedom < np.inf:
            rate = self.freedom + self.alpha * squares
            weight = self.rng.gamma((self.freedom + n) / 2, 2 / rate)
            weight /= (weight @ n) / n.sum()
        total = weight @ squares
        self.alpha = self.rng.gamma((n.sum() + _FREEDOM) / 2, 2 / (total + _FREEDOM))
        self.weight = torch.from_numpy(weight).to(self.weight)


class Kept:
    """The sums of a block of sweeps, for the model."""

    def __init__(self, model: Bayes, people: Users, config: BayesConfig, seed: int) -> None:
        self.model, self.people, self.config = model, people, config
        self.rng = stream(seed, "cut histories")
        self.low = torch.tril_indices(*model.triangle.shape).to(model.device)
        model.noise.zero_()
        model.precision.zero_()

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

    def _relation(self, users: Tensor) -> tuple[Tensor, Tensor]:
        """What short histories say of the users: ridge regression on random pieces of them."""
        pieces = Users(self.people.ids, self._pieces(), self.people.features)
        features = self.model.features(pieces).double()
        read = torch.cat([torch.ones_like(features[:, :1]), features], 1)
        ridge = torch.full_like(read[0], self.config.strength)
        ridge[0] = _FREEDOM
        link = torch.linalg.solve(read.T @ read + ridge.diag(), read.T @ users)
        left = users - read @ link
        eye = torch.eye(left.shape[1], dtype=left.dtype, device=left.device)
        return link, (len(left) + len(eye)) * torch.linalg.inv(left.T @ left + eye)

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


def gibbs(config: BayesConfig, table: Interactions, work: Work) -> Bayes:
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
    if len(task.rows):
        _widen(model, task)
    return model


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
    turned = turn(centred, model.n_items)[0]
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


def normal_wishart(x: Matrix, rng: np.random.Generator) -> tuple[Matrix, Matrix]:
    """A draw of the mean and the precision of rows that are normal: ν₀ = D, W₀ = I."""
    n, size = x.shape
    mean = x.mean(0)
    off = x - mean
    scatter = off.T @ off + n * _FREEDOM / (n + _FREEDOM) * np.outer(mean, mean) + np.eye(size)
    # Bartlett: the Cholesky factor of a standard Wishart matrix
    factor = np.tril(rng.normal(size=(size, size)), -1)
    factor[np.diag_indices(size)] = np.sqrt(rng.chisquare(size + n - np.arange(size)))
    half = np.linalg.cholesky(np.linalg.inv(scatter)) @ factor
    precision = half @ half.T
    spread = np.linalg.cholesky((n + _FREEDOM) * precision)
    return n * mean / (n + _FREEDOM) + np.linalg.solve(spread.T, rng.normal(size=size)), precision
