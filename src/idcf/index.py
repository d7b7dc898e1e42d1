"""The best items of a catalogue: every item is scored, nothing is approximate.

`top_k` picks, `Exact` scores and picks, `Quick` is what `Exact` uses for one newcomer at a time.
Knows rows, no outside ids.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.errors import ConfigError
from idcf.models import IDCF, Model, TwoTower
from idcf.models.baselines import FoldIn, ItemItem
from idcf.models.idcf import part
from idcf.models.mf import Factor
from idcf.nn.heads import Dot
from idcf.types import Embedded, History, Users, pick

_SCORES = 1 << 21  # at a time, so that memory stays bounded and blocks stay in cache
_HIDDEN = 32  # numbers that a network keeps for each score


class Found(NamedTuple):
    """The best first; of equal scores the lower row first; -inf where too few were left."""

    scores: Tensor  # [B, k]
    rows: Tensor  # [B, k]


def top_k(scores: Tensor, k: int, skip: History | None = None) -> Found:
    """The k best of [B, I], without the items of `skip`, one row of it per user."""
    if skip is not None and len(skip.items):
        scores = scores.index_put((skip.owner(), skip.items), scores.new_tensor(-torch.inf))
    k = min(k, scores.shape[1])
    best, rows = scores.topk(min(k + 1, scores.shape[1]))
    # topk breaks ties as it likes: where there are any, sort, which keeps the order of rows
    tied = (best[:, 1:] == best[:, :-1]).any(1)
    best, rows = best[:, :k], rows[:, :k]
    if bool(tied.any()):
        again = scores[tied].sort(dim=1, descending=True, stable=True)
        best[tied], rows[tied] = again.values[:, :k], again.indices[:, :k]
    return Found(best, rows)


def best_of(scores: Floats, k: int) -> Ints:
    """`top_k` of one row in NumPy; items at -inf are left out."""
    left = len(scores) - k
    floor = np.partition(scores, left)[left] if left > 0 else -np.inf
    rows = np.flatnonzero(scores >= floor if floor > -np.inf else scores > floor)
    return rows[np.argsort(-scores[rows], kind="stable")[:k]]


class Exact:
    """A frozen model and its catalogue, embedded once."""

    def __init__(self, model: Model) -> None:
        model.freeze()
        self.model = model
        with torch.inference_mode():
            self.items = model.catalogue() if isinstance(model, TwoTower) else None
            linear = self.items is None or isinstance(getattr(model, "head", None), Dot)
            self._width = 1 if linear else _HIDDEN
            self._folded: Folded | None = None
            self._quick: Quick | None = None
            if isinstance(model, IDCF) and model.relation.attention == "dot":
                self._folded = Folded(model)
                if isinstance(model.backbone, Factor):
                    self._quick = Quick(model, self._folded)

    @torch.inference_mode()
    def embed(self, users: Users) -> Embedded:
        """Vectors and biases of users, on the model's device."""
        model, _ = self._towers()
        users = users.to(model.device)
        if self._folded:
            return self._folded.model.place(part(self._folded(users.history)), users)
        return model.embed_users(users)

    @torch.inference_mode()
    def scores(self, users: Users) -> Tensor:
        """Every item for every user: [B, I]."""
        if self.items is None:
            return self.model.rank(users.to(self.model.device))
        model, items = self._towers()
        return model.match_all(self.embed(users), items)

    def one(self, items: Ints, values: Floats) -> Floats:
        """Every item for one newcomer: [I]. The caller may write into it."""
        if self._quick is not None and len(items):
            return self._quick(items, values)  # frozen, so nothing is recorded for gradients
        lengths = torch.tensor([0, len(items)])
        history = History(torch.from_numpy(items), torch.from_numpy(values), lengths)
        scores: Floats = self.scores(Users(torch.tensor([-1]), history))[0].float().cpu().numpy()
        return scores.copy()

    @torch.inference_mode()
    def search(self, user: Embedded, k: int, skip: History | None = None) -> Found:
        """The k best items of users who are embedded already."""
        model, items = self._towers()
        return top_k(model.match_all(user, items), k, skip)

    @torch.inference_mode()
    def top(
        self,
        users: Users,
        k: int,
        skip: History | None = None,
        only: Tensor | None = None,
        never: Tensor | None = None,
    ) -> Found:
        """The k best items of each user, in blocks: among `only` these items, `never` those."""
        block = max(1, _SCORES // (self.model.n_items * self._width))
        parts = []
        for start in range(0, len(users), block):
            chosen = torch.arange(start, min(start + block, len(users)))
            some = Users(users.ids[chosen], pick(users.history, chosen), users.features)
            scores = self.scores(some).float().cpu()
            if only is not None:
                scores = torch.full_like(scores, -torch.inf).index_copy(1, only, scores[:, only])
            if never is not None:
                scores = scores.index_fill(1, never, -torch.inf)
            parts.append(top_k(scores, k, None if skip is None else pick(skip, chosen)))
        if not parts:
            return Found(torch.empty(0, k), torch.empty(0, k, dtype=torch.int64))
        return Found(*(torch.cat(x) for x in zip(*parts, strict=True)))

    @torch.inference_mode()
    def similar(self, row: int) -> Floats:
        """How alike each item is to this one: [I]. Cosine, or the model's own weights."""
        if isinstance(self.model, ItemItem):
            said: Floats = self.model.weight[row].float().cpu().numpy()
            return said.copy()
        if self.items is None:
            raise ConfigError(
                f"{type(self.model).__name__} knows no likeness between items; use an idcf-* "
                "model, 'als', 'ease' or 'item-knn'"
            )
        vectors = self.model.factors if isinstance(self.model, FoldIn) else self.items.vector
        alike: Floats = F.cosine_similarity(vectors, vectors[row][None]).float().cpu().numpy()
        return alike

    def _towers(self) -> tuple[TwoTower, Embedded]:
        if self.items is None or not isinstance(self.model, TwoTower):
            raise ConfigError(
                f"{type(self.model).__name__} scores items without vectors of people; use an "
                "idcf-* model or 'als' to embed them"
            )
        return self.model, self.items


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

    def __call__(self, history: History) -> Tensor:
        """p̃ of everybody: IDCF.induce, sooner."""
        asked = (self.model.read(history) - self.model.shift) @ self.ask
        keys = self.model.keys[None, None]
        mixed = F.scaled_dot_product_attention(
            asked.view(1, 1, -1, self.size), keys, keys, scale=1.0
        )
        vector = mixed.view(-1, self.heads * self.size) @ self.give
        silent = history.lengths() == 0  # nothing known: the mean of the key users
        return torch.where(silent[:, None], self.model.average, vector)


class Quick:
    """One newcomer of an IDCF round a table of items, nearly without tensor overhead.

    The score without bias is computed for all items at once; what it leaves unexplained of the
    history then gives the bias.
    """

    def __init__(self, model: IDCF, folded: Folded) -> None:
        config, items = model.config, model.backbone.items
        self.table, self.shift = _array(items.vector), _array(model.shift)
        self.ask, self.give = _array(folded.ask), _array(folded.give)
        self.keys = model.keys.cpu().T.contiguous()  # one copy, laid out for the longer product
        self.heads, self.size = folded.heads, folded.size
        self.power = {"mean": 1.0, "sum": 0.0, "root": 0.5}[config.pooling]
        zero = config.bias == "zero"
        expected = _array(items.bias + model.mean + model.average[-1])
        self.expected = expected if config.query == "ratings" else None
        self.base, self.usual = _array(items.bias + model.mean), not zero
        self.strength = config.bias_strength if model.rates and not zero else None
        self.turned = np.ascontiguousarray(self.table.T)
        self.head = None if isinstance(model.head, Dot) else model.head
        self.items, self.device = items.vector, model.device

    def __call__(self, rows: Ints, values: Floats) -> Floats:
        latent = self.vector(rows, values)
        vector, usual = latent[:-1], latent[-1]
        if self.head is None:
            scores = vector @ self.turned
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


def _array(x: Tensor) -> Floats:
    found: Floats = x.detach().float().cpu().numpy().copy()
    return found
