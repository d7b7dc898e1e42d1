"""The best items of a catalogue: every item is scored, nothing is approximate.

`top_k` picks, `Exact` scores and picks; for one newcomer at a time it takes the ways of `quick`.
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
from idcf.models import Model, TwoTower
from idcf.models.baselines import FoldIn, ItemItem
from idcf.models.idcf import part
from idcf.models.odds import Odds
from idcf.nn.heads import Dot
from idcf.quick import Folded, Quick, folded, quick
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
            self._folded: Folded | None = folded(model)
            self._quick: Quick | None = quick(model, self._folded)

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

    def one(self, items: Ints, values: Floats, features: Floats | None = None) -> Floats:
        """Every item for one newcomer: [I]. The caller may write into it."""
        if self._quick is not None and len(items) and features is None:
            return self._quick(items, values)  # frozen, so nothing is recorded for gradients
        lengths = torch.tensor([0, len(items)])
        history = History(torch.from_numpy(items), torch.from_numpy(values), lengths)
        known = None if features is None else torch.from_numpy(features)[None]
        one = Users(torch.tensor([-1]), history, known)
        scores: Floats = self.scores(one)[0].float().cpu().numpy()
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
            known = None if users.features is None else users.features[chosen]
            some = Users(users.ids[chosen], pick(users.history, chosen), known)
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
