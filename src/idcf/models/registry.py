"""The registry of models: a name, the class that scores, its options and how it is fitted.

To add a model to the library, write its file and add its row to `MODELS`. To add one from another
package, publish a mapping of names to `ModelEntry` under the entry-point group `idcf.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from idcf import config
from idcf.errors import ConfigError, unknown
from idcf.models.base import Model
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
from idcf.models.gcmc import GCMC, GCMCConfig
from idcf.models.idcf import IDCF, IDCFConfig
from idcf.models.matrix_factorization import Factor, FactorConfig
from idcf.models.odds import Odds, OddsConfig

ENTRY_POINT_GROUP = "idcf.models"
_SOLVERS = "idcf.training.solvers"


@dataclass(frozen=True)
class ModelEntry:
    """One row of the registry.

    `solver` is a function (config, table, context) -> model, or where to import it from as
    "module:function", so that loading a saved model imports no training code. A row without a
    solver is trained by gradient; with a `backbone`, round that trained model.
    """

    model_class: Callable[..., Model]  # (config, domain), or (config, backbone, key users)
    config_class: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None
    solver: Callable[..., Model] | str | None = None
    presets_of: str | None = None  # the row whose presets this one shares
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # tried on held-out users
    implicit_grid: Mapping[str, tuple[Any, ...]] | None = None  # `grid` for implicit feedback
    ratings_only: bool = False
    implicit_only: bool = False
    implicit_model: str | None = None  # the row that replaces this one for implicit feedback
    check_options: Mapping[str, Any] = field(default_factory=dict)  # for the worlds of idcf.testing
    check_loss: Literal["fit", "bpr"] = "fit"  # the loss that idcf.testing trains it with
    learns_item_quality_only: bool = False  # no personal taste: idcf.testing uses its plain world

    def grid_for(self, implicit: bool) -> Mapping[str, tuple[Any, ...]]:
        """Return the grid for this kind of feedback."""
        return self.grid if self.implicit_grid is None or not implicit else self.implicit_grid

    def load_solver(self) -> Callable[..., Model]:
        """Return the solver function, imported if it is given as "module:function"."""
        if self.solver is None:
            raise ConfigError(
                f"{self.model_class.__name__} has no solver: it is trained by gradient"
            )
        if not isinstance(self.solver, str):
            return self.solver
        module, _, function = self.solver.partition(":")
        solver: Callable[..., Model] = getattr(import_module(module), function)
        return solver


_SHRINKAGE_GRID = (2.0, 3.0, 5.0, 8.0, 12.0)

MODELS: dict[str, ModelEntry] = {
    "popularity": ModelEntry(
        Popularity,
        PopularityConfig,
        solver=f"{_SOLVERS}.bias:popularity",
        learns_item_quality_only=True,
    ),
    "item-mean": ModelEntry(
        Bias,
        BiasConfig,
        {"strength": float("inf")},
        solver=f"{_SOLVERS}.bias:bias",
        ratings_only=True,
        learns_item_quality_only=True,
    ),
    "bias": ModelEntry(
        Bias,
        BiasConfig,
        solver=f"{_SOLVERS}.bias:bias",
        grid={"strength": _SHRINKAGE_GRID},
        ratings_only=True,
        learns_item_quality_only=True,
    ),
    "item-knn": ModelEntry(
        ItemItem,
        ItemItemConfig,
        solver=f"{_SOLVERS}.item_item:item_knn",
        grid={"neighbours": (20, 50, 100), "reg": (10.0, 100.0)},
        implicit_grid={"neighbours": (20, 50, 200), "reg": (0.0, 3.0, 30.0)},
        check_options={"reg": 1.0, "neighbours": 20},
    ),
    "ease": ModelEntry(
        ItemItem,
        ItemItemConfig,
        {"normalise": False, "neighbours": 4000},
        solver=f"{_SOLVERS}.item_item:ease",
        grid={"reg": (50.0, 200.0, 500.0, 1000.0, 2000.0)},
        implicit_grid={"neighbours": (200,), "reg": (10.0, 30.0, 100.0, 300.0)},
        check_options={"reg": 50.0, "strength": 20.0},
    ),
    "als": ModelEntry(
        FoldIn,
        FoldInConfig,
        solver=f"{_SOLVERS}.als:als",
        grid={"embedding_size": (8, 16), "reg": (5.0, 10.0, 20.0)},
        implicit_grid={"embedding_size": (8, 64), "alpha": (3.0, 10.0), "reg": (1.0, 10.0)},
        check_options={"reg": 1.0, "embedding_size": 4},
    ),
    "idcf-bayes": ModelEntry(
        Bayes,
        BayesConfig,
        solver=f"{_SOLVERS}.bayes:bayes",
        ratings_only=True,
        implicit_model="idcf-odds",
    ),
    "idcf-odds": ModelEntry(Odds, OddsConfig, solver=f"{_SOLVERS}.odds:odds", implicit_only=True),
    "pmf": ModelEntry(Factor, FactorConfig, {"head": "dot"}, check_options={"embedding_size": 8}),
    "nnmf": ModelEntry(
        Factor,
        FactorConfig,
        {"head": "perceptron"},
        check_options={"embedding_size": 8, "hidden": (16,)},
    ),
    "gcmc": ModelEntry(GCMC, GCMCConfig, check_options={"embedding_size": 8, "hidden": (16,)}),
    "idcf-dot": ModelEntry(IDCF, IDCFConfig, backbone="pmf", check_options={"sample": 24}),
    "idcf-nn": ModelEntry(IDCF, IDCFConfig, backbone="nnmf", check_options={"sample": 24}),
    "idcf-gc": ModelEntry(IDCF, IDCFConfig, backbone="gcmc", check_options={"sample": 24}),
}


@cache
def plugin_models() -> Mapping[str, ModelEntry]:
    """Return the models that installed packages add through the entry-point group."""
    plugins: dict[str, ModelEntry] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        for name, row in point.load().items():
            if name in MODELS or name in plugins:
                raise ConfigError(
                    f"entry point {point.name!r} of {ENTRY_POINT_GROUP} adds a model named "
                    f"{name!r}, which exists already; rename it there"
                )
            plugins[name] = row
    return plugins


def all_models() -> dict[str, ModelEntry]:
    """Return every model by name: those of this package and those of installed plugins."""
    return {**MODELS, **plugin_models()}


def model_entry(name: str) -> ModelEntry:
    """Return the registry's row for a name; plugins are read when the core has no such row."""
    row = MODELS.get(name) or plugin_models().get(name)
    if row is None:
        raise ConfigError(unknown("model", name, all_models()))
    return row


def resolve_model(name: str, implicit: bool) -> str:
    """Return the name of the row that serves `name` on this kind of feedback.

    Raises `ConfigError` if the model cannot be trained on it.
    """
    row = model_entry(name)
    if implicit and row.implicit_model:
        return row.implicit_model
    if implicit and row.ratings_only:
        raise ConfigError(f"model {name!r} needs ratings; use 'popularity' for implicit feedback")
    if not implicit and row.implicit_only:
        raise ConfigError(f"model {name!r} is for data without ratings; use 'idcf-bayes' for both")
    return name


def require_option(name: str, option: str) -> None:
    """Raise `ConfigError`, naming the models that have it, if a model lacks an option."""
    able = [
        model
        for model, row in all_models().items()
        if option in {f.name for f in fields(row.config_class)}
    ]
    if name not in able:
        what = option.replace("_", " ")
        verb = "does" if len(able) == 1 else "do"
        raise ConfigError(f"model {name!r} reads no {what}; {' and '.join(able)} {verb}")


def configure(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return a model's validated config. Unknown options and wrong types raise `ConfigError`."""
    row = model_entry(name)
    return config.read(row.config_class, {**row.defaults, **(options or {})}, f"model {name!r}")
