"""GC-MC as first published (van den Berg et al. 2017): messages per rating level, a bilinear
decoder and a softmax over the levels. The GCMC of the IDCF paper is the model `gcmc`."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Model, UserData
from idcf.models.layers.cache import TensorCache
from idcf.models.layers.edge_index import build_edge_index, edge_index_problem, find_edges
from idcf.models.layers.ragged import split_by_level, transpose
from idcf.paper.layers.level_messages import BilinearDecoder, LevelMessages
from idcf.paper.layers.rating_levels import expected_rating, level_cross_entropy
from idcf.paper.model_options import GCMCSoftmaxConfig
from idcf.types import Batch, Domain, LossTerms, Ragged, Users


class GCMCSoftmax(Model):
    """z = W ReLU(Σ_r Σ_j W_r x_j / c_ij) on both sides, W shared; logits z_uᵀ Q_r z_i.

    Items receive messages from the users of the training graph only, so new users are not scored.
    """

    inductive: ClassVar[bool] = False
    user_data: ClassVar[UserData] = "rows"  # the training graph
    levels: Tensor  # [L]
    raters: Tensor  # this and the next three are the fields of `EdgeIndex`
    starts: Tensor
    edges: Tensor
    edge_level: Tensor
    user_count: Tensor  # [U]: number of ratings of each user
    item_count: Tensor  # [I]: number of ratings of each item

    def __init__(self, config: GCMCSoftmaxConfig, domain: Domain) -> None:
        super().__init__()
        self.config = config
        self.n_items, self.n_users = domain.n_items, domain.n_users
        n_levels, stack = len(domain.levels), config.accumulate == "stack"
        self.from_items = LevelMessages(n_levels, domain.n_items, config.hidden, stack=stack)
        self.from_users = LevelMessages(n_levels, domain.n_users, config.hidden, stack=stack)
        self.dense = nn.Linear(self.from_items.size, config.embedding_size, bias=False)
        nn.init.xavier_uniform_(self.dense.weight)
        self.head = BilinearDecoder(n_levels, config.embedding_size, config.bases)
        levels = torch.tensor(domain.levels)
        self.register_buffer("levels", levels)
        for name, value in build_edge_index(domain, levels)._asdict().items():
            self.register_buffer(name, value)
        user_count = torch.bincount(domain.raters.indices, minlength=domain.n_users)
        self.register_buffer("user_count", user_count.float())
        self.register_buffer("item_count", domain.raters.lengths().float())
        self._graph_cache: TensorCache[tuple[Ragged[None], Ragged[None]]] = TensorCache()

    def index_problem(self) -> str:
        """Return what is wrong with the training graph; "" if they can be used."""
        return edge_index_problem(self, self.n_items, self.n_users, len(self.levels))

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the expected rating of items [M, K] for users owner [M]: [M, K]."""
        return expected_rating(self.level_logits(users, items, owner), self.levels)

    def score_catalog(self, users: Users) -> Tensor:
        """Return the expected rating of every item under the softmax over levels: [B, I]."""
        logits = self.head.score_all_pairs(self._embed_users(users), self._embed_items())
        return expected_rating(logits, self.levels)

    def loss_terms(self, batch: Batch) -> LossTerms:
        """Return the cross-entropy of the rating levels."""
        return level_cross_entropy(self.level_logits, self.levels, batch)

    def level_logits(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        """Return the logits of the levels for items [M, K] of users owner [M]: [M, K, L]."""
        user = self._embed_users(users).index_select(0, owner)
        if self.training and self.config.hide_target:
            item = self._embed_items(items, users.ids.index_select(0, owner))
        else:
            item = self._embed_items()[items]
        out: Tensor = self.head(user, item)
        return out

    def _embed_users(self, users: Users) -> Tensor:
        """Return z of B users from the items of their histories: [B, D]."""
        self.require_known_users(users)
        table = self.from_items.message_table(self._message_scale(self.item_count))
        rows = self.from_items.message_rows(split_by_level(users.history.as_ragged(), self.levels))
        messages = self.from_items.gather(table, rows)
        return self._embed_messages(messages, users.history.lengths())

    def _embed_items(
        self, items: Tensor | None = None, exclude_users: Tensor | None = None
    ) -> Tensor:
        """Return z of every item [I, D]; or of items [M, K] as if user exclude_users[m] had not
        rated them [M, K, D], which is exact: the user's message is subtracted from the sum."""
        table = self.from_users.message_table(self._message_scale(self.user_count))
        rows, reverse = self._graph_cache.get(self.raters, self._both_directions)
        messages, counts = self.from_users.gather(table, rows, reverse), self.item_count
        if items is not None and exclude_users is not None:
            edge = find_edges(self.edges, self.n_users, exclude_users, items)
            level = self.edge_level[edge.position]
            target_message = self.from_users.edge_message(table, level, edge.user)
            messages = messages[items] - target_message * edge.exists[..., None]
            counts = counts[items] - edge.exists.float()
        return self._embed_messages(messages, counts)

    def _both_directions(self) -> tuple[Ragged[None], Ragged[None]]:
        """Return the training graph as rows of each item, and its transpose."""
        rows = self.from_users.message_rows(Ragged(self.raters, None, self.starts))
        return rows, transpose(rows, self.n_users * len(self.levels)).rows

    def _embed_messages(self, messages: Tensor, counts: Tensor) -> Tensor:
        """Return z of nodes with these sums of messages and numbers of neighbours."""
        counts = counts.clamp(min=1)[..., None]
        hidden = (messages / (counts.sqrt() if self.config.symmetric else counts)).relu()
        out: Tensor = self.dense(F.dropout(hidden, self.config.dropout, self.training))
        return out

    def _message_scale(self, counts: Tensor) -> Tensor | None:
        """Return the factor of each node's messages; node dropout drops all of them or none."""
        scale = counts.clamp(min=1).rsqrt() if self.config.symmetric else None
        if not (self.training and self.config.node_dropout):
            return scale
        ones = torch.ones_like(counts) if scale is None else scale
        return F.dropout(ones, self.config.node_dropout)
