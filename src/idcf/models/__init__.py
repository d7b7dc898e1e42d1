"""The models, one row each. To add one: write its file, add its row.

A row says how a name becomes a model: its class, its options, and either the solver in
`train.solvers` that fits it, or the backbone it is wrapped round, or neither: then it is trained
by gradient. `grid` lists the values that are tried on held-out users before the final fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from idcf import config
from idcf.errors import ConfigError, unknown
from idcf.models.base import (
    Backbone,
    Graded,
    Model,
    Penalised,
    Posterior,
    Tabled,
    TwoTower,
    Variational,
    Wrapper,
)
from idcf.models.baselines import (
    Bias,
    BiasConfig,
    FoldIn,
    FoldInConfig,
    ItemItem,
    ItemItemConfig,
    Popularity,
    PopularityConfig,
)
from idcf.models.bayes import Bayes, BayesConfig
from idcf.models.bomic import Bomic, BomicConfig
from idcf.models.feae import FEAE, FEAEConfig
from idcf.models.fism import FISM, FISMConfig
from idcf.models.gcmc import GCMC, GCMCConfig
from idcf.models.gcmc_softmax import GCMCSoftmax, GCMCSoftmaxConfig
from idcf.models.idcf import IDCF, IDCFConfig
from idcf.models.igmc import IGMC, IGMCConfig
from idcf.models.mf import Factor, FactorConfig
from idcf.models.mult_vae import MultVAE, MultVAEConfig
from idcf.models.ngcf import NGCF, NGCFConfig
from idcf.models.nimc import Nimc, NimcConfig
from idcf.models.odds import Odds, OddsConfig
from idcf.models.pinsage import PinSage, PinSageConfig
from idcf.models.trans_user import TransUser, TransUserConfig

__all__ = [
    "IDCF",
    "MODELS",
    "Backbone",
    "Entry",
    "Graded",
    "Model",
    "Penalised",
    "Posterior",
    "Tabled",
    "TwoTower",
    "Variational",
    "Wrapper",
    "configure",
    "entry",
    "require_option",
    "stand_in",
]


@dataclass(frozen=True)
class Entry:
    build: Callable[..., Model]  # (config, domain), or (config, backbone, keys) with a backbone
    config: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None
    solver: str | None = None
    like: str | None = None  # the row whose presets hold for this one, too
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    implicit_grid: Mapping[str, tuple[Any, ...]] | None = None  # the same, without ratings
    ratings_only: bool = False
    implicit_only: bool = False
    implicit: str | None = None  # the row that stands in where there are no ratings

    def tries(self, implicit: bool) -> Mapping[str, tuple[Any, ...]]:
        """The grid for this kind of data."""
        return self.grid if self.implicit_grid is None or not implicit else self.implicit_grid


_STRENGTH = (2.0, 3.0, 5.0, 8.0, 12.0)

MODELS: dict[str, Entry] = {
    "popularity": Entry(Popularity, PopularityConfig, solver="popularity"),
    "item-mean": Entry(
        Bias, BiasConfig, {"strength": float("inf")}, solver="bias", ratings_only=True
    ),
    "bias": Entry(
        Bias,
        BiasConfig,
        solver="bias",
        grid={"strength": _STRENGTH},
        ratings_only=True,
    ),
    "item-knn": Entry(
        ItemItem,
        ItemItemConfig,
        solver="item_knn",
        grid={"neighbours": (20, 50, 100), "reg": (10.0, 100.0)},
        implicit_grid={"neighbours": (20, 50, 200), "reg": (0.0, 3.0, 30.0)},
    ),
    "ease": Entry(
        ItemItem,
        ItemItemConfig,
        {"normalise": False, "neighbours": 4000},
        solver="ease",
        grid={"reg": (50.0, 200.0, 500.0, 1000.0, 2000.0)},
        implicit_grid={"neighbours": (200,), "reg": (10.0, 30.0, 100.0, 300.0)},
    ),
    "als": Entry(
        FoldIn,
        FoldInConfig,
        solver="als",
        grid={"embedding_size": (8, 16), "reg": (5.0, 10.0, 20.0)},
        implicit_grid={"embedding_size": (8, 64), "alpha": (3.0, 10.0), "reg": (1.0, 10.0)},
    ),
    "idcf-bayes": Entry(
        Bayes, BayesConfig, solver="bayes", ratings_only=True, implicit="idcf-odds"
    ),
    "idcf-odds": Entry(Odds, OddsConfig, solver="odds", implicit_only=True),
    "fism": Entry(FISM, FISMConfig),
    "mult-vae": Entry(MultVAE, MultVAEConfig),
    "bomic": Entry(
        Bomic,
        BomicConfig,
        solver="bomic",
        grid={"reg": (0.6, 0.8, 1.0), "user_reg": (0.15, 0.3)},
        ratings_only=True,
    ),
    "nimc": Entry(Nimc, NimcConfig, ratings_only=True),
    "pmf": Entry(Factor, FactorConfig, {"head": "dot"}),
    "nnmf": Entry(Factor, FactorConfig, {"head": "perceptron"}),
    "nnmf-original": Entry(
        Factor,
        FactorConfig,
        {"head": "concat", "embedding_size": 60, "hidden": (50, 50, 50)},
    ),
    "gcmc": Entry(GCMC, GCMCConfig),
    "f-eae": Entry(FEAE, FEAEConfig, ratings_only=True),
    "gcmc-softmax": Entry(GCMCSoftmax, GCMCSoftmaxConfig, ratings_only=True),
    "igmc": Entry(IGMC, IGMCConfig, ratings_only=True),
    "ngcf": Entry(NGCF, NGCFConfig, implicit_only=True),
    "pinsage": Entry(PinSage, PinSageConfig, implicit_only=True),
    "idcf-dot": Entry(IDCF, IDCFConfig, backbone="pmf"),
    "idcf-nn": Entry(IDCF, IDCFConfig, backbone="nnmf"),
    "idcf-gc": Entry(IDCF, IDCFConfig, backbone="gcmc"),
    # the paper's ablations, of idcf-nn
    "nnmf-rd": Entry(
        Factor, FactorConfig, {"head": "perceptron", "random_items": True}, like="nnmf"
    ),
    "rd-item": Entry(IDCF, IDCFConfig, backbone="nnmf-rd", like="idcf-nn"),
    "meta-path": Entry(IDCF, IDCFConfig, {"reach": "meta-path"}, backbone="nnmf", like="idcf-nn"),
    "trans-user": Entry(TransUser, TransUserConfig, backbone="nnmf"),
    "trans-user-ridge": Entry(
        TransUser,
        TransUserConfig,
        backbone="nnmf",
        grid={"reg": (1.0, 3.0, 10.0, 30.0, 100.0), "bias_reg": (3.0, 8.0)},
        implicit_grid={"reg": (0.1, 1.0, 10.0, 100.0), "bias_reg": (1.0,)},
    ),
}


def entry(name: str) -> Entry:
    if name not in MODELS:
        raise ConfigError(unknown("model", name, MODELS))
    return MODELS[name]


def stand_in(name: str, implicit: bool) -> str:
    """The row that answers for this name, on data of this kind; an error where none does."""
    found = entry(name)
    if implicit and found.implicit:
        return found.implicit
    if implicit and found.ratings_only:
        raise ConfigError(f"model {name!r} needs ratings; use 'popularity' for implicit feedback")
    if not implicit and found.implicit_only:
        raise ConfigError(f"model {name!r} is for data without ratings; use 'idcf-bayes' for both")
    return name


def require_option(name: str, option: str) -> None:
    """A model that has no such option is refused, and those that have it are named."""
    able = [x for x, row in MODELS.items() if option in {f.name for f in fields(row.config)}]
    if name not in able:
        what = option.replace("_", " ")
        verb = "does" if len(able) == 1 else "do"
        raise ConfigError(f"model {name!r} reads no {what}; {' and '.join(able)} {verb}")


def configure(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """The options of a model from plain values. Unknown keys and wrong types are errors."""
    found = entry(name)
    return config.read(found.config, {**found.defaults, **(options or {})}, f"model {name!r}")
