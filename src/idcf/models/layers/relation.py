"""The relation model h_w: multi-head attention from query users to key users (Eq. 5-6)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attention = Literal["dot", "additive", "literal"]


class Folded(NamedTuple):
    """Dot attention with W_k and W_v moved to the asking side: key users are heard as they are.

    ⟨W_q d, W_k p⟩ = ⟨W_kᵀ W_q d, p⟩ and Σ_h (Σ c p) W_v W_o = (Σ c p) (W_v W_o).
    """

    ask: Tensor  # [H, Q, D]
    give: Tensor  # [H, D, D]


class Relation(nn.Module):
    """`dot`: softmax of ⟨W_q d, W_k p⟩, over √D where `scaled`.
    `additive`: softmax of eᵀ LeakyReLU(W_q d + W_k p), as in GATv2.
    `literal`: the paper's Eq. 4, eᵀ[W_q d ⊕ W_k p] normalised without an exponential: for study,
    its denominator can vanish and the query enters through one number only.
    """

    def __init__(
        self, query: int, size: int, heads: int, attention: Attention = "dot", scaled: bool = True
    ) -> None:
        super().__init__()
        self.attention = attention
        self.scale = size**-0.5 if scaled else 1.0
        # small: everybody starts near the plain mean of the key users, not at a random mixture
        self.query = nn.Parameter(_glorot(heads, query, size) * 0.05)
        self.key = nn.Parameter(_glorot(heads, size, size))
        # at the start a user is the weighted mean of the key users: p̃ = Σ c p
        self.value = nn.Parameter(torch.eye(size).repeat(heads, 1, 1))
        self.out = nn.Parameter(torch.eye(size).repeat(heads, 1) / heads)
        if attention == "literal":
            self.e_query = nn.Parameter(_glorot(heads, size, 1))
        if attention != "dot":
            self.e_key = nn.Parameter(_glorot(heads, size, 1))

    def fold(self) -> Folded:
        """A product of weights alone: it costs the same however many ask, or are asked."""
        ask = torch.bmm(self.query, self.key.mT)
        return Folded(ask, torch.bmm(self.value, self.out.view_as(self.value)))

    def weights(
        self,
        query: Tensor,
        keys: Tensor,
        scale: Tensor | float = 1.0,
        near: Tensor | None = None,
    ) -> Tensor:
        """How much each query user listens to each key user: [H, B, S]. Keys are [S, D], the same
        for every head, or [H, S, D]; `scale` is theirs, for the scores alone. `near` [B, S]: only
        to these, of whom there must be one."""
        if self.attention == "dot":
            return self._dot(query, keys, scale, self.fold().ask, near)
        asked, key = query @ self.query, (keys * scale) @ self.key
        if self.attention == "additive":
            both = F.leaky_relu(asked[:, :, None] + key[:, None], 0.2)
            e: Tensor = self.e_key[:, None]
            return _softmax((both @ e).squeeze(-1), near)
        score = asked @ self.e_query + (key @ self.e_key).mT
        score = score if near is None else score * near
        out: Tensor = score / score.sum(-1, keepdim=True)
        return out

    def forward(
        self,
        query: Tensor,
        keys: Tensor,
        scale: Tensor | float = 1.0,
        near: Tensor | None = None,
    ) -> Tensor:
        """Σ_h Σ_s c p_s W_v W_o: [B, D]."""
        ask, give = self.fold()
        if self.attention == "dot":
            weights = self._dot(query, keys, scale, ask, near)
        else:
            weights = self.weights(query, keys, scale, near)
        mixed = torch.bmm(weights, keys.expand(give.shape[0], -1, -1))
        return torch.bmm(mixed, give).sum(0)

    def _dot(
        self,
        query: Tensor,
        keys: Tensor,
        scale: Tensor | float,
        ask: Tensor,
        near: Tensor | None,
    ) -> Tensor:
        # bmm and not @, which wraps it in views that are recorded and replayed
        heads = ask.shape[0]
        asked = torch.bmm((query * (self.scale * scale)).expand(heads, -1, -1), ask)
        return _softmax(torch.bmm(asked, keys.expand(heads, -1, -1).mT), near)


def _softmax(score: Tensor, near: Tensor | None) -> Tensor:
    # added, not filled in: then the way back has nothing to do
    return torch.softmax(score if near is None else score + near.to(score.dtype).log(), -1)


def _glorot(heads: int, a: int, b: int) -> Tensor:
    drawn: Tensor = torch.randn(heads, a, b) * (2 / (a + b)) ** 0.5
    return drawn
