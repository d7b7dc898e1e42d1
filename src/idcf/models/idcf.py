"""IDCF: keep a trained backbone's items and key users, compute everybody else by relation.

p̃_u' = h_w(d_u'), r̂ = f_θ(p̃_u', q_i): Wu et al., "Towards Open-World Recommendation", ICML 2021.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from idcf.models.base import Backbone, TwoTower
from idcf.nn.heads import Head
from idcf.nn.pooling import pool, shrunk_mean
from idcf.nn.relation import Attention, Keys, Relation
from idcf.types import Embedded, History, Users


@dataclass(frozen=True, kw_only=True)
class IDCFConfig:
    heads: int = 4
    sample: int = 200  # key users each head listens to in a training step; all of them otherwise
    attention: Attention = "dot"
    scaled: bool = True
    pooling: Literal["mean", "sum", "root"] = "root"  # Σq / n, Σq (the paper), Σq / √n
    query: Literal["items", "ratings"] = "items"  # `ratings` also reads Σ (r - μ - b_i) q_i
    standardise: bool = True  # queries and keys to unit variance over the key users
    bias: Literal["inferred", "zero"] = "inferred"  # of a new user: from the history, or 0
    bias_strength: float = 5.0


class IDCF(TwoTower):
    """Wraps any backbone: -dot, -NN and -GC differ only in what is wrapped."""

    inductive: ClassVar[bool] = True
    keys: Tensor  # [key users, D + 1]: the meta latents, p and b, frozen
    average: Tensor  # [D + 1]: their mean
    shift: Tensor
    spread: Tensor
    key_scale: Tensor

    def __init__(self, config: IDCFConfig, backbone: Backbone, keys: Users) -> None:
        super().__init__()
        self.config = config
        self.n_items, self.mean, self.rates = backbone.n_items, backbone.mean, backbone.rates
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
            query = self.read(keys.history)
            spread = query.std(0, correction=0).clamp(min=1e-6)
            width = latents[:, :-1].std(0, correction=0).mean().clamp(min=1e-6)
            same = config.standardise
            self.register_buffer("shift", query.mean(0) if same else torch.zeros_like(spread))
            self.register_buffer("spread", spread if same else torch.ones_like(spread))
            self.register_buffer("key_scale", 1 / width if same else torch.ones_like(width))
        size = latents.shape[-1]
        self.relation = Relation(
            query.shape[-1], size, config.heads, config.attention, config.scaled
        )
        self._projected: tuple[tuple[int, int, int], Keys] | None = None

    def embed_users(self, users: Users) -> Embedded:
        return self.place(self.induce(users.history), users)

    def induce(self, history: History) -> Tensor:
        """p̃_u' of anybody, from what they did, and the bias to expect of them: [B, D + 1]."""
        query = (self.read(history) - self.shift) / self.spread
        latent = self.relation(query, self._listen())
        silent = history.lengths() == 0  # nothing known: the mean of the key users
        return torch.where(silent[:, None], self.average, latent)

    def place(self, latent: Tensor, users: Users) -> Embedded:
        """The user tower of induced latents. The bias of somebody who has no row of their own is
        what the latent leaves unexplained of the history, shrunk towards the induced one."""
        vector, usual = latent[:, :-1], latent[:, -1]
        history = users.history
        if self.config.bias == "zero":
            return self.backbone.compose(Embedded(vector, usual * 0), users)
        user = self.backbone.compose(Embedded(vector, usual), users)
        if not self.rates:
            return user
        owner = history.owner()
        item = self.embed_items(history.items[:, None], users.ids[owner] if self.training else None)
        left = history.values - self.match(user.take(owner), item)[:, 0]
        return user._replace(bias=usual + shrunk_mean(left, history, self.config.bias_strength))

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        return self.backbone.embed_items(items, without)

    def attention(self, users: Users) -> Tensor:
        """The weight each head gives each key user: [H, B, key users]."""
        query = (self.read(users.history) - self.shift) / self.spread
        return self.relation.weights(query, self.relation.project(self.keys, self.key_scale))

    def _listen(self) -> Keys:
        """A sample of the key users for each head in training, all of them otherwise."""
        if self.training and len(self.keys) > self.config.sample:
            shape = (self.config.heads, self.config.sample)
            drawn = torch.randint(len(self.keys), shape, device=self.keys.device)
            return self.relation.project(self.keys[drawn], self.key_scale)
        if not self.frozen:
            return self.relation.project(self.keys, self.key_scale)
        k, v = self.relation.key, self.relation.value
        state = (k.data_ptr(), k._version, v._version)
        if self._projected is None or self._projected[0] != state:
            self._projected = state, self.relation.project(self.keys, self.key_scale)
        return self._projected[1]

    def read(self, history: History) -> Tensor:
        """d_u', from the items of the history, their number and, where asked, their ratings."""
        table = self.backbone.items.vector
        n = history.lengths().clamp(min=1)[:, None]
        power = {"mean": 1.0, "sum": 0.0, "root": 0.5}[self.config.pooling]
        read = torch.cat([pool(table, history) / n**power, n.log1p()], -1)
        if self.config.query == "items":
            return read
        said = pool(table, history, self._residual(history) - self.average[-1])
        return torch.cat([read, said / n**0.5], -1)

    def _residual(self, history: History) -> Tensor:
        return history.values - self.mean - self.backbone.items.bias[history.items]
