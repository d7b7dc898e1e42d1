"""What any newcomer could use instead. All are inductive, solved rather than descended.

A baseline here only scores; `train.solvers` fits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from idcf.models.base import Model, TwoTower
from idcf.models.layers.heads import Dot, Head
from idcf.models.layers.item_matrix import Sparse
from idcf.models.layers.ragged import normal_equations, shrunk_mean
from idcf.types import Domain, Embedded, History, Users


@dataclass(frozen=True, kw_only=True)
class PopularityConfig:
    pass


class Popularity(Model):
    """How many people had the item: the same list for everybody."""

    inductive: ClassVar[bool] = True
    reads_history: ClassVar[bool] = False
    source: ClassVar[str] = "popular"
    counts: Tensor

    def __init__(self, config: PopularityConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items, self.rates = domain.n_items, False
        self.register_buffer("counts", torch.zeros(domain.n_items))

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        return self.counts[items]

    def rank(self, users: Users) -> Tensor:
        return self.counts.expand(len(users), -1)


@dataclass(frozen=True, kw_only=True)
class BiasConfig:
    strength: float = 5.0  # ratings of "nothing unusual" that a user's own must outweigh
    item_strength: float = 3.0  # the same in every baseline, not searched


class Bias(Model):
    """μ + b_i + b_u, with b_u = Σ (r - μ - b_i) / (n + strength) over the history.

    With an infinite strength it is the item mean.
    """

    inductive: ClassVar[bool] = True
    source: ClassVar[str] = "popular"  # the same order for everybody
    item_bias: Tensor

    def __init__(self, config: BiasConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items, self.rates = domain.n_items, not domain.implicit
        self.mean, self.strength = domain.mean, config.strength
        self.register_buffer("item_bias", torch.zeros(domain.n_items))

    def residual(self, history: History) -> tuple[Tensor, Tensor]:
        """b_u [B], and what b_u and b_i leave unexplained of each rating [N]."""
        own = history.values - self.mean - self.item_bias[history.items]
        bias = shrunk_mean(own, history, self.strength)
        return bias, own - bias[history.owner()]

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        return self.mean + self.item_bias[items] + self.residual(users.history)[0][owner, None]

    def rank(self, users: Users) -> Tensor:
        return self.mean + self.item_bias + self.residual(users.history)[0][:, None]


@dataclass(frozen=True, kw_only=True)
class ItemItemConfig:
    reg: float = 100.0  # ridge of EASE; shrinkage of a similarity by its support for kNN
    neighbours: int = 50  # of each item, the nearest that may speak for it
    strength: float = 5.0
    normalise: bool = True  # kNN on ratings: a weighted mean instead of a sum


class ItemItem(Model):
    """Σ_j∈history w_ji x_uj: item-kNN and EASE (Steck 2019). For ratings x is what user and item
    bias leave unexplained, and those are added; without ratings x is 1."""

    inductive: ClassVar[bool] = True
    popularity: Tensor  # [I], for somebody without history

    def __init__(self, config: ItemItemConfig, domain: Domain) -> None:
        super().__init__()
        self.base = Bias(BiasConfig(strength=config.strength), domain)
        self.rates, self.n_items, self.normalise = self.base.rates, domain.n_items, config.normalise
        self.weight = Sparse(domain.n_items)  # row j says what having j says of the others
        self.register_buffer("popularity", torch.zeros(domain.n_items))

    def rank(self, users: Users) -> Tensor:
        history = users.history
        if not self.rates:
            silent = (history.lengths() == 0)[:, None]
            return torch.where(silent, self.popularity, self.weight.pool(history))
        bias, own = self.base.residual(history)
        said = self.weight.pool(history, own)
        if self.normalise:
            said = said / (self.weight.magnitude().pool(history) + 1.0)
        return self.base.mean + self.base.item_bias + bias[:, None] + said

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        return self.rank(users)[owner[:, None], items]


@dataclass(frozen=True, kw_only=True)
class FoldInConfig:
    embedding_size: int = 16
    reg: float = 10.0
    alpha: float = 10.0  # confidence of an interaction, without ratings
    epochs: int = 15
    strength: float = 5.0


class FoldIn(TwoTower):
    """ALS factors, or others'; anybody's vector is a least squares solution over their history.

    Ratings: p = (Q_HᵀQ_H + λI)⁻¹ Q_Hᵀ(r - base). Without ratings, with confidence α:
    p = (QᵀQ + α Q_HᵀQ_H + λI)⁻¹ (1 + α) Q_Hᵀ1 (Hu, Koren & Volinsky 2008). Instead of 0 a prior
    may say where p is expected, and instead of all items once, each entry of a history may have
    rivals of its own: see `idcf.inference.from_factors`. The last column of a
    vector is popularity, for somebody without history.
    """

    inductive: ClassVar[bool] = True
    factors: Tensor  # [I, D]
    gram: Tensor  # [D, D]: what every user shares
    prior: Tensor  # [D]: the same, on the right
    rivals: Tensor  # [D, D + 1]: what an entry of a history adds whatever its item; right side last
    target: Tensor  # []: the score of an item of a history, without ratings
    popularity: Tensor  # [I]

    def __init__(self, config: FoldInConfig, domain: Domain) -> None:
        super().__init__()
        size = config.embedding_size
        self.base = Bias(BiasConfig(strength=config.strength), domain)
        self.rates, self.n_items = self.base.rates, domain.n_items
        self.mean = self.base.mean if self.rates else 0.0
        self.alpha = 1.0 if self.rates else config.alpha
        self.head: Head = Dot()
        self.register_buffer("factors", torch.zeros(domain.n_items, size))
        self.register_buffer("gram", torch.eye(size))
        self.register_buffer("prior", torch.zeros(size))
        self.register_buffer("rivals", torch.zeros(size, size + 1))
        self.register_buffer("target", torch.tensor((1 + self.alpha) / self.alpha))
        self.register_buffer("popularity", torch.zeros(domain.n_items))

    def embed_users(self, users: Users) -> Embedded:
        history, n = users.history, users.history.lengths()[:, None]
        silent = (n == 0).to(self.factors.dtype)
        if self.rates:
            bias, own = self.base.residual(history)
            silent = silent * 0  # the item means already answer for them
        else:
            bias = silent[:, 0] * 0
            own = self.target - self.base.item_bias[history.items]
        outer, right = normal_equations(self.factors, history, own)
        left = self.gram + self.alpha * outer + n[..., None] * self.rivals[:, :-1]
        right = self.prior + self.alpha * right + n * self.rivals[:, -1]
        vector = torch.linalg.solve(left, right) * (1 - silent)
        return Embedded(torch.cat([vector, silent], -1), bias)

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        vector = torch.cat([self.factors[items], self.popularity[items][..., None]], -1)
        return Embedded(vector, self.base.item_bias[items])
