"""Heads f_θ: functions of a user vector and an item vector that return a score.

`Head.score_all_pairs` rearranges the first layer so that no [B, I, D] input is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn


class Head(nn.Module, ABC):
    """A score of user vectors and item vectors."""

    @abstractmethod
    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score users [M, D] against items [M, K, D], which gives [M, K], or [M, D]: [M]."""

    @abstractmethod
    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score every user [B, D] against every item [I, D]: [B, I]."""


class DotHead(Head):
    """p·q: the head of PMF and of all models with a closed-form solution."""

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score users [M, D] against items [M, K, D] or [M, D]."""
        if item.ndim == user.ndim:
            return (user * item).sum(-1)
        return torch.einsum("md,mkd->mk", user, item)

    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score every user [B, D] against every item [I, D]: [B, I]."""
        return user @ item.T


def _broadcast_user(user: Tensor, item: Tensor) -> Tensor:
    """Return users [M, D] with a dimension for K if the items are [M, K, D]."""
    return user if item.ndim == user.ndim else user[:, None]


def mlp(sizes: tuple[int, ...], activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Return linear layers of these sizes with an activation between them, none after the last."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), activation()]
    return nn.Sequential(*layers[:-1])


def _split_first_layer(net: nn.Sequential) -> tuple[nn.Linear, nn.Module]:
    """Return the first linear layer of an `mlp` and the layers after it."""
    return cast("nn.Linear", net[0]), net[1:]


class PerceptronHead(Head):
    """½ (p·q + nn([p ‖ q ‖ p⊙q])) with tanh, p and q of `size`: the head of NNMF and IDCF-NN."""

    def __init__(self, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((3 * size, *hidden, 1), nn.Tanh)
        for parameter in self.net[-1].parameters():
            nn.init.zeros_(parameter)  # training starts from plain matrix factorization

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score users [M, D] against items [M, K, D] or [M, D]."""
        p = _broadcast_user(user, item)
        product = p * item
        deep: Tensor = self.net(torch.cat([p.expand_as(product), item, product], -1)).squeeze(-1)
        return (product.sum(-1) + deep) / 2

    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score all pairs by W[p ‖ q ‖ p⊙q] = W₁p + (W₂ + W₃ diag(p)) q: [B, I]."""
        first, deeper = _split_first_layer(self.net)
        by_user, by_item, by_product = first.weight.chunk(3, 1)
        mixed = by_item + by_product * user[:, None]  # [B, hidden, D]
        hidden = torch.einsum("id,bhd->bih", item, mixed) + (user @ by_user.T + first.bias)[:, None]
        deep: Tensor = deeper(hidden).squeeze(-1)
        return (user @ item.T + deep) / 2


class ConcatHead(Head):
    """nn([U ‖ V ‖ U'⊙V']) with sigmoids, on towers [U ‖ U'] and [V ‖ V'] of `plain_size` and
    `size`.

    The head of NNMF as first published (Dziugaite & Roy 2015).
    """

    def __init__(self, plain_size: int, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = [plain_size, size]
        self.net = mlp((2 * plain_size + size, *hidden, 1), nn.Sigmoid)
        linear = [layer for layer in self.net if isinstance(layer, nn.Linear)]
        for layer in linear:  # the derivative of a sigmoid is at most a quarter
            nn.init.xavier_uniform_(layer.weight, gain=4)
        with torch.no_grad():  # training starts from the biases alone
            linear[-1].bias.sub_(self.net(torch.zeros(2 * plain_size + size)))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score users [M, D] against items [M, K, D] or [M, D]."""
        p, p_product = _broadcast_user(user, item).split_with_sizes(self.sizes, -1)
        q, q_product = item.split_with_sizes(self.sizes, -1)
        inputs = torch.cat([p.expand_as(q), q, p_product * q_product], -1)
        out: Tensor = self.net(inputs).squeeze(-1)
        return out

    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score all pairs; the first layer is linear in [V ‖ V'] for a fixed user: [B, I]."""
        first, deeper = _split_first_layer(self.net)
        plain_size, size = self.sizes
        sizes = [plain_size, plain_size, size]
        by_user, by_item, by_product = first.weight.split_with_sizes(sizes, 1)
        p, p_product = user.split_with_sizes(self.sizes, -1)
        q, q_product = item.split_with_sizes(self.sizes, -1)
        hidden = torch.einsum("id,bhd->bih", q_product, by_product * p_product[:, None])
        hidden = hidden + q @ by_item.T + (p @ by_user.T + first.bias)[:, None]
        out: Tensor = deeper(hidden).squeeze(-1)
        return out


class ProductsHead(Head):
    """nn'([p⊙q ‖ p⊙m ‖ n⊙q ‖ n⊙m]) with ReLU, on towers [p ‖ m] and [q ‖ n]: GC-MC and IDCF-GC."""

    def __init__(self, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((4 * size, *hidden, 1), nn.ReLU)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Score users [M, 2 D] against items [M, K, 2 D] or [M, 2 D]."""
        p, m = _broadcast_user(user, item).chunk(2, -1)
        q, n = item.chunk(2, -1)
        out: Tensor = self.net(torch.cat([p * q, p * m.expand_as(q), n * q, n * m], -1)).squeeze(-1)
        return out

    def score_all_pairs(self, user: Tensor, item: Tensor) -> Tensor:
        """Score all pairs; the first layer is linear in [q ‖ n ‖ n⊙q] for a fixed user: [B, I]."""
        first, deeper = _split_first_layer(self.net)
        p, m = user.chunk(2, -1)
        q, n = item.chunk(2, -1)
        pq, pm, nq, nm = first.weight.chunk(4, 1)
        hidden = torch.einsum("id,bhd->bih", q, pq * p[:, None])
        hidden = hidden + torch.einsum("id,bhd->bih", n, nm * m[:, None])
        hidden = hidden + ((p * m) @ pm.T + first.bias)[:, None] + (n * q) @ nq.T
        out: Tensor = deeper(hidden).squeeze(-1)
        return out
