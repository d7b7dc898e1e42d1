"""What it means to be a model here.

A class is either abstract (in this file) or final (in its own file). Nothing that is
implemented is ever overridden. A model scores: it knows nothing of files, optimisers or metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.errors import ColdUserError
from idcf.nn.heads import Head
from idcf.nn.table import Table
from idcf.types import Embedded, Users


class Model(nn.Module, ABC):
    """Scores items for users."""

    inductive: ClassVar[bool]  # can it score users with id -1?
    reads_history: ClassVar[bool] = True
    reads_features: ClassVar[bool] = False  # by gradient: those of users, in every batch
    source: ClassVar[str] = "relation"  # of its answers: posterior, relation, features, popular
    n_items: int
    rates: bool = True  # are the scores on the scale of the ratings?
    frozen: bool = False  # weights will not change any more: what depends on them may be kept

    @abstractmethod
    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """items [M, K] for user owner[m] of B -> scores [M, K]."""

    @abstractmethod
    def rank(self, users: Users) -> Tensor:
        """Score the whole catalogue: [B, I]."""

    @property
    def device(self) -> torch.device:
        return next(chain(self.parameters(), self.buffers())).device

    def freeze(self) -> None:
        """For serving: no gradients, and nothing is computed twice."""
        self.eval().requires_grad_(False)
        for part in self.modules():
            if isinstance(part, Model):
                part.frozen = True

    def require_known(self, users: Users) -> None:
        """A model that knows users by number alone says so instead of guessing."""
        if not self.training and bool((users.ids < 0).any()):
            raise ColdUserError(
                f"{type(self).__name__} knows only the users it was trained on; wrap it as an "
                "idcf-* model, or use an inductive one ('bias', 'als', 'ease') for new users"
            )


class TwoTower(Model):
    """A model whose score is head(user vector, item vector) + biases + mean."""

    mean: float
    head: Head
    hides: bool = False  # does it hide a row's own rating from its item's tower in training?

    @abstractmethod
    def embed_users(self, users: Users) -> Embedded: ...

    @abstractmethod
    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        """items [M, K] or [M]. `without` [M]: the user whose own rating row m must not see."""

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        return self.score(self.embed_users(users), users, items, owner)

    def score(self, user: Embedded, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """`forward` for users who are embedded already; items are [M, K], or [M]."""
        hide = self.training and self.hides
        without = users.ids.index_select(0, owner) if hide else None
        return self.match(user.take(owner), self.embed_items(items, without))

    def match(self, user: Embedded, item: Embedded) -> Tensor:
        """user [M, D] against item [M, K, D], or [M, D]."""
        score: Tensor = self.head(user.vector, item.vector)
        bias = user.bias if item.bias.ndim == 1 else user.bias[:, None]
        return score + (bias + (item.bias + self.mean))

    def catalogue(self) -> Embedded:
        """All items, embedded."""
        return self.embed_items(torch.arange(self.n_items, device=self.device))

    def match_all(self, user: Embedded, items: Embedded) -> Tensor:
        """user [B, D] against every item [I, D]."""
        score = self.head.all(user.vector, items.vector)
        return score + user.bias[:, None] + (items.bias + self.mean)

    def rank(self, users: Users) -> Tensor:
        return self.match_all(self.embed_users(users), self.catalogue())


class Graded(Model):
    """A model that says how likely each rating level is; its score is the expected level."""

    levels: Tensor  # [L]

    @abstractmethod
    def logits(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """As `forward`, one number for each level: [M, K, L]."""

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        return self.logits(users, items, owner).softmax(-1) @ self.levels


class Posterior(TwoTower):
    """A model that knows how sure it is."""

    @abstractmethod
    def deviation(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """The standard deviation of the rating itself, noise and all: shaped as in `forward`."""


class Backbone(TwoTower):
    """A transductive two-tower model with a table per side: what IDCF can be wrapped round."""

    inductive: ClassVar[bool] = False
    users: Table  # the meta latents P
    items: Table  # Q

    @abstractmethod
    def compose(self, own: Embedded, users: Users) -> Embedded:
        """The user tower from a user's own latent, wherever that came from, and the history."""

    def embed_users(self, users: Users) -> Embedded:
        self.require_known(users)
        own: Embedded = self.users(users.ids)
        return self.compose(own, users)
