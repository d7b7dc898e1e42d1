"""f_θ: how a user vector and an item vector become a score.

`forward` scores K items of each row's own, `all` scores every user against every item.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn


class Head(nn.Module, ABC):
    @abstractmethod
    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """user [M, D], item [M, K, D] -> [M, K], or one item each: [M, D] -> [M]."""

    @abstractmethod
    def all(self, user: Tensor, item: Tensor) -> Tensor:
        """user [B, D], item [I, D] -> [B, I]."""


class Dot(Head):
    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        if item.ndim == user.ndim:
            return (user * item).sum(-1)
        return torch.einsum("md,mkd->mk", user, item)

    def all(self, user: Tensor, item: Tensor) -> Tensor:
        return user @ item.T


def _facing(user: Tensor, item: Tensor) -> Tensor:
    """The user beside each of its items."""
    return user if item.ndim == user.ndim else user[:, None]


def mlp(sizes: tuple[int, ...], activation: Callable[[], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


class Perceptron(Head):
    """½ (p·q + nn([p ‖ q ‖ p⊙q])) with tanh: the head of IDCF-NN."""

    def __init__(self, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((3 * size, *hidden, 1), nn.Tanh)
        for last in self.net[-1].parameters():
            nn.init.zeros_(last)  # training starts from plain matrix factorization

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        p = _facing(user, item)
        both = p * item
        deep: Tensor = self.net(torch.cat([p.expand_as(both), item, both], -1)).squeeze(-1)
        return (both.sum(-1) + deep) / 2

    def all(self, user: Tensor, item: Tensor) -> Tensor:
        """The first layer is linear in q once p is fixed: W[p ‖ q ‖ p⊙q] = W₁p + (W₂ + W₃p) q."""
        first = self.net[0]
        assert isinstance(first, nn.Linear)
        by_user, by_item, by_both = first.weight.chunk(3, 1)
        mixed = by_item + by_both * user[:, None]  # [B, hidden, D]
        hidden = torch.einsum("id,bhd->bih", item, mixed) + (user @ by_user.T + first.bias)[:, None]
        rest: Tensor = self.net[1:](hidden).squeeze(-1)
        return (user @ item.T + rest) / 2


class Concat(Head):
    """nn([U ‖ V ‖ U'⊙V']) with sigmoids, on towers [U ‖ U'] and [V ‖ V']: the head of NNMF as
    first published. `plain` is the size of U and V, `size` that of U' and V'."""

    def __init__(self, plain: int, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.sizes = [plain, size]
        self.net = mlp((2 * plain + size, *hidden, 1), nn.Sigmoid)
        linear = [x for x in self.net if isinstance(x, nn.Linear)]
        for layer in linear:  # a sigmoid passes on a quarter of a gradient at most
            nn.init.xavier_uniform_(layer.weight, gain=4)
        with torch.no_grad():  # begins at the biases alone
            linear[-1].bias.sub_(self.net(torch.zeros(2 * plain + size)))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        p, p_both = _facing(user, item).split_with_sizes(self.sizes, -1)
        q, q_both = item.split_with_sizes(self.sizes, -1)
        out: Tensor = self.net(torch.cat([p.expand_as(q), q, p_both * q_both], -1)).squeeze(-1)
        return out

    def all(self, user: Tensor, item: Tensor) -> Tensor:
        """The first layer is linear in [V ‖ V'] once the user is fixed."""
        first = self.net[0]
        assert isinstance(first, nn.Linear)
        plain, size = self.sizes
        by_user, by_item, by_both = first.weight.split_with_sizes([plain, plain, size], 1)
        p, p_both = user.split_with_sizes(self.sizes, -1)
        q, q_both = item.split_with_sizes(self.sizes, -1)
        hidden = torch.einsum("id,bhd->bih", q_both, by_both * p_both[:, None])
        hidden = hidden + q @ by_item.T + (p @ by_user.T + first.bias)[:, None]
        out: Tensor = self.net[1:](hidden).squeeze(-1)
        return out


class Products(Head):
    """nn'([p⊙q ‖ p⊙m ‖ n⊙q ‖ n⊙m]) with ReLU, on towers [p ‖ m] and [q ‖ n]: IDCF-GC."""

    def __init__(self, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.net = mlp((4 * size, *hidden, 1), nn.ReLU)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        p, m = _facing(user, item).chunk(2, -1)
        q, n = item.chunk(2, -1)
        out: Tensor = self.net(torch.cat([p * q, p * m.expand_as(q), n * q, n * m], -1)).squeeze(-1)
        return out

    def all(self, user: Tensor, item: Tensor) -> Tensor:
        """Linear in [q ‖ n ‖ n⊙q] once p and m are fixed."""
        first = self.net[0]
        assert isinstance(first, nn.Linear)
        p, m = user.chunk(2, -1)
        q, n = item.chunk(2, -1)
        pq, pm, nq, nm = first.weight.chunk(4, 1)
        hidden = torch.einsum("id,bhd->bih", q, pq * p[:, None])
        hidden = hidden + torch.einsum("id,bhd->bih", n, nm * m[:, None])
        hidden = hidden + ((p * m) @ pm.T + first.bias)[:, None] + (n * q) @ nq.T
        out: Tensor = self.net[1:](hidden).squeeze(-1)
        return out
