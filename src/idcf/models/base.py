"""What it means to be a model here.

A class is either abstract (in this file) or final (in its own file). Nothing that is
implemented is ever overridden. A model scores: it knows nothing of files, optimisers or metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from itertools import chain
from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.errors import ColdUserError
from idcf.models.layers.embedding import Table
from idcf.models.layers.heads import Head
from idcf.types import Embedded, Users


class Model(nn.Module, ABC):
    """Scores items for users."""

    inductive: ClassVar[bool]  # can it score users with id -1?
    reads_history: ClassVar[bool] = True
    lists: ClassVar[bool] = True  # can whole catalogues be ranked for many users in a moment?
    reads_features: ClassVar[bool] = False  # by gradient: those of users, in every batch
    source: ClassVar[str] = "relation"  # of its answers: posterior, relation, features, popular
    n_items: int
    rates: bool = True  # are the scores on the scale of the ratings?
    binary: bool = False  # is it trained on who had what, though there are ratings?
    recognises: bool = False  # has it something of each user's own, though it is inductive?
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

    @property
    def anonymous(self) -> bool:
        """Is a user to it what the history says, and nothing else?"""
        return self.inductive and not self.recognises

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


class Variational(TwoTower):
    """A model that, in training, draws a user's vector from what it believes of the user.

    Without ratings its scores are logarithms of shares, which add up to 1 over the catalogue.
    """

    @abstractmethod
    def divergence(self, users: Users) -> Tensor:
        """What the belief about each user costs: [B]."""


class Penalised(Model):
    """A model that holds its own weights back, beyond what training does for every network."""

    @abstractmethod
    def penalty(self) -> Tensor:
        """What is added to the loss of a whole batch."""


class Posterior(TwoTower):
    """A model that knows how sure it is."""

    @abstractmethod
    def deviation(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """The standard deviation of the rating itself, noise and all: shaped as in `forward`."""


class Tabled(Model):
    """A transductive model with a table per side, whose rows a penalty can hold back."""

    inductive: ClassVar[bool] = False
    users: Table  # the meta latents P
    items: Table  # Q


class Backbone(Tabled, TwoTower):
    """A two-tower model of tables: what IDCF can be wrapped round."""

    @abstractmethod
    def compose(self, own: Embedded, users: Users) -> Embedded:
        """The user tower from a user's own latent, wherever that came from, and the history."""

    def embed_users(self, users: Users) -> Embedded:
        self.require_known(users)
        own: Embedded = self.users(users.ids)
        return self.compose(own, users)


class Wrapper(TwoTower):
    """Round a trained backbone, whose items and key users stay as they are: it says where anybody
    else stands among the key users."""

    inductive: ClassVar[bool] = True
    adapts: ClassVar[bool] = True  # has it weights of its own to train?
    keys: Tensor  # [key users, D + 1]: the meta latents, p and b, frozen
    average: Tensor  # [D + 1]: their mean

    def __init__(self, backbone: Backbone, keys: Users) -> None:
        super().__init__()
        self.n_items, self.mean = backbone.n_items, backbone.mean
        self.rates, self.hides = backbone.rates, backbone.hides
        self.backbone = deepcopy(backbone)
        self.head: Head = self.backbone.head  # f_θ moves here: it is tuned with the relation
        del self.backbone.head
        for table in (self.backbone.users, self.backbone.items):
            table.requires_grad_(False)
        with torch.no_grad():
            own: Embedded = self.backbone.users(keys.ids)
            latents = torch.cat([own.vector, own.bias[:, None]], -1)
            self.register_buffer("keys", latents)
            self.register_buffer("average", latents.mean(0))

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        return self.backbone.embed_items(items, without)
