"""The training table as a graph of users and items, and how one edge of it is found again."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from idcf.models.layers.ragged import per_level
from idcf.types import Domain


class Graph(NamedTuple):
    """Every edge twice: laid out for sums over an item's raters, and sorted for looking one up."""

    raters: Tensor  # [E] users of all edges, grouped by (item, level)
    starts: Tensor  # [I * L + 1]
    edges: Tensor  # [E] item * U + user of every edge, ascending
    edge_level: Tensor  # [E]


def graph_of(domain: Domain, levels: Tensor) -> Graph:
    split = per_level(domain.raters, levels)
    row = split.owner()
    edges = torch.div(row, len(levels), rounding_mode="floor") * domain.n_users + split.items
    order = torch.argsort(edges)
    return Graph(split.items, split.offsets, edges[order], (row % len(levels))[order])


class Found(NamedTuple):
    there: Tensor  # bool: is it among the edges?
    at: Tensor  # where, if it is
    user: Tensor  # [M, 1], or [M]; 0 for somebody never seen


def find(edges: Tensor, n_users: int, user: Tensor, items: Tensor) -> Found:
    """Look up (user[m], items[m, k]), or (user[m], items[m]), among `edges`: item * U + user."""
    own = user if items.ndim == 1 else user[:, None]
    wanted = items * n_users + own
    at = torch.searchsorted(edges, wanted).clamp(max=len(edges) - 1)
    return Found((edges[at] == wanted) & (own >= 0), at, own.clamp(min=0))
