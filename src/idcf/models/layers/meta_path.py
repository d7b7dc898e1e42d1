"""Meta-paths user - item - user: the key users who share items with a user."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from idcf.types import History, Ragged, Users, select_rows


class MetaPathNeighbors(nn.Module):
    """The K key users of each item, to find the key users closest to a history."""

    key_user_ids: Tensor  # int64 [K]: user ids of the key users
    tie_break_rank: Tensor  # int64 [K]: higher for a shorter history; breaks ties of shared items
    key_user_rows: Tensor  # int64 [E]: key users as rows 0..K-1, grouped by item
    offsets: Tensor  # int64 [I + 1]: where each item's group begins

    def __init__(self, n_items: int, key_users: Users) -> None:
        super().__init__()
        items, lengths = key_users.history.items, key_users.history.lengths()
        order = torch.argsort(items, stable=True)
        offsets = torch.zeros(n_items + 1, dtype=torch.int64, device=items.device)
        torch.cumsum(torch.bincount(items, minlength=n_items), 0, out=offsets[1:])
        by_length = torch.argsort(lengths, descending=True, stable=True)
        self.register_buffer("key_user_ids", key_users.ids)
        self.register_buffer("tie_break_rank", torch.argsort(by_length))
        self.register_buffer("key_user_rows", key_users.history.owner()[order])
        self.register_buffer("offsets", offsets)

    def count_shared_items(self, history: History) -> Tensor:
        """Return the number of items that each history shares with each key user: int64 [B, K]."""
        key_users_by_item = Ragged(self.key_user_rows, None, self.offsets)
        raters = select_rows(key_users_by_item, history.items)
        n_keys, n_users = len(self.key_user_ids), len(history.offsets) - 1
        row = history.owner().repeat_interleave(raters.lengths(), output_size=len(raters.indices))
        total = row.new_zeros(n_users * n_keys)
        cell = row * n_keys + raters.indices
        return total.index_add_(0, cell, torch.ones_like(row)).view(n_users, n_keys)

    def neighbor_mask(
        self, history: History, max_neighbors: int, exclude_users: Tensor | None = None
    ) -> Tensor:
        """Return the neighbors of each user, bool [B, K]: the key users who share the most items,
        at least one; at most `max_neighbors`. `exclude_users` [B] are the ids of the users
        themselves."""
        shared = self.count_shared_items(history)
        if exclude_users is not None:
            shared.masked_fill_(exclude_users[:, None] == self.key_user_ids, 0)
        n_keys = len(self.key_user_ids)
        priority = shared * n_keys + self.tie_break_rank  # all different: topk is deterministic
        best = priority.topk(min(max_neighbors, n_keys)).indices
        return torch.zeros_like(shared, dtype=torch.bool).scatter_(1, best, True) & (shared > 0)
