"""The best items of a catalogue: every item is scored, nothing is approximate.

`top_k` picks, `Exact` scores and picks; for one newcomer at a time it takes the ways of `quick`.
Knows rows, no outside ids.
"""

from __future__ import annotations

from math import isqrt
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.data.interactions import Floats, Ints
from idcf.errors import ConfigError
from idcf.inference.kernels import Batched, Quick, batched, quick
from idcf.models.base import Model, TwoTower
from idcf.models.baselines import FoldIn, ItemItem
from idcf.models.layers.heads import Dot
from idcf.models.odds import Odds
from idcf.types import Embedded, History, Users, pick

_SCORES = 1 << 22  # at a time, so that memory stays bounded and blocks stay near
_WORTH = 8  # lines of a fold, or it does not pay
_HIDDEN = 64  # numbers that a network keeps for each score, about


class Found(NamedTuple):
    """The best first; of equal scores the lower row first; -inf where too few were left."""

    scores: Tensor  # [B, k]
    rows: Tensor  # [B, k]


def top_k(scores: Tensor, k: int, skip: History | None = None) -> Found:
    """The k best of [B, I], without the items of `skip`, one row of it per user."""
    if skip is not None and len(skip.items):
        scores = scores.index_put((skip.owner(), skip.items), scores.new_tensor(-torch.inf))
    k = min(k, scores.shape[1])
    best, rows = _largest(scores, min(k + 1, scores.shape[1]))
    # topk breaks ties as it likes: among the best they are put into the order of rows, and where
    # somebody else is as good as the last of them everybody is sorted
    equal = best[:, 1:] == best[:, :-1]
    if bool(equal.any()):
        rows, order = rows.sort(1)
        best, order = best.gather(1, order).sort(dim=1, descending=True, stable=True)
        rows = rows.gather(1, order)
        tied = equal[:, k - 1 :].any(1)
        if bool(tied.any()):
            again = scores[tied].sort(dim=1, descending=True, stable=True)
            best[tied, :k], rows[tied, :k] = again.values[:, :k], again.indices[:, :k]
    return Found(best[:, :k], rows[:, :k])


def _picked(scores: Tensor, bias: Tensor | None, k: int, skip: History | None) -> Found:
    """`top_k` of scores that nobody else needs, and then the part that was left out of them."""
    if skip is not None:
        scores[skip.owner(), skip.items] = -torch.inf
    found = top_k(scores, k)
    if bias is not None:
        found.scores.add_(bias.float().cpu()[:, None])
    return found


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`topk`, sooner: the k largest stand in the k columns of a fold whose own largest are
    largest. Finding these is one pass, and little is left to choose from."""
    n = scores.shape[1]
    width, fold = _fold(n, k)
    if fold < _WORTH:
        best, rows = scores.topk(k)
        return best, rows
    tops = scores[:, : fold * width].view(-1, fold, width).amax(1)
    near = tops.topk(k, sorted=False).indices[:, None]
    near = near + torch.arange(0, fold * width, width, device=scores.device)[:, None]
    rest = torch.arange(fold * width, n, device=scores.device).expand(len(scores), -1)
    near = torch.cat([near.flatten(1), rest], 1)
    best, place = scores.gather(1, near).topk(k)
    return best, near.gather(1, place)


def best_of(scores: Floats, k: int) -> Ints:
    """`top_k` of one row in NumPy; items at -inf are left out."""
    width, fold = _fold(len(scores), k)
    # k columns reach the k-th largest of their maxima, so at least k scores do: few are more
    tops = scores[: fold * width].reshape(fold, width).max(0) if fold >= _WORTH else scores
    left = len(tops) - k
    floor = np.partition(tops, left)[left] if left > 0 else -np.inf
    rows = np.flatnonzero(scores >= floor if floor > -np.inf else scores > floor)
    return rows[np.argsort(-scores[rows], kind="stable")[:k]]


def _fold(n: int, k: int) -> tuple[int, int]:
    """Columns and lines of n scores, so that about as many columns as scores are left to sort."""
    width = isqrt(n * k)
    return width, n // width


class Exact:
    """A frozen model and its catalogue, embedded once."""

    def __init__(self, model: Model) -> None:
        model.freeze()
        self.model = model
        with torch.inference_mode():
            self.items = model.catalogue() if isinstance(model, TwoTower) else None
            self._wide: Tensor | None = None  # [I, D + 1]: vectors and biases, for one product
            if isinstance(model, TwoTower) and isinstance(model.head, Dot):
                vector, bias = model.catalogue()
                self._wide = torch.cat([vector, (bias + model.mean)[:, None]], 1)
                self.items = Embedded(self._wide[:, :-1], bias)
            self._width = 1 if self.items is None or self._wide is not None else _HIDDEN
            self._batched: Batched | None = batched(model)
            self.way: Quick | None = quick(model, self._batched)  # for one newcomer

    @torch.inference_mode()
    def embed(self, users: Users) -> Embedded:
        """Vectors and biases of users, on the model's device."""
        model, _ = self._towers()
        users = users.to(model.device)
        return (self._batched or model).embed_users(users)

    @torch.inference_mode()
    def scores(self, users: Users) -> Tensor:
        """Every item for every user: [B, I]."""
        scores, bias = self._scores(users)
        return scores if bias is None else scores.add_(bias[:, None])

    def _scores(self, users: Users, room: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The same, or with what all scores of a user have in common apart, as far as no order
        depends on it: to add it to the whole catalogue would cost as much as to find the best.
        The caller may write into it."""
        if self.items is None:  # which may be the model's own numbers, shown to everybody
            return self.model.rank(users.to(self.model.device)).clone(), None
        return self._match(self.embed(users), room)

    def _match(self, user: Embedded, room: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        model, items = self._towers()
        if self._wide is None:
            return model.match_all(user, items), None
        vector = F.pad(user.vector, (0, 1), value=1.0)
        out = None if room is None else room[: len(vector)]
        return torch.mm(vector, self._wide.T, out=out), user.bias

    def one(self, items: Ints, values: Floats, features: Floats | None = None) -> Floats:
        """Every item for one newcomer: [I]. The caller may write into it."""
        if self.way is not None and len(items) and features is None:
            return self.way(items, values)  # frozen, so nothing is recorded for gradients
        lengths = torch.tensor([0, len(items)])
        history = History(torch.from_numpy(items), torch.from_numpy(values), lengths)
        known = None if features is None else torch.from_numpy(features)[None]
        one = Users(torch.tensor([-1]), history, known)
        scores: Floats = self.scores(one)[0].float().cpu().numpy()
        return scores.copy()

    @torch.inference_mode()
    def search(self, user: Embedded, k: int, skip: History | None = None) -> Found:
        """The k best items of users who are embedded already."""
        scores, bias = self._match(user)
        return _picked(scores.float().cpu(), bias, k, skip)

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
        parts, room = [], None
        if self._wide is not None and len(users) > block:  # new memory costs as much as the scores
            room = self._wide.new_empty(block, self.model.n_items)
        for start in range(0, len(users), block):
            some, barred = users, skip
            if len(users) > block:
                chosen = torch.arange(start, min(start + block, len(users)))
                known = None if users.features is None else users.features[chosen]
                some = Users(users.ids[chosen], pick(users.history, chosen), known)
                barred = None if skip is None else pick(skip, chosen)
            scores, bias = self._scores(some, room)
            scores = scores.float().cpu()
            if only is not None:
                scores = torch.full_like(scores, -torch.inf).index_copy(1, only, scores[:, only])
            if never is not None:
                scores = scores.index_fill(1, never, -torch.inf)
            parts.append(_picked(scores, bias, k, barred))
        if not parts:
            return Found(torch.empty(0, k), torch.empty(0, k, dtype=torch.int64))
        return Found(*(torch.cat(x) for x in zip(*parts, strict=True)))

    @torch.inference_mode()
    def similar(self, row: int) -> Floats:
        """How alike each item is to this one: [I]. Cosine, or the model's own weights."""
        if isinstance(self.model, ItemItem | Odds):
            weights = self.model.weight if isinstance(self.model, ItemItem) else self.model.kin
            said: Floats = weights.row(row).cpu().numpy()
            return said
        if self.items is None:
            raise ConfigError(
                f"{type(self.model).__name__} knows no likeness between items; use an idcf-* "
                "model, 'als', 'ease' or 'item-knn'"
            )
        vectors = self.items.vector
        if isinstance(self.model, FoldIn):  # a column in which all are alike says nothing
            vectors = self.model.factors[:, self.model.factors.std(0) > 0]
        alike: Floats = F.cosine_similarity(vectors, vectors[row][None]).float().cpu().numpy()
        return alike

    def _towers(self) -> tuple[TwoTower, Embedded]:
        if self.items is None or not isinstance(self.model, TwoTower):
            raise ConfigError(
                f"{type(self.model).__name__} scores items without vectors of people; use an "
                "idcf-* model or 'als' to embed them"
            )
        return self.model, self.items
