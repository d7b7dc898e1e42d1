"""PMF and NNMF: a table of users, a table of items, and a head.

PMF: Salakhutdinov & Mnih 2007. NNMF in the form the IDCF paper gives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from idcf.models.base import Backbone
from idcf.nn.heads import Dot, Head, Perceptron
from idcf.nn.table import Table
from idcf.types import Domain, Embedded, Users


@dataclass(frozen=True, kw_only=True)
class FactorConfig:
    embedding_size: int = 16
    head: Literal["dot", "perceptron"] = "dot"
    hidden: tuple[int, ...] = (32, 32)
    center: bool = True  # add the mean rating; the published code does not
    random_items: bool = False  # Q stays as it was drawn: what is then learnt does without it


class Factor(Backbone):
    """f(p, q) + b_u + b_i + μ."""

    reads_history: ClassVar[bool] = False

    def __init__(self, config: FactorConfig, domain: Domain) -> None:
        super().__init__()
        self.mean = domain.mean if config.center else 0.0
        self.n_items = domain.n_items
        self.rates = not domain.implicit
        self.users = Table(domain.n_users, config.embedding_size)
        self.items = Table(domain.n_items, config.embedding_size)
        self.items.vector.requires_grad_(not config.random_items)
        dot = config.head == "dot"
        self.head: Head = Dot() if dot else Perceptron(config.embedding_size, config.hidden)

    def compose(self, own: Embedded, users: Users) -> Embedded:
        return own

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        found: Embedded = self.items(items)
        return found
