"""What is solved, not descended. A solver turns options and a table into a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idcf.data.interactions import Interactions
from idcf.models import Model
from idcf.train.solvers.als import als
from idcf.train.solvers.bayes import bayes
from idcf.train.solvers.bomic import bomic
from idcf.train.solvers.counts import bias, popularity
from idcf.train.solvers.item_item import ease, item_knn
from idcf.train.solvers.odds import odds
from idcf.train.solvers.work import Work

__all__ = ["SOLVERS", "Solver", "Work"]

Solver = Callable[[Any, Interactions, Work], Model]

SOLVERS: dict[str, Solver] = {
    "popularity": popularity,
    "bias": bias,
    "item_knn": item_knn,
    "ease": ease,
    "als": als,
    "bayes": bayes,
    "bomic": bomic,
    "odds": odds,
}
