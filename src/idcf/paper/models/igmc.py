"""IGMC: predict a rating from its enclosing subgraph, without user or item embeddings
(Zhang & Chen 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Model, UserData
from idcf.paper.layers.rgcn import RGCN, SubgraphEdges
from idcf.paper.layers.subgraph import CappedHistories, NodeOffsets, RatingGraph, Subgraphs
from idcf.paper.model_options import IGMCConfig
from idcf.types import Batch, Domain, LossTerms, Users

_MAX_CELLS = 1 << 25  # cells of subgraphs in memory at a time on a GPU
_MAX_CPU_CELLS = _MAX_CELLS >> 6  # on a CPU, where they should stay in the cache
_N_LABELS = 4  # target user, target item, other user, other item
_N_NODE_FEATURES = 5  # beside the label, with `residual`; see `_node_features`
_LOG_COUNT_SCALE = 5  # divides log counts, to bring them to the size of the other features


class IGMC(Model):
    """Labelled nodes, R-GCN layers, and a perceptron on the states of the two target nodes.

    A user is the history alone; in training the user's row of the table, which contains the target,
    is hidden from the user's own pairs. The published form knows nodes by label and edges by level.
    With `residual`, node features are the offset from the mean, its number of ratings and the edge
    to the target of the other side; an edge carries the rating minus both offsets, and the score
    starts at the sum of the targets' offsets. Two layers then weight raters by their agreement with
    the user, and history items by their similarity to the item.
    """

    inductive: ClassVar[bool] = True
    user_data: ClassVar[UserData] = "rows"  # the training graph
    can_rank_catalog: ClassVar[bool] = False  # one subgraph for every user and item

    def __init__(self, config: IGMCConfig, domain: Domain) -> None:
        super().__init__()
        self.config, self.n_items = config, domain.n_items
        self.predicts_ratings = not domain.implicit
        self.mean = domain.mean if config.center or config.residual else 0.0
        self.graph = RatingGraph(domain.raters, domain.n_users, domain.levels, domain.mean)
        n_kinds, n_bases, n_features = len(domain.levels), config.bases, _N_LABELS
        if config.residual:
            n_kinds, n_bases, n_features = 2, 0, _N_LABELS + _N_NODE_FEATURES
        sizes = [n_features] + [config.size] * config.layers
        self.layers = nn.ModuleList(RGCN(n_kinds, a, b, n_bases) for a, b in pairwise(sizes))
        self.hidden = nn.Linear(2 * config.size * config.layers, config.hidden)
        self.out = nn.Linear(config.hidden, 1)

    @property
    def cap(self) -> int:
        """Largest number of neighbours on each side of a subgraph, in the present mode."""
        return min(self.config.cap, self.config.train_cap) if self.training else self.config.cap

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score items [M, K] for users owner [M] of B: [M, K]."""
        pair_owner = owner.repeat_interleave(items.shape[1])
        return self._score_pairs(users, items.flatten(), pair_owner).view(items.shape)

    def score_catalog(self, users: Users) -> Tensor:
        """Score the whole catalogue: [B, I]."""
        every_item = torch.arange(self.n_items, device=self.device)
        every_user = torch.arange(len(users), device=self.device)
        return self.forward(users, every_item.expand(len(users), -1), every_user)

    def extra_loss_terms(self, batch: Batch) -> LossTerms:
        """Return the penalty, of which each process adds the share of its rows."""
        return {"reg": self.penalty() * (len(batch.items) / batch.n_rows)}

    def penalty(self) -> Tensor:
        """Return the weighted adjacent rating penalty; 0 with `residual`, which has no levels."""
        if self.config.residual:
            return torch.zeros((), device=self.device)
        parts = [x.adjacent_rating_penalty() for x in self.layers if isinstance(x, RGCN)]
        return self.config.smoothness * torch.stack(parts).sum()

    def _score_pairs(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Score items [P] for users owner [P], a chunk of similar sizes at a time: [P]."""
        histories = self.graph.cap_histories(users.history, self.cap)
        user_offsets = self.graph.user_offsets(users.history)
        exclude_users = users.ids if self.training else torch.full_like(users.ids, -1)
        n_raters = self.graph.starts.diff()[items].clamp(max=self.cap)
        n_items = (histories.level > 0).sum(1)[owner]
        # by raters, in steps of 16, then by length of history: chunks are padded, and subgraphs of
        # similar size leave little of them empty
        order = torch.argsort(n_raters // 16 * (self.cap + 1) + n_items, stable=True)
        max_cells = _MAX_CELLS if items.is_cuda else _MAX_CPU_CELLS
        max_raters = int(n_raters.max()) if len(n_raters) else 0
        step = max(1, max_cells // ((max_raters + 1) * (histories.items.shape[1] + 1)))
        scores = [
            self._score_chunk(histories, user_offsets, exclude_users, items[chunk], owner[chunk])
            for chunk in (order[at : at + step] for at in range(0, len(order), step))
        ]
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order), device=order.device)
        return torch.cat(scores)[position] if scores else self.out.bias[:0]

    def _score_chunk(
        self,
        histories: CappedHistories,
        user_offsets: NodeOffsets,
        exclude_users: Tensor,
        items: Tensor,
        owner: Tensor,
    ) -> Tensor:
        """Score P pairs whose subgraphs fit into memory together: [P]."""
        config, excluded = self.config, exclude_users[owner]
        subgraphs = self.graph.extract_subgraphs(histories, owner, items, self.cap, excluded)
        level = subgraphs.level
        if self.training and config.edge_dropout:
            level = level * (torch.rand(level.shape, device=level.device) >= config.edge_dropout)
        user_nodes, item_nodes = (
            _node_labels(side, level, self.out.weight.dtype) for side in (0, 1)
        )
        if not config.residual:
            numbers = torch.arange(1, len(self.graph.levels) + 1, device=level.device)
            is_kind = level[:, None] == numbers[:, None, None]
            edges = SubgraphEdges.from_levels(level, is_kind.to(user_nodes.dtype))
            return self.mean + self._readout(edges, user_nodes, item_nodes)
        of_users, of_items = self._node_offsets(subgraphs, user_offsets, items, owner, excluded)
        edges = self._residual_edges(level, of_users.value, of_items.value)
        to_target_item = edges.user_weights[:, :, :, 0].unbind(1)
        to_target_user = edges.user_weights[:, :, 0].unbind(1)
        user_nodes = _node_features(user_nodes, of_users, edges.user_degrees, to_target_item)
        item_nodes = _node_features(item_nodes, of_items, edges.item_degrees, to_target_user)
        offset = of_users.value[:, 0] + of_items.value[:, 0]
        correction = self._readout(edges, user_nodes, item_nodes)
        return self.mean + self.graph.rating_std * (offset + correction)

    def _node_offsets(
        self,
        subgraphs: Subgraphs,
        user_offsets: NodeOffsets,
        items: Tensor,
        owner: Tensor,
        exclude_users: Tensor,
    ) -> tuple[NodeOffsets, NodeOffsets]:
        """Return the offsets of all users [P, 1 + R] and all items [P, 1 + H] of each subgraph."""
        graph, all_items = self.graph, self.graph.rating_lookup().item_offsets
        target_item = graph.item_offsets_without(items, exclude_users)
        item_change = target_item.value - all_items.value[items]
        raters = graph.adjusted_rater_offsets(subgraphs.raters, item_change)
        other_items = all_items.take(subgraphs.items)
        return (
            _prepend_target(user_offsets.take(owner), raters),
            _prepend_target(target_item, other_items),
        )

    def _residual_edges(
        self, level: Tensor, user_offsets: Tensor, item_offsets: Tensor
    ) -> SubgraphEdges:
        """Return edges of two kinds: 1 for every edge, and the rating minus both offsets."""
        is_edge = (level > 0).to(user_offsets.dtype)
        value = self.graph.scaled_levels.index_select(0, level.flatten().int()).view(level.shape)
        residual = value - user_offsets[:, :, None] - item_offsets[:, None]
        return SubgraphEdges.from_levels(level, torch.stack([is_edge, residual * is_edge], 1))

    def _readout(self, edges: SubgraphEdges, users: Tensor, items: Tensor) -> Tensor:
        """Return one number per subgraph [P] from the targets' states after every layer; the last
        layer computes no other states."""
        target_states: list[Tensor] = []
        for number, layer in enumerate(self.layers, 1):
            convolved = layer(edges, users, items, target_only=number == len(self.layers))
            users, items = (x.tanh() for x in convolved)
            target_states += [users[:, 0], items[:, 0]]
        hidden = self.hidden(torch.cat(target_states, -1)).relu()
        out: Tensor = self.out(F.dropout(hidden, self.config.dropout, self.training))[:, 0]
        return out


def _node_labels(side: int, block: Tensor, dtype: torch.dtype) -> Tensor:
    """Return one-hot labels of the users (side 0) or items (side 1): target user 0, target item 1,
    other user 2, other item 3."""
    label = torch.full((block.shape[1 + side],), 2 + side, device=block.device)
    label[0] = side
    return F.one_hot(label, _N_LABELS).to(dtype).expand(len(block), -1, -1)


def _prepend_target(target: NodeOffsets, others: NodeOffsets) -> NodeOffsets:
    """Join the offsets of targets [P] and of other nodes [P, R] -> [P, 1 + R]."""
    value, n = (torch.cat([x[:, None], y], 1) for x, y in zip(target, others, strict=True))
    return NodeOffsets(value, n)


def _node_features(
    labels: Tensor, offsets: NodeOffsets, degrees: Tensor, target_edges: Sequence[Tensor]
) -> Tensor:
    """Return label, offset, log rating count, edge to the target (two kinds) and log degree of
    each node: [P, R, 4 + 5]."""
    log_counts = offsets.n_ratings.log1p() / _LOG_COUNT_SCALE
    features = torch.stack([offsets.value, log_counts, *target_edges], -1)
    return torch.cat([labels, features, degrees.log1p() / _LOG_COUNT_SCALE], -1)
