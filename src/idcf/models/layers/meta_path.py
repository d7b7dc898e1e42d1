"""Meta-paths user - item - user: who among the key users had what somebody had."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idcf.types import History, Users, pick


class Paths(nn.Module):
    """The key users who had each item, end to end."""

    who: Tensor  # int64 [K]: the key users' own numbers
    rank: Tensor  # int64 [K]: of those who share as much, whoever had less comes first
    users: Tensor  # int64 [E], 0..K-1
    offsets: Tensor  # int64 [I + 1]

    def __init__(self, n_items: int, keys: Users) -> None:
        super().__init__()
        items, lengths = keys.history.items, keys.history.lengths()
        order = torch.argsort(items, stable=True)
        offsets = torch.zeros(n_items + 1, dtype=torch.int64, device=items.device)
        torch.cumsum(torch.bincount(items, minlength=n_items), 0, out=offsets[1:])
        busiest = torch.argsort(lengths, descending=True, stable=True)
        self.register_buffer("who", keys.ids)
        self.register_buffer("rank", torch.argsort(busiest))
        self.register_buffer("users", keys.history.owner()[order])
        self.register_buffer("offsets", offsets)

    def common(self, history: History) -> Tensor:
        """How many items of each history each key user had: int64 [B, K]."""
        had = pick(History(self.users, self.users, self.offsets), history.items)
        keys, users = len(self.who), len(history.offsets) - 1
        row = history.owner().repeat_interleave(had.lengths(), output_size=len(had.items))
        total = row.new_zeros(users * keys)
        ones = torch.ones_like(row)
        return total.index_add_(0, row * keys + had.items, ones).view(users, keys)

    def near(self, history: History, most: int, without: Tensor | None = None) -> Tensor:
        """The key users who share an item, at most so many: those who share most. bool [B, K].
        `without` [B]: a number of their own, which must not count."""
        common = self.common(history)
        if without is not None:
            common.masked_fill_(without[:, None] == self.who, 0)
        keys = len(self.who)
        best = (common * keys + self.rank).topk(min(most, keys)).indices  # no two are equal
        return torch.zeros_like(common, dtype=torch.bool).scatter_(1, best, True) & (common > 0)
