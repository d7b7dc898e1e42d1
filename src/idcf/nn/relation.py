"""The relation model h_w: multi-head attention from query users to key users (Eq. 5-6)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Attention = Literal["dot", "additive", "literal"]


class Keys(NamedTuple):
    """The key users as each head sees them, projected once however many ask."""

    key: Tensor  # [H, S, D]
    value: Tensor  # [H, S, D]


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

    def project(self, keys: Tensor, scale: Tensor | float = 1.0) -> Keys:
        """keys [S, D], the same for every head, or [H, S, D]; `scale` is for the scores alone."""
        return Keys((keys * scale) @ self.key, keys @ self.value)

    def weights(self, query: Tensor, keys: Keys) -> Tensor:
        """How much each query user listens to each key user: [H, B, S]."""
        asked = query @ self.query  # [H, B, D]
        if self.attention == "dot":
            return torch.softmax((asked * self.scale) @ keys.key.mT, -1)
        if self.attention == "additive":
            both = F.leaky_relu(asked[:, :, None] + keys.key[:, None], 0.2)
            e: Tensor = self.e_key[:, None]
            return torch.softmax((both @ e).squeeze(-1), -1)
        score = asked @ self.e_query + (keys.key @ self.e_key).mT
        out: Tensor = score / score.sum(-1, keepdim=True)
        return out

    def forward(self, query: Tensor, keys: Keys) -> Tensor:
        mixed = self.weights(query, keys) @ keys.value  # [H, B, D]
        out: Tensor = mixed.transpose(0, 1).flatten(1) @ self.out
        return out


def _glorot(heads: int, a: int, b: int) -> Tensor:
    drawn: Tensor = torch.randn(heads, a, b) * (2 / (a + b)) ** 0.5
    return drawn
