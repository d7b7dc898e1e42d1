"""The training table as a bipartite graph of users and items, with lookup of single edges."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from idcf.models.layers.index_checks import offsets_problem, range_problem
from idcf.models.layers.ragged import split_by_level
from idcf.types import Domain


class EdgeIndex(NamedTuple):
    """The E edges in two orders: grouped for sums over an item's raters, sorted for lookup."""

    raters: Tensor  # int64 [E]: the users of all edges, grouped by (item, level)
    starts: Tensor  # int64 [I * L + 1]: where each group begins
    edges: Tensor  # int64 [E]: the key item * U + user of every edge, ascending
    edge_level: Tensor  # int64 [E]: the rating level of `edges`


def build_edge_index(domain: Domain, levels: Tensor) -> EdgeIndex:
    """Return the edges of `domain.raters`, with ratings rounded to the nearest of `levels` [L]."""
    raters = split_by_level(domain.raters, levels)
    row = raters.owner()
    edges = torch.div(row, len(levels), rounding_mode="floor") * domain.n_users + raters.indices
    order = torch.argsort(edges)
    return EdgeIndex(raters.indices, raters.offsets, edges[order], (row % len(levels))[order])


def edge_index_problem(graph: Any, n_items: int, n_users: int, n_levels: int) -> str:
    """Return what is wrong with the tensors of an `EdgeIndex`, or a model with its buffers; "" if
    they can be used."""
    n_edges = len(graph.raters)
    if not n_edges == len(graph.edges) == len(graph.edge_level):
        return "the tensors of the training graph differ in length"
    return (
        offsets_problem("starts", graph.starts, n_items * n_levels, n_edges)
        or range_problem("raters", graph.raters, n_users)
        or range_problem("edges", graph.edges, n_items * n_users)
        or range_problem("edge_level", graph.edge_level, n_levels)
    )


class EdgeLookup(NamedTuple):
    """The edges of users [M] and items [M, K] or [M]; `exists` and `position` have the shape of
    items."""

    exists: Tensor  # bool: the pair is an edge
    position: Tensor  # int64: its position in `EdgeIndex.edges`; arbitrary if there is no edge
    user: Tensor  # int64 [M, 1] or [M]; 0 for a new user


def find_edges(edges: Tensor, n_users: int, user: Tensor, items: Tensor) -> EdgeLookup:
    """Look up the pairs (user[m], items[m, k]) or (user[m], items[m]) in `EdgeIndex.edges` [E].

    User -1 is a new user, who has no edge.
    """
    user = user if items.ndim == 1 else user[:, None]
    key = items * n_users + user
    position = torch.searchsorted(edges, key).clamp(max=len(edges) - 1)
    return EdgeLookup((edges[position] == key) & (user >= 0), position, user.clamp(min=0))
