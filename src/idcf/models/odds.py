"""The implicit side of the posterior: the chance that an item is among a newcomer's next few.

What kind of history it is stands for the prior, what it says of each item is the evidence, and a
logit joins them, fitted on key users who were hidden (`train.solvers.odds`):

    logit P(i | H) = uᵀMu + uᵀNv + v'ᵀOv'

u  1, the share of H that no key user had, the mean log count of H, log(1 + n); the middle two
   shrunk to what is usual, so that an empty history gets the prior.
v  is i unknown to the key users?, and, v', log(1 + n_i), when people come to i, and two
   relations of i to H:
   spectral  the log of how often i goes with H more than by chance, in the first directions
   kin       (Σ_j∈H K_ji^p)^1/p on a scale of logs; K is half EASE, half shrunk cosines, and with
             p > 1 a few near items of H count for more than many that are far
An item that no key user had has no relations: its chance depends on the kind of history alone.

When people come to an item is told by the order of the key users' rows; the order of H itself
says nothing. Relations are sums over people, so nobody's row is stored. Scores are probabilities,
comparable between people; of two items the likelier has the higher one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from idcf.models.base import Model
from idcf.models.layers.item_matrix import Sparse
from idcf.models.layers.ragged import pool, segment_sum
from idcf.types import Domain, History, Users

SIDE = 4  # features of a history
RELATIONS = 4  # of an item with readers: v'
_PAIRS = SIDE * (SIDE + 1) // 2


@dataclass(frozen=True, kw_only=True)
class OddsConfig:
    rank: int = 32  # directions of the spectral relation
    damp: float = 1.0  # added to degrees there: isolated people make no directions
    reg: float = 100.0  # ridge of EASE
    neighbours: int = 200  # that may speak for an item, in EASE
    support: float = 5.0  # readers that cosines are shrunk by
    nearest: int = 50  # that may speak for an item, by their cosine
    power: float = 1.5  # p
    floor: float = 0.1  # least lift of the spectral relation
    scale: float = 0.1  # kinship that counts as one step of its log; 1 is that of the next of kin
    prior: float = 2.0  # items that what is usual is worth, in the description of a history
    horizon: int = 10  # how many items "the next few" are
    lengths: tuple[int, int] = (0, 19)  # of the histories the logit is learnt for
    cut: Literal["random", "last"] = "random"  # which of somebody's items are "the next few"
    folds: int = 5  # people are asked by relations that never saw them
    people: int = 1000  # asked at most, of as many folds as that takes
    negatives: int = 100  # other items each of them is asked about
    ridge: float = 1.0  # of the logit


class Evidence(NamedTuple):
    """What a history says, before any item is looked at."""

    user: Tensor  # [B, SIDE]
    kin: Tensor  # [B, I]
    direction: Tensor  # [B, D]
    known: Tensor  # [B]: items that key users had


class Odds(Model):
    """A calibrated logit of counts, spectral and linear relation."""

    inductive: ClassVar[bool] = True
    readers: Tensor  # [I]: n_i
    late: Tensor  # [I]: when people come to an item, in histories; 0 is the middle
    into: Tensor  # [I, D]
    out: Tensor  # [I, D]
    usual: Tensor  # [2]: of the description
    own: Tensor  # []: 1 where the people who ask have a row in the table, which must not vouch
    coefficients: Tensor  # [C]: of M, N and O, upper halves of what is symmetric

    def __init__(self, config: OddsConfig, domain: Domain) -> None:
        super().__init__()
        self.n_items, self.rates, self.config = domain.n_items, False, config
        self.kin = Sparse(domain.n_items)  # K to the power p
        self.crowd = 1.0  # people that each reader stands for: some are hidden during the fit
        products = RELATIONS * (RELATIONS + 1) // 2
        shapes = {
            "readers": (self.n_items,),
            "late": (self.n_items,),
            "into": (self.n_items, config.rank),
            "out": (self.n_items, config.rank),
            "usual": (2,),
            "own": (),
            "coefficients": (_PAIRS + SIDE * (1 + RELATIONS) + products,),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape))

    def rank(self, users: Users) -> Tensor:
        return self.logits(users.history).sigmoid()

    def forward(self, users: Users, items: Tensor, owner: Tensor) -> Tensor:
        return self.logits(users.history, items, owner).sigmoid()

    def logits(
        self, history: History, items: Tensor | None = None, owner: Tensor | None = None
    ) -> Tensor:
        """Of the whole catalogue [B, I], or of `items` [M, K] for user owner[m]."""
        told = self.read(history)
        if items is None or owner is None:
            return self.join(told.user, *self.relate(told))
        return self.join(told.user[owner], *self.relate(told, items, owner))

    def read(self, history: History) -> Evidence:
        """Where people are in the table, they are described without their own row: it is as if
        each of their items had one reader less."""
        items, n = history.items, history.lengths().to(self.readers.dtype)
        owner = history.owner()
        readers = (self.readers[items] - self.own).clamp(min=0)
        known, strength = (readers > 0).to(n.dtype), self.config.prior
        usual = strength * self.usual
        user = torch.stack(
            [
                torch.ones_like(n),
                (segment_sum(1 - known, owner, len(n)) + usual[0]) / (n + strength),
                (segment_sum(self.fame(readers), owner, len(n)) + usual[1]) / (n + strength),
                n.log1p(),
            ],
            1,
        )
        return Evidence(
            user,
            self.kin.pool(history) ** (1 / self.config.power),
            pool(self.into, history, known),
            segment_sum(known, owner, len(n)),
        )

    def fame(self, readers: Tensor) -> Tensor:
        """log(1 + n)."""
        return (readers * self.crowd).log1p()

    def relate(
        self, told: Evidence, items: Tensor | None = None, owner: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Which items are unknown, and v' of each."""
        kin, known = told.kin, told.known[:, None]
        readers, late = self.readers, self.late
        if items is None or owner is None:
            met = told.direction @ self.out.T
        else:
            kin, known = kin[owner[:, None], items], known[owner]
            readers, late = readers[items], late[items]
            met = torch.einsum("md,mkd->mk", told.direction[owner], self.out[items])
        chance = known * readers / self.readers.sum().clamp(min=1)
        there = chance > 0
        spectral = torch.where(there, met / torch.where(there, chance, 1.0), 1.0)
        spectral = spectral.clamp(min=self.config.floor).log()
        kin = (kin / self.config.scale).log1p()
        late = late * (known > 0)  # who comes with nothing is shown what is popular
        return (readers == 0).to(kin.dtype), [self.fame(readers), late, spectral, kin]

    def join(self, user: Tensor, unknown: Tensor, relations: list[Tensor]) -> Tensor:
        """The quadratic form, the user's side first: one number per user and feature."""
        j, k = torch.triu_indices(SIDE, SIDE, device=user.device)
        ends = (_PAIRS, _PAIRS + SIDE * (1 + RELATIONS))
        of_user, of_both, of_item = self.coefficients.tensor_split(ends)
        both = (user @ of_both.view(SIDE, 1 + RELATIONS)).T[..., None]  # [1 + RELATIONS, B, 1]
        score = ((user[:, j] * user[:, k]) @ of_user)[:, None] + both[0] * unknown
        place = 0
        for n, own in enumerate(relations):
            inner = both[n + 1]
            for other in relations[n:]:
                inner = inner + of_item[place] * other
                place += 1
            score = score + own * inner
        return score


def design(user: Tensor, unknown: Tensor, relations: list[Tensor]) -> Tensor:
    """Rows whose product with the coefficients is what `Odds.join` gives: [M, C] for M pairs."""
    j, k = torch.triu_indices(SIDE, SIDE)
    s, t = torch.triu_indices(RELATIONS, RELATIONS)
    item = torch.stack([unknown, *relations], 1)
    both = (user[:, :, None] * item[:, None]).flatten(1)
    related = item[:, 1:]
    return torch.cat([user[:, j] * user[:, k], both, related[:, s] * related[:, t]], 1)
