"""The relation model h_w: multi-head attention from query users to key users (Eq. 5-6)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.options import AttentionKind, RelationStart


class FoldedAttention(NamedTuple):
    """Products of the weights of dot attention, so that key latents are used untransformed.

    ⟨W_q d, W_k p⟩ = ⟨W_kᵀ W_q d, p⟩ and Σ_h (Σ c p) W_v W_o = (Σ c p) (W_v W_o).
    """

    query_key: Tensor  # [H, Q, D]
    value_out: Tensor  # [H, D, D]


class Relation(nn.Module):
    """Attention of B queries d [B, Q] to S key latents p [S, D] with H heads.

    "dot": softmax of ⟨W_q d, W_k p⟩, divided by √D if `scaled`.
    "additive": softmax of eᵀ LeakyReLU(W_q d + W_k p), as in GATv2.
    "literal": the paper's Eq. 4, eᵀ[W_q d ⊕ W_k p], normalized without an exponential. It is for
    study: its denominator can vanish, and the query adds one constant to all scores.

    Training starts at the "mean" of the key users, or from weights drawn after Glorot & Bengio
    2010. W_v acts on the latents p, or with `values_of_keys` on the keys W_k p.
    """

    def __init__(
        self,
        query_size: int,
        size: int,
        heads: int,
        attention: AttentionKind = "dot",
        scaled: bool = True,
        *,
        start: RelationStart = "mean",
        values_of_keys: bool = False,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.values_of_keys = values_of_keys
        self.scale = size**-0.5 if scaled else 1.0
        # small queries: training starts near the plain mean of the key users
        self.query = nn.Parameter(_glorot(heads, query_size, size) * 0.05)
        self.key = nn.Parameter(_glorot(heads, size, size))
        # identities: training starts from a weighted mean of the key users, p̃ = Σ c p
        self.value = nn.Parameter(torch.eye(size).repeat(heads, 1, 1))
        self.out = nn.Parameter(torch.eye(size).repeat(heads, 1) / heads)
        if start == "glorot":
            self.query = nn.Parameter(_glorot(heads, query_size, size))
            self.value = nn.Parameter(_glorot(heads, size, size))
            self.out = nn.Parameter(_glorot(1, heads * size, size)[0])
        if attention == "literal":
            self.e_query = nn.Parameter(_glorot(heads, size, 1))
        if attention != "dot":
            self.e_key = nn.Parameter(_glorot(heads, size, 1))

    def fold(self) -> FoldedAttention:
        """Return the products of the weights; the cost does not depend on the number of users."""
        query_key = torch.bmm(self.query, self.key.mT)
        value = torch.bmm(self.key, self.value) if self.values_of_keys else self.value
        return FoldedAttention(query_key, torch.bmm(value, self.out.view_as(value)))

    def attention_weights(
        self,
        query: Tensor,
        keys: Tensor,
        key_scale: Tensor | float = 1.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the weight c of each key user for each query user: [H, B, S]; each row sums to 1.

        `keys` are [S, D], shared by all heads, or [H, S, D], times `key_scale` in the scores;
        `mask` [B, S] are the key users that a query user may attend to, at least one; or [H, B, S]
        how often each of them stands in the sample of a head and a query user.
        """
        if self.attention == "dot":
            return self._dot_weights(query, keys, key_scale, self.fold().query_key, mask)
        projected_query, projected_key = query @ self.query, (keys * key_scale) @ self.key
        if self.attention == "additive":
            sums = F.leaky_relu(projected_query[:, :, None] + projected_key[:, None], 0.2)
            e: Tensor = self.e_key[:, None]
            return _masked_softmax((sums @ e).squeeze(-1), mask)
        score = projected_query @ self.e_query + (projected_key @ self.e_key).mT
        score = score if mask is None else score * mask
        weights: Tensor = score / score.sum(-1, keepdim=True)
        return weights

    def forward(
        self,
        query: Tensor,
        keys: Tensor,
        key_scale: Tensor | float = 1.0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return Σ_h Σ_s c p_s W_v W_o: [B, D]. See `attention_weights` for the parameters."""
        query_key, value_out = self.fold()
        if self.attention == "dot":
            weights = self._dot_weights(query, keys, key_scale, query_key, mask)
        else:
            weights = self.attention_weights(query, keys, key_scale, mask)
        mixed = torch.bmm(weights, keys.expand(value_out.shape[0], -1, -1))
        return torch.bmm(mixed, value_out).sum(0)

    def _dot_weights(
        self,
        query: Tensor,
        keys: Tensor,
        key_scale: Tensor | float,
        query_key: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Return the weights of "dot" attention: softmax of scale · dᵀWp, with W
        `fold().query_key`."""
        # bmm instead of @, which adds views to the autograd graph
        heads = query_key.shape[0]
        scaled = (query * (self.scale * key_scale)).expand(heads, -1, -1)
        score = torch.bmm(torch.bmm(scaled, query_key), keys.expand(heads, -1, -1).mT)
        return _masked_softmax(score, mask)


def _masked_softmax(score: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of scores [H, B, S] over the last axis, 0 where `mask` is False; numbers
    in place of True are multiplicities."""
    # adding log(mask) has a cheaper backward pass than filling with -inf
    return torch.softmax(score if mask is None else score + mask.to(score.dtype).log(), -1)


def _glorot(heads: int, fan_in: int, fan_out: int) -> Tensor:
    """Draw weights [heads, fan_in, fan_out] with the standard deviation of Glorot & Bengio 2010."""
    weights: Tensor = torch.randn(heads, fan_in, fan_out) * (2 / (fan_in + fan_out)) ** 0.5
    return weights
