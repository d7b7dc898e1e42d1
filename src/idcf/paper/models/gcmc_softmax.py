"""GC-MC as first published (van den Berg et al. 2017): messages per rating level, a bilinear
decoder, a softmax over the levels. The IDCF paper's GCMC is another model: row `gcmc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idcf.models.base import Graded
from idcf.models.layers.cache import Kept
from idcf.models.layers.edge_index import find, graph_of
from idcf.models.layers.ragged import per_level, turn
from idcf.paper.layers.gcmc_original import Bilinear, Messages
from idcf.types import Domain, History, Users


@dataclass(frozen=True, kw_only=True)
class GCMCSoftmaxConfig:
    hidden: int = 500  # of the convolution, all levels together where they are stacked
    embedding_size: int = 75
    bases: int = 2
    accumulate: Literal["stack", "sum"] = "stack"  # the levels' messages; sums are ordinal
    symmetric: bool = False  # divide by sqrt(|N_i| |N_j|) and not by |N_i|
    node_dropout: float = 0.7  # share of the nodes that say nothing in a training step
    dropout: float = 0.7  # of the hidden units
    hide_target: bool = True  # a pair's own rating never reaches its own prediction in training


class GCMCSoftmax(Graded):
    """z = W ReLU(Σ_r Σ_j W_r x_j / c_ij) on both sides, W shared; logits z_uᵀ Q_r z_i.

    A node is known by what its neighbours say and has no row of its own, yet items are heard from
    the users of the training graph alone, so nobody new is let in.
    """

    inductive: ClassVar[bool] = False
    levels: Tensor  # [L]
    raters: Tensor  # these four: nn.graph.Graph
    starts: Tensor
    edges: Tensor
    edge_level: Tensor
    user_count: Tensor  # [U] edges of each node
    item_count: Tensor  # [I]

    def __init__(self, config: GCMCSoftmaxConfig, domain: Domain) -> None:
        super().__init__()
        self.config = config
        self.n_items, self.n_users = domain.n_items, domain.n_users
        n_levels, stack = len(domain.levels), config.accumulate == "stack"
        self.from_items = Messages(n_levels, domain.n_items, config.hidden, stack=stack)
        self.from_users = Messages(n_levels, domain.n_users, config.hidden, stack=stack)
        self.dense = nn.Linear(self.from_items.size, config.embedding_size, bias=False)
        nn.init.xavier_uniform_(self.dense.weight)
        self.head = Bilinear(n_levels, config.embedding_size, config.bases)
        levels = torch.tensor(domain.levels)
        self.register_buffer("levels", levels)
        for name, value in graph_of(domain, levels)._asdict().items():
            self.register_buffer(name, value)
        count = torch.bincount(domain.raters.items, minlength=domain.n_users)
        self.register_buffer("user_count", count.float())
        self.register_buffer("item_count", domain.raters.lengths().float())
        self._graph: Kept[tuple[History, History]] = Kept()

    def logits(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        user = self._embed_users(users).index_select(0, owner)
        if not (self.training and self.config.hide_target):
            item = self._embed_items()[items]
        else:
            item = self._embed_items(items, users.ids.index_select(0, owner))
        out: Tensor = self.head(user, item)
        return out

    def rank(self, users: Users) -> Tensor:
        logits = self.head.all(self._embed_users(users), self._embed_items())
        return logits.softmax(-1) @ self.levels

    def _embed_users(self, users: Users) -> Tensor:
        """z of B users, heard from the items of their histories: [B, D]."""
        self.require_known(users)
        table = self.from_items.table(self._voice(self.item_count))
        rows = self.from_items.rows(per_level(users.history, self.levels))
        heard = self.from_items.gather(table, rows)
        return self._embed(heard, users.history.lengths())

    def _embed_items(self, items: Tensor | None = None, without: Tensor | None = None) -> Tensor:
        """z of every item [I, D]; or of items [M, K] as if user without[m] had not rated them,
        which is exact: their messages are taken out of the sums."""
        table = self.from_users.table(self._voice(self.user_count))
        rows, back = self._graph.get(self.raters, self._sides)
        heard, counts = self.from_users.gather(table, rows, back), self.item_count
        if items is not None and without is not None:
            edge = find(self.edges, self.n_users, without, items)
            said = self.from_users.of_edge(table, self.edge_level[edge.at], edge.user)
            heard = heard[items] - said * edge.there[..., None]
            counts = counts[items] - edge.there.float()
        return self._embed(heard, counts)

    def _sides(self) -> tuple[History, History]:
        """The training graph, seen from the items and from the users' messages."""
        rows = self.from_users.rows(History(self.raters, self.raters, self.starts))
        return rows, turn(rows, self.n_users * len(self.levels)).history

    def _embed(self, heard: Tensor, counts: Tensor) -> Tensor:
        counts = counts.clamp(min=1)[..., None]
        hidden = (heard / (counts.sqrt() if self.config.symmetric else counts)).relu()
        out: Tensor = self.dense(F.dropout(hidden, self.config.dropout, self.training))
        return out

    def _voice(self, counts: Tensor) -> Tensor | None:
        """How loud each node is in this step: all its messages are dropped, or none."""
        loud = counts.clamp(min=1).rsqrt() if self.config.symmetric else None
        if not (self.training and self.config.node_dropout):
            return loud
        ones = torch.ones_like(counts) if loud is None else loud
        return F.dropout(ones, self.config.node_dropout)
