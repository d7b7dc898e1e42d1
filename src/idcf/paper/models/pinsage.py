"""PinSAGE: items described by themselves and by the items that short random walks from them visit
(Ying et al. 2018).

The original samples walks; here they are counted in the limit of infinitely many, so a score never
depends on chance. The neighbours of a user are the items of the history, and all users share one
input vector: new users are embedded like others. A target item must not be a neighbour of a user's
history because of that user, so each of `folds` of users is trained on a graph without its rows.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, diags_array, vstack
from torch import Tensor, nn

from idcf.models.base import TwoTower
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.embedding import EmbeddingTable, log_relative_popularity
from idcf.models.layers.heads import DotHead, Head, mlp
from idcf.models.layers.item_matrix import ItemMatrix, cooccurrence_blocks, largest_per_row
from idcf.models.layers.ragged import sum_pool
from idcf.paper.model_options import PinSageConfig
from idcf.types import Domain, Embeddings, Ragged, RaggedRows, Users

_FOLD_GRAPH_BUFFERS = ("fold_graph_items", "fold_graph_values", "fold_graph_offsets")


class ImportanceConv(nn.Module):
    """ẑ = z / ‖z‖, z = ReLU(W[h ‖ n] + w), n = Σ_v α_v ReLU(Q h_v + q)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.message = nn.Linear(size, size)
        self.combine = nn.Linear(2 * size, size)

    def compute_messages(self, vectors: Tensor) -> Tensor:
        """Return the message ReLU(Q h + q) of each node: [..., D]."""
        out: Tensor = self.message(vectors).relu()
        return out

    def forward(self, vectors: Tensor, neighbor_messages: Tensor) -> Tensor:
        """Return ẑ from node vectors h and the weighted sums n of their neighbors' messages."""
        return F.normalize(self.combine(torch.cat([vectors, neighbor_messages], -1)).relu(), dim=-1)


class _NodeStates(NamedTuple):
    """The states of I items on one graph, or on F graphs one after the other."""

    messages: list[Tensor]  # of each layer: [I, D] or [F · I, D]
    vector: Tensor  # the output: [F · I, D]


class PinSage(TwoTower):
    """Score G(ẑ_u) · G(ẑ_i) + b_i, with ẑ from importance-weighted graph convolutions."""

    inductive: ClassVar[bool] = True
    masks_target_edge: bool = True

    def __init__(self, config: PinSageConfig, domain: Domain) -> None:
        super().__init__()
        size = config.embedding_size
        self.n_items, self.predicts_ratings, self.mean = domain.n_items, False, 0.0
        self.dropout, self.folds = config.dropout, max(1, config.folds)
        self.head: Head = DotHead()
        self.items = EmbeddingTable(domain.n_items, size, config.init_std)
        self.items.bias.data = log_relative_popularity(domain.raters)
        self.user_vector = nn.Parameter(torch.randn(size) * config.init_std)
        self.convs = nn.ModuleList(ImportanceConv(size) for _ in range(config.layers))
        self.output_layers = mlp((size, size, size), nn.ReLU)
        self.item_neighbors = ItemMatrix(domain.n_items)
        incidence = incidence_matrix(domain.raters, domain.n_users)
        self.item_neighbors.set_entries(visit_shares(incidence, config.neighbors))
        if self.folds > 1:
            fold_graphs = _fold_graphs(incidence, config)
        else:
            fold_graphs = self.item_neighbors.rows()
        tensors = (fold_graphs.indices, fold_graphs.values, fold_graphs.offsets)
        for name, tensor in zip(_FOLD_GRAPH_BUFFERS, tensors, strict=True):
            self.register_buffer(name, tensor, persistent=False)  # only training needs them
        self._node_cache: TensorCache[_NodeStates] = TensorCache()
        # in a training step, `embed_users` passes its node states on to `embed_items`
        self._step_nodes: _NodeStates | None = None

    def index_problem(self) -> str:
        """Return what is wrong with the graph of items; "" if they can be used."""
        return self.item_neighbors.index_problem()

    def embed_users(self, users: Users) -> Embeddings:
        """Embed users from their histories, in training on the graph of their fold; the bias is
        0."""
        nodes = self._node_states()
        if self.training:
            self._step_nodes = nodes
        history, owner = users.history, users.history.owner()
        fold_items = history.items + self._fold_offset(users.ids)[owner]
        state = self.user_vector.expand(len(users), -1)
        weights = 1 / history.lengths().clamp(min=1).to(state.dtype)[owner]
        for conv, messages in zip(self.convs, nodes.messages, strict=True):
            rows = fold_items if len(messages) > self.n_items else history.items
            mean_message = sum_pool(messages, Ragged(rows, None, history.offsets), weights)
            state = conv(state, mean_message)
        vector = self.output_layers(state)
        return Embeddings(vector, vector.new_zeros(len(users)))

    def embed_items(self, items: Tensor, exclude_users: Tensor | None = None) -> Embeddings:
        """Look up the output vectors and biases of items [M, K] or [M]; with `exclude_users` [M],
        on the graph that was built without the fold of each of these users."""
        nodes, self._step_nodes = self._step_nodes or self._node_states(), None
        rows = items
        if exclude_users is not None:
            shift = self._fold_offset(exclude_users)
            rows = items + (shift if items.ndim == 1 else shift[:, None])
        vector = nodes.vector.index_select(0, rows.flatten()).view(*items.shape, -1)
        bias = self.items.bias.index_select(0, items.flatten()).view(items.shape)
        return Embeddings(vector, bias)

    def _fold_offset(self, ids: Tensor) -> Tensor:
        """Return the row at which the items of each user's fold graph begin; 0 if not training."""
        return (ids % self.folds) * self.n_items if self.training else torch.zeros_like(ids)

    def _node_states(self) -> _NodeStates:
        """Convolve the fold graphs in training, else the whole graph, cached."""
        if self.training:
            self._node_cache.clear()
            graph = Ragged(*(getattr(self, name) for name in _FOLD_GRAPH_BUFFERS))
            return self._convolve(graph, self.folds)
        graph = self.item_neighbors.rows()
        return self._node_cache.get(self.items.vector, lambda: self._convolve(graph, 1))

    def _convolve(self, graph: Ragged[Tensor], n_folds: int) -> _NodeStates:
        """Compute the states of all items on `n_folds` graphs at once."""
        state = F.dropout(self.items.vector, self.dropout, self.training)
        messages: list[Tensor] = []
        for number, module in enumerate(self.convs):
            conv = cast(ImportanceConv, module)
            messages.append(conv.compute_messages(state))
            if number == 0 and n_folds > 1:  # the first messages are equal on every graph
                state = state.repeat(n_folds, 1)
                first_graph = Ragged(graph.indices % self.n_items, None, graph.offsets)
                neighbor_messages = sum_pool(messages[0], first_graph, graph.values)
            else:
                neighbor_messages = sum_pool(messages[-1], graph, graph.values)
            state = conv(state, neighbor_messages)
        return _NodeStates(messages, self.output_layers(state))


def incidence_matrix(raters: RaggedRows, n_users: int) -> csr_array:
    """Return the matrix of interactions [U, I]: 1 where a user interacted with an item."""
    by_item = csr_array(
        (np.ones(len(raters.indices), np.float32), raters.indices.numpy(), raters.offsets.numpy()),
        shape=(len(raters.offsets) - 1, n_users),
    )
    return csr_array(by_item.T)


def visit_shares(incidence: csr_array, n_neighbors: int) -> csr_array:
    """Return for each item the `n_neighbors` items that walks from it visit most, with shares that
    sum to 1: [I, I]. A walk goes to a random user of the item and on to a random item of the user;
    a return to the start does not count. Items without neighbors have rows of 0."""
    item_to_user = _normalize_rows(csr_array(incidence.T))
    user_to_item = _normalize_rows(incidence)
    blocks = []
    for low, high in cooccurrence_blocks(incidence):  # the whole product does not fit into memory
        block = csr_array(item_to_user[low:high] @ user_to_item)
        row = np.repeat(np.arange(low, high), np.diff(block.indptr))
        block.data = np.where(row == block.indices, 0, block.data)
        blocks.append(largest_per_row(block, n_neighbors))
    return _normalize_rows(csr_array(vstack(blocks)))


def _normalize_rows(matrix: csr_array) -> csr_array:
    """Divide each row by its sum; empty rows stay 0."""
    total = np.asarray(matrix.sum(1)).ravel()
    return csr_array(diags_array((1 / np.maximum(total, 1e-9)).astype(np.float32)) @ matrix)


def _fold_graphs(incidence: csr_array, config: PinSageConfig) -> Ragged[Tensor]:
    """Build the graph of each fold without its users; row and column f · I + i are item i."""
    fold, n_items = np.arange(incidence.shape[0]) % config.folds, incidence.shape[1]
    graphs = [
        visit_shares(csr_array(incidence[fold != f]), config.neighbors) for f in range(config.folds)
    ]
    rows = csr_array(vstack(graphs))
    shift = np.repeat(np.arange(config.folds) * n_items, [g.nnz for g in graphs])
    return Ragged(
        torch.from_numpy(rows.indices + shift),
        torch.from_numpy(rows.data.astype(np.float32)),
        torch.from_numpy(rows.indptr.astype(np.int64)),
    )
