"""PMF and NNMF: a table of users, a table of items, and a head.

PMF: Salakhutdinov & Mnih 2007. NNMF in the form the IDCF paper gives it, and (`concat`) as first
published by Dziugaite & Roy 2015. The latter took turns between network and latents; one step for
both finds the same minimum and is what is done here. Biases and μ stay, as in every row here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from idcf.models.base import Backbone
from idcf.models.layers.embedding import Table
from idcf.models.layers.heads import Concat, Dot, Head, Perceptron
from idcf.types import Domain, Embedded, Users


@dataclass(frozen=True, kw_only=True)
class FactorConfig:
    embedding_size: int = 16
    plain_size: int = 10  # of the latents that `concat` does not multiply
    head: Literal["dot", "perceptron", "concat"] = "dot"
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
        size = config.embedding_size
        wide = size + config.plain_size if config.head == "concat" else size
        self.users = Table(domain.n_users, wide)
        self.items = Table(domain.n_items, wide)
        self.items.vector.requires_grad_(not config.random_items)
        self.head: Head = _head(config)

    def compose(self, own: Embedded, users: Users) -> Embedded:
        return own

    def embed_items(self, items: Tensor, without: Tensor | None = None) -> Embedded:
        found: Embedded = self.items(items)
        return found


def _head(config: FactorConfig) -> Head:
    size, hidden = config.embedding_size, config.hidden
    if config.head == "concat":
        return Concat(config.plain_size, size, hidden)
    return Dot() if config.head == "dot" else Perceptron(size, hidden)
