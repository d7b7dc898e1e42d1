"""IDCF: keep a trained backbone's items and key users, compute everybody else by relation.

p̃_u' = h_w(d_u'), r̂ = f_θ(p̃_u', q_i): Wu et al., "Towards Open-World Recommendation", ICML 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from idcf.models.base import Backbone, Wrapper
from idcf.models.layers.meta_path import Paths
from idcf.models.layers.ragged import pool, segment_sum
from idcf.models.layers.relation import Attention, Relation
from idcf.types import Embedded, History, Read, Users


@dataclass(frozen=True, kw_only=True)
class IDCFConfig:
    heads: int = 4
    sample: int = 200  # key users each head listens to in a training step; all of them otherwise
    # `meta-path`: listen to so many as `sample` says, always: those who share most items with u'
    reach: Literal["everybody", "meta-path"] = "everybody"
    attention: Attention = "dot"
    scaled: bool = True
    pooling: Literal["mean", "sum", "root"] = "root"  # Σq / n, Σq (the paper), Σq / √n
    query: Literal["items", "ratings"] = "items"  # `ratings` also reads Σ (r - μ - b_i) q_i
    standardise: bool = True  # queries and keys to unit variance over the key users
    # `inferred` from the history; `own`: trained with the rest, on each user's own ratings, from
    # what it was in the backbone, and 0 for anybody else, as in the published code
    bias: Literal["inferred", "own"] = "inferred"
    bias_strength: float = 5.0


class IDCF(Wrapper):
    """Wraps any backbone: -dot, -NN and -GC differ only in what is wrapped."""

    shift: Tensor
    spread: Tensor
    key_scale: Tensor

    def __init__(self, config: IDCFConfig, backbone: Backbone, keys: Users) -> None:
        super().__init__(backbone, keys)
        self.config = config
        with torch.no_grad():
            query = self.read(keys.history)
            spread = query.std(0, correction=0).clamp(min=1e-6)
            width = self.keys[:, :-1].std(0, correction=0).mean().clamp(min=1e-6)
            same = config.standardise
            self.register_buffer("shift", query.mean(0) if same else torch.zeros_like(spread))
            self.register_buffer("spread", spread if same else torch.ones_like(spread))
            self.register_buffer("key_scale", 1 / width if same else torch.ones_like(width))
        size = self.keys.shape[-1]
        self.relation = Relation(
            query.shape[-1], size, config.heads, config.attention, config.scaled
        )
        self.recognises = config.bias == "own"
        self.backbone.users.bias.requires_grad_(self.recognises)
        paths = config.reach == "meta-path"
        self.paths = Paths(self.n_items, keys) if paths else None

    def embed_users(self, users: Users) -> Embedded:
        read = self.take_in(users.history)
        return self.place(part(self.induce(users.history, read, users.ids)), users, read)

    def induce(self, history: History, read: Read, ids: Tensor | None = None) -> Tensor:
        """p̃_u' of anybody, from what they did, and the bias to expect of them: [B, D + 1]."""
        query, silent = read.query, read.silent
        near = self._near(history, ids if self.training else None)
        if near is not None:
            silent = ~near.any(1, keepdim=True)  # nobody had what they had
            near = near | silent
        latent: Tensor = self.relation(query, self._listen(), self.key_scale, near)
        return latent if silent is None else torch.where(silent, self.average, latent)

    def _near(self, history: History, without: Tensor | None = None) -> Tensor | None:
        """Whom a meta-path lets each listen to; in training never to themselves."""
        if self.paths is None:
            return None
        return self.paths.near(history, self.config.sample, without)

    def place(self, own: Embedded, users: Users, read: Read) -> Embedded:
        """The user tower of induced latents. The bias of somebody who has no row of their own is
        what the latent leaves unexplained of the history, shrunk towards the induced one."""
        if self.recognises:
            known = self.backbone.users.bias.index_select(0, users.ids.clamp(min=0))
            return self.backbone.compose(Embedded(own.vector, known * (users.ids >= 0)), users)
        user = self.backbone.compose(own, users)
        if not self.rates:
            return user
        heard = self.score(user, users, users.history.items, read.owner)
        return user._replace(bias=user.bias + self._unexplained(heard, users.history, read))

    def answer(
        self, own: Embedded, users: Users, read: Read, items: Tensor, owner: Tensor
    ) -> Tensor:
        """`score` of users placed at these latents. What they did and what is asked go through
        the head together: the bias is added to the answers afterwards."""
        if self.recognises or not self.rates or items.shape[1] > 1:
            return self.score(self.place(own, users, read), users, items, owner)
        user, history = self.backbone.compose(own, users), users.history
        who, what = torch.cat([read.owner, owner]), torch.cat([history.items, items[:, 0]])
        guess: Tensor = self.score(user, users, what, who)
        heard, score = guess.split_with_sizes([read.owner.shape[0], owner.shape[0]])
        more = self._unexplained(heard, history, read)
        return (score + more.index_select(0, owner))[:, None]

    def _unexplained(self, heard: Tensor, history: History, read: Read) -> Tensor:
        """The residuals of the histories, shrunk to a bias each."""
        return segment_sum(history.values - heard, read.owner, read.share.shape[0]) * read.share

    def attention(self, users: Users) -> Tensor:
        """The weight each head gives each key user: [H, B, key users]."""
        history = users.history
        query, near = self.take_in(history).query, self._near(history)
        return self.relation.weights(query, self.keys, self.key_scale, near)

    def _listen(self) -> Tensor:
        """A sample of the key users for each head in training, all of them otherwise."""
        if not self.training or self.paths or self.keys.shape[0] <= self.config.sample:
            return self.keys
        shape = (self.config.heads, self.config.sample)
        drawn = torch.randint(self.keys.shape[0], shape, device=self.keys.device)
        return F.embedding(drawn, self.keys)

    def take_in(self, history: History) -> Read:
        """All that is read of histories: d_u' to unit variance, and what infers a bias."""
        n, strength = history.lengths(), self.config.bias_strength
        silent = n[:, None] == 0
        return Read(
            (self.read(history) - self.shift) / self.spread,
            history.owner(),
            1 / (n + strength).clamp(min=1e-9),
            silent if bool(silent.any()) else None,
        )

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


def part(latent: Tensor) -> Embedded:
    """[B, D + 1] as vector and bias."""
    vector, bias = latent.split_with_sizes([latent.shape[1] - 1, 1], 1)
    return Embedded(vector, bias.squeeze(1))
