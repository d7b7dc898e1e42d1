"""Short cuts to what a frozen model says: the same numbers, sooner. The models are the reference,
and the tests hold every way here against them.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from scipy.linalg.lapack import sposv
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.models.base import Model
from idcf.models.baselines import FoldIn
from idcf.models.bayes import Bayes
from idcf.models.idcf import IDCF, part
from idcf.models.layers.heads import Dot
from idcf.models.matrix_factorization import Factor
from idcf.types import Embedded, History, Read, Users, pick

_LARGE = 1 << 20  # numbers of a table that no longer stays near the processor
_REACH = 1e5  # how many times what a history says may outweigh what all users share


class Quick(Protocol):
    """One newcomer with a history, nearly without tensor overhead: the score of every item."""

    def __call__(self, rows: Ints, values: Floats) -> Floats: ...


class Batched(Protocol):
    """Many newcomers: what `embed_users` says of them."""

    def embed_users(self, users: Users) -> Embedded: ...


def batched(model: Model) -> Batched | None:
    """The way for many, where there is one."""
    if isinstance(model, IDCF) and model.relation.attention == "dot" and model.paths is None:
        return Folded(model)
    if isinstance(model, FoldIn) and not model.rivals.any():
        root, wrong = torch.linalg.cholesky_ex(model.gram.double())
        way = None if wrong else Ridge(model, root)
        # beyond it single precision needs a solver that is slower and safer: the model's
        return way if way and way.reach < _REACH else None
    return None


def quick(model: Model, way: Batched | None) -> Quick | None:
    """The way for one, where there is one."""
    if isinstance(model, Bayes):
        return Evidence(model)
    if isinstance(way, Folded) and isinstance(way.model.backbone, Factor):
        return Relation(way)
    return way if isinstance(way, Ridge) else None


class Folded:
    """Dot attention, folded, where the key users are the same for every head: they are read once,
    as one fused attention of B·H queries."""

    def __init__(self, model: IDCF) -> None:
        self.model, relation = model, model.relation
        heads, _, size = relation.query.shape
        ask, give = relation.fold()
        ask = ask * (relation.scale * model.key_scale) / model.spread[:, None]
        self.ask, self.give = ask.transpose(0, 1).flatten(1).contiguous(), give.flatten(0, 1)
        self.heads, self.size = heads, size

    def embed_users(self, users: Users) -> Embedded:
        history, strength = users.history, self.model.config.bias_strength
        n, query = history.lengths(), self.model.read(history)
        read = Read(query, history.owner(), 1 / (n + strength).clamp(min=1e-9), None)
        return self.model.place(part(self._induce(query, n)), users, read)

    def _induce(self, query: Tensor, n: Tensor) -> Tensor:
        """p̃ of everybody: IDCF.induce, sooner."""
        asked = (query - self.model.shift) @ self.ask
        keys = self.model.keys[None, None]
        mixed = F.scaled_dot_product_attention(
            asked.view(1, 1, -1, self.size), keys, keys, scale=1.0
        )
        vector = mixed.view(-1, self.heads * self.size) @ self.give
        # nothing known: the mean of the key users
        return torch.where((n == 0)[:, None], self.model.average, vector)


class Relation:
    """One newcomer of an IDCF round a table of items, nearly without tensor overhead.

    The score without bias is computed for all items at once; what it leaves unexplained of the
    history then gives the bias.
    """

    def __init__(self, folded: Folded) -> None:
        model, config = folded.model, folded.model.config
        items = model.backbone.items
        self.table, self.shift = _array(items.vector), _array(model.shift)
        self.ask, self.give = _array(folded.ask), _array(folded.give)
        self.keys = model.keys.cpu().T.contiguous()  # one copy, laid out for the longer product
        self.heads, self.size = folded.heads, folded.size
        self.power = {"mean": 1.0, "sum": 0.0, "root": 0.5}[config.pooling]
        zero = model.recognises  # and this is nobody it has met
        expected = _array(items.bias + model.mean + model.average[-1])
        self.expected = expected if config.query == "ratings" else None
        self.base, self.usual = _array(items.bias + model.mean), not zero
        self.strength = config.bias_strength if model.rates and not zero else None
        self.all = Products(self.table)
        self.head = None if isinstance(model.head, Dot) else model.head
        self.items, self.device = items.vector, model.device

    def __call__(self, rows: Ints, values: Floats) -> Floats:
        latent = self.vector(rows, values)
        vector, usual = latent[:-1], latent[-1]
        if self.head is None:
            scores = self.all(vector)
        else:
            user = torch.from_numpy(np.ascontiguousarray(vector))[None].to(self.device)
            scores = self.head.all(user, self.items)[0].cpu().numpy()
        scores += self.base
        if self.usual:
            scores += usual
        if self.strength is not None:
            left = values - scores[rows]
            scores += left.sum() / (len(rows) + self.strength)
        return scores

    def vector(self, rows: Ints, values: Floats) -> Floats:
        """p̃ and the bias to expect of somebody with a history."""
        told = self.table.take(rows, 0)
        read = np.empty(told.shape[1] + 1, np.float32)
        np.add.reduce(told, 0, out=read[:-1])
        read[:-1] /= len(rows) ** self.power
        read[-1] = np.log1p(len(rows))
        if self.expected is not None:
            said = (values - self.expected[rows]) @ told / len(rows) ** 0.5
            read = np.concatenate([read, said])
        asked = torch.from_numpy(((read - self.shift) @ self.ask).reshape(self.heads, self.size))
        mixed = torch.softmax(asked @ self.keys, 1) @ self.keys.T
        vector: Floats = mixed.numpy().reshape(-1) @ self.give
        return vector


class Ridge:
    """Fold-in as many equations as the history is long, where that is less than coordinates.

    In coordinates z = L⁻¹q, with LLᵀ the part of the left side that all users share, Z those of the
    history and m what the prior expects: p = m + Zᵀ(ZZᵀ + 1/α)⁻¹(own - Zm).
    """

    def __init__(self, model: FoldIn, root: Tensor) -> None:
        self.model, self.size, self.alpha = model, model.factors.shape[1], model.alpha
        white = torch.linalg.solve_triangular(root, model.factors.double().T, upper=False)
        self.table, self.back = white.T.float().contiguous(), torch.linalg.inv(root).float()
        expected = torch.linalg.solve_triangular(root, model.prior.double()[:, None], upper=False)
        self.expected = expected[:, 0].float()
        self.own = self.table @ self.expected  # what the prior says of every item
        self.reach = self.alpha * self.size * float(self.table.square().sum(1).max())
        self.base = model.base.item_bias + model.mean
        self.target = None if model.rates else float(model.target)
        self._rows, self._own, self._base = map(_array, (self.table, self.own, self.base))
        self._all = Products(np.column_stack([self._rows, self._base + self._own]))

    def __call__(self, rows: Ints, values: Floats) -> Floats:
        z, n = self._rows.take(rows, 0), len(rows)
        left = (values if self.target is None else self.target) - self._base[rows]
        if self.target is None:
            bias = left.sum() / np.float32(max(n + self.model.base.strength, 1e-9))
            left -= bias
        vector = np.ones(self.size + 1, np.float32)
        if n <= self.size:
            equations = z @ z.T
            equations.ravel()[:: n + 1] += np.float32(1 / self.alpha)
            vector[:-1] = sposv(equations, left - self._own[rows])[1] @ z
        else:
            equations = np.float32(self.alpha) * (z.T @ z)
            equations.ravel()[:: self.size + 1] += 1
            right = np.float32(self.alpha) * (left - self._own[rows]) @ z
            vector[:-1] = sposv(equations, right)[1]
        scores = self._all(vector)
        if self.target is None:
            scores += bias
        return scores

    def embed_users(self, users: Users) -> Embedded:
        """Those with long histories are left to the model."""
        short = users.history.lengths() <= self.size // 2
        if bool(short.all()):
            return self._short(users.history)
        if not bool(short.any()):
            return self.model.embed_users(users)
        rows = [x.nonzero()[:, 0] for x in (short, ~short)]
        some, rest = (Users(users.ids[x], pick(users.history, x)) for x in rows)
        found = zip(self._short(some.history), self.model.embed_users(rest), strict=True)
        back = torch.cat(rows).argsort()
        return Embedded(*(torch.cat(x)[back] for x in found))

    def _short(self, history: History) -> Embedded:
        """All at once, beside rows of zeros, which change nothing."""
        n, model = history.lengths(), self.model
        if model.rates:
            bias, own = model.base.residual(history)
        else:
            bias, own = (
                torch.zeros(len(n), device=n.device),
                model.target - self.base[history.items],
            )
        place = torch.arange(int(n.max()) if len(n) else 0, device=n.device)
        there = place < n[:, None]
        z = self.table.new_zeros(*there.shape, self.size)
        z[there] = self.table[history.items]
        left = self.table.new_zeros(there.shape)
        left[there] = own - self.own[history.items]
        equations = z @ z.mT
        equations.diagonal(dim1=1, dim2=2).add_(1 / self.alpha)
        found = torch.cholesky_solve(left[..., None], torch.linalg.cholesky(equations))
        vector = (self.expected + (found.mT @ z)[:, 0]) @ self.back
        silent = (n == 0)[:, None] & (not model.rates)  # item means answer where there are ratings
        return Embedded(torch.cat([vector.masked_fill(silent, 0), silent.to(vector)], 1), bias)


class Evidence:
    """One newcomer of a posterior: `Bayes.posterior` on arrays of one row."""

    def __init__(self, model: Bayes) -> None:
        blocks, size = model.average.shape
        self.blocks, self.size, self.mean = blocks, size, model.mean
        self.seconds, self.means = _array(model.seconds.flatten(1)), _array(model.means.flatten(1))
        self.triangle = model.triangle.cpu().numpy()
        self.noise, self.precision = _array(model.noise)[:, None], _array(model.precision)
        # φ = (raw - shift) / scale, put into the link
        link = model.link[:, : 1 + len(model.scale)].double()  # of one nothing else is known
        link = link / torch.cat([model.scale.new_ones(1), model.scale])[:, None]
        link[:, 0] -= torch.einsum("f,tfd->td", model.shift.double(), link[:, 1:])
        self.basis, self.link = _array(model.basis), _array(link.transpose(0, 1).flatten(1))
        items = model.catalogue()
        self.all = Products(_array(items.vector[:, :-1]))
        self.base = _array(items.bias + model.mean)
        self.selection = _array(model.selection).tolist()

    def __call__(self, rows: Ints, values: Floats) -> Floats:
        solved = self.vector(rows, values)
        scores = self.all(solved[:, :-1].reshape(-1))
        scores += self.base
        rest = 1 / (1 + len(rows))
        scores += solved[:, -1].mean() + self.selection[0] * rest**0.5 + self.selection[1] * rest
        return scores

    def vector(self, rows: Ints, values: Floats) -> Floats:
        """(p_u, b_u) in each block: [T, D]."""
        return self.believe(rows, values)[0]

    def believe(self, rows: Ints, values: Floats) -> tuple[Floats, Floats]:
        """The same, and how precisely it is known: [T, D, D]."""
        n, shape = len(rows), (self.blocks, self.size)
        own, told = values - np.float32(self.mean), self.means.take(rows, 0)
        first = np.add.reduce(told, 0).reshape(shape)
        second = np.add.reduce(self.seconds.take(rows, 0), 0).reshape(self.blocks, -1)
        left = second[:, self.triangle]
        right = (own @ told).reshape(shape) - left[:, -1]
        right[:, -1] = own.sum() - first[:, -1]
        left[:, -1], left[:, :, -1] = first, first
        left[:, -1, -1] = n
        left *= self.noise[:, :, None]
        left += self.precision
        read = np.empty(len(self.link), np.float32)
        read[0], read[-1] = 1, np.log1p(n)
        read[1:-1] = np.add.reduce(self.basis.take(rows, 0), 0) / n**0.5
        right *= self.noise
        right += (read @ self.link).reshape(shape)
        solved: Floats = np.linalg.solve(left, right[..., None])[..., 0]
        return solved, left


class Products:
    """One vector with all rows of a table. NumPy is called sooner, torch reads memory faster."""

    def __init__(self, table: Floats) -> None:
        small = table.size < _LARGE
        self._turned = np.ascontiguousarray(table.T) if small else None
        self._rows = None if small else torch.from_numpy(np.ascontiguousarray(table))

    def __call__(self, vector: Floats) -> Floats:
        if self._turned is not None:
            near: Floats = vector @ self._turned
            return near
        assert self._rows is not None
        found: Floats = torch.mm(torch.from_numpy(vector)[None], self._rows.T)[0].numpy()
        return found


def _array(x: Tensor) -> Floats:
    found: Floats = x.detach().float().cpu().numpy().copy()
    return found
