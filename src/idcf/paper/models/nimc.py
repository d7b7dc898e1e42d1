"""NIMC: non-linear inductive matrix completion (Zhong, Song, Jain & Dhillon 2019).

    r̂ = μ + φ(Uᵀ[x_u, 1])ᵀ φ(Vᵀ[y_i, e_i, 1])

x_u is what is known of the user, y_i of the item, e_i says which item it is; the constants let φ
express means; φ is tanh. A user is known by features alone: a newcomer whose features are told is
no different from anybody else, and where nothing is told everybody is the average user.

In training a share of the users is forgotten, so that the average user is somebody it was asked
about and not only where U is 0. U begins at 0. A column that no user of the training table has (on
Douban, where x_u is a row of the graph of friends, the column of somebody new) therefore stays at 0
and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.heads import Dot, Head
from idcf.types import Domain, Embedded, Users


@dataclass(frozen=True, kw_only=True)
class NimcConfig:
    embedding_size: int = 16  # units of the hidden layers
    scale: float = 0.01  # of the first random rows of V: what few rated stays near the usual
    user_scale: float = 0.1  # of x_u: the smaller, the less and the later people are told apart
    forget: float = 0.3  # share of the users of a training step of whom nothing is told
    user_features: bool = True  # read them, where there are any
    item_features: bool = True


class Nimc(TwoTower):
    """One hidden layer on each side, and the product of the two."""

    inductive: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    reads_features: ClassVar[bool] = True
    source: ClassVar[str] = "features"
    item_features: Tensor  # [I, G]
    by_user: nn.Parameter | None  # U [F, D]
    by_item: nn.Parameter | None  # V [G, D]

    def __init__(self, config: NimcConfig, domain: Domain) -> None:
        super().__init__()
        self.mean, self.n_items, self.rates = domain.mean, domain.n_items, not domain.implicit
        self.head: Head = Dot()
        self.user_scale, self.forget = config.user_scale, config.forget
        size = config.embedding_size
        self.user_constant = nn.Parameter(torch.randn(size))
        self.item_constant = nn.Parameter(torch.randn(size) * config.scale)
        self.items = nn.Parameter(torch.randn(domain.n_items, size) * config.scale)
        # whoever reads none has no weights for them; how many there are, a file may say later
        self.by_user = self.by_item = None
        if config.user_features:
            self.by_user = nn.Parameter(torch.zeros(domain.n_user_features, size))
        known = domain.item_features
        if known is None or not config.item_features:
            known = torch.zeros(domain.n_items, 0)
        self.register_buffer("item_features", known.clone())
        if config.item_features:
            self.by_item = nn.Parameter(torch.randn(known.shape[1], size) * config.scale)

    def embed_users(self, users: Users) -> Embedded:
        told = self.user_constant.expand(len(users), -1)
        if self.by_user is not None and users.features is not None and len(self.by_user):
            own = users.features @ (self.user_scale * self.by_user)
            if self.training and self.forget:
                own = own * (torch.rand_like(own[:, :1]) >= self.forget)
            told = told + own
        vector = torch.tanh(told)
        return Embedded(vector, vector.new_zeros(len(users)))

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        flat = items.flatten()
        told = self.items.index_select(0, flat) + self.item_constant
        if self.by_item is not None and len(self.by_item):
            told = told + self.item_features.index_select(0, flat) @ self.by_item
        vector = torch.tanh(told).view(*items.shape, -1)
        return Embedded(vector, vector.new_zeros(items.shape))
