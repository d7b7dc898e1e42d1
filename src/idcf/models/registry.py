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
from itertools import product
from typing import Any, Literal, get_args

from idcf import config
from idcf.errors import ConfigError, unknown_name_message
from idcf.models.base import Backbone, Model, UserData
from idcf.models.baselines import (
    BiasConfig,
    BiasModel,
    FoldInConfig,
    FoldInModel,
    ItemItemConfig,
    ItemItemModel,
    PopularityConfig,
    PopularityModel,
    SlimConfig,
)
from idcf.models.bayes import BayesConfig, BayesModel
from idcf.models.gcmc import GCMC, GCMCConfig
from idcf.models.idcf import IDCF, IDCFConfig
from idcf.models.matrix_factorization import MatrixFactorization, MatrixFactorizationConfig
from idcf.models.odds import OddsConfig, OddsModel
from idcf.models.take_up import TakeUpConfig, TakeUpModel
from idcf.types import Domain, Users

ENTRY_POINT_GROUP = "idcf.models"
_SOLVERS = "idcf.training.solvers"
_SHARDED = "idcf.training.sharded"


@dataclass(frozen=True)
class ModelEntry:
    """One row of the registry.

    Attributes
    ----------
    model_class
        The class that scores; `build` or, for a row with a backbone, `build_around` makes one.
    config_class
        The dataclass of the model's options.
    defaults
        Options of this row that differ from the defaults of `config_class`.
    backbone
        The name of the model that is trained first and then wrapped.
    solver
        A function (config, table, context) -> model, or where to import it from as
        "module:function", so that loading a saved model imports no training code. A row without a
        solver is trained by gradient.
    sharded_solver
        A function (config, training, domain, context) -> model that reads a table by passes over
        its shards, or where to import it from; see `idcf.training.sharded`.
    presets_of
        The row whose presets this one shares.
    grid
        Options and their values that training tries on held-out users.
    implicit_grid
        The grid for implicit feedback, if it differs.
    implicit_grid_metric
        What the grid is searched for with implicit feedback: the NDCG of lists, or the AUC against
        random items.
    ratings_only, implicit_only
        The model reads only this kind of feedback.
    reads_weights
        The solver reads the weights of implicit feedback; a table with weights is refused by the
        others.
    implicit_model
        The name of the row that replaces this one for implicit feedback.
    take_up_model
        The name of the row that says how likely an item is taken up, for lists of a model of
        ratings; see `idcf.inference.benefit`.
    check_options
        Options with which `idcf.testing` trains the model in its synthetic worlds.
    check_loss
        The loss with which `idcf.testing` trains the model.
    learns_item_quality_only
        The ranking does not depend on the user: `idcf.testing` uses a world of one shared taste.
    learns_from_features
        Taste is learnt from features: `idcf.testing` uses a world that has them.
    """

    model_class: type[Model]
    config_class: type
    defaults: Mapping[str, Any] = field(default_factory=dict)
    backbone: str | None = None
    solver: Callable[..., Model] | str | None = None
    sharded_solver: Callable[..., Model] | str | None = None
    presets_of: str | None = None
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    implicit_grid: Mapping[str, tuple[Any, ...]] | None = None
    implicit_grid_metric: Literal["ndcg", "auc"] = "ndcg"
    ratings_only: bool = False
    implicit_only: bool = False
    reads_weights: bool = False
    implicit_model: str | None = None
    take_up_model: str | None = None
    check_options: Mapping[str, Any] = field(default_factory=dict)
    check_loss: Literal["fit", "bpr"] = "fit"
    learns_item_quality_only: bool = False
    learns_from_features: bool = False

    @property
    def inductive(self) -> bool:
        """Whether the model scores new users."""
        return self.model_class.inductive

    def build(self, config: Any, domain: Domain) -> Model:
        """Return an untrained model of a row without a backbone, with a config of `configure`."""
        return self.model_class(config, domain)

    def build_around(self, config: Any, backbone: Model, key_users: Users) -> Model:
        """Return an untrained model of a row with a backbone, which is on the device of
        `key_users`.

        Raises `ConfigError` if the model given as `backbone` cannot be wrapped.
        """
        if not isinstance(backbone, Backbone):
            raise ConfigError(
                f"{type(backbone).__name__} cannot be wrapped by {self.model_class.__name__}: it "
                "is no Backbone"
            )
        return self.model_class(config, backbone, key_users)

    def grid_for(self, implicit: bool) -> Mapping[str, tuple[Any, ...]]:
        """Return the grid for this kind of feedback."""
        return self.grid if self.implicit_grid is None or not implicit else self.implicit_grid

    def expand_grid(self, options: Mapping[str, Any], implicit: bool) -> list[dict[str, Any]]:
        """Return `options` with every combination of the grid over options not given."""
        grid = {k: v for k, v in self.grid_for(implicit).items() if k not in options}
        return [{**options, **dict(zip(grid, x, strict=True))} for x in product(*grid.values())]

    def load_solver(self) -> Callable[..., Model]:
        """Return the solver function, imported if it is given as "module:function".

        Raises `ConfigError` if the model is trained by gradient.
        """
        if self.solver is None:
            raise ConfigError(
                f"{self.model_class.__name__} has no solver: it is trained by gradient"
            )
        return _import_function(self.solver)

    def load_sharded_solver(self, name: str) -> Callable[..., Model]:
        """Return the solver over shards.

        Raises `ConfigError`, with the name of the row, if the model needs the table in memory.
        """
        if self.sharded_solver is None:
            names = ", ".join(sorted(x for x, entry in MODELS.items() if entry.sharded_solver))
            raise ConfigError(
                f"{name!r} cannot be trained over shards; leave out the engine, so that the table "
                f"is read into memory, or take one of {names}"
            )
        return _import_function(self.sharded_solver)


def _import_function(function: Callable[..., Model] | str) -> Callable[..., Model]:
    """Return a function that may be given as "module:function"."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    imported: Callable[..., Model] = getattr(import_module(module), name)
    return imported


_SHRINKAGE_GRID = (2.0, 3.0, 5.0, 8.0, 12.0)

MODELS: dict[str, ModelEntry] = {
    "popularity": ModelEntry(
        PopularityModel,
        PopularityConfig,
        solver=f"{_SOLVERS}.bias:fit_popularity",
        sharded_solver=f"{_SHARDED}.baselines:fit_popularity",
        reads_weights=True,
        learns_item_quality_only=True,
    ),
    "item-mean": ModelEntry(
        BiasModel,
        BiasConfig,
        {"shrinkage": float("inf")},
        solver=f"{_SOLVERS}.bias:fit_bias",
        sharded_solver=f"{_SHARDED}.baselines:fit_bias",
        ratings_only=True,
        learns_item_quality_only=True,
    ),
    "bias": ModelEntry(
        BiasModel,
        BiasConfig,
        solver=f"{_SOLVERS}.bias:fit_bias",
        sharded_solver=f"{_SHARDED}.baselines:fit_bias",
        grid={"shrinkage": _SHRINKAGE_GRID},
        ratings_only=True,
        learns_item_quality_only=True,
    ),
    "item-knn": ModelEntry(
        ItemItemModel,
        ItemItemConfig,
        solver=f"{_SOLVERS}.item_item:fit_item_knn",
        sharded_solver=f"{_SHARDED}.baselines:fit_item_knn",
        reads_weights=True,
        grid={"neighbors": (20, 50, 100), "reg": (10.0, 100.0)},
        implicit_grid={"neighbors": (20, 50, 200), "reg": (0.0, 3.0, 30.0)},
        check_options={"reg": 1.0, "neighbors": 20},
    ),
    "ease": ModelEntry(
        ItemItemModel,
        ItemItemConfig,
        {"normalize": False, "neighbors": 4000},
        solver=f"{_SOLVERS}.item_item:fit_ease",
        sharded_solver=f"{_SHARDED}.baselines:fit_ease",
        reads_weights=True,
        grid={"reg": (50.0, 200.0, 500.0, 1000.0, 2000.0)},
        implicit_grid={"neighbors": (200,), "reg": (10.0, 30.0, 100.0, 300.0)},
        check_options={"reg": 50.0, "shrinkage": 20.0},
    ),
    "slim": ModelEntry(
        ItemItemModel,
        SlimConfig,
        {"neighbors": 100, "reg": 30.0},
        solver=f"{_SOLVERS}.slim:fit_slim",
        implicit_grid={"l1_reg": (0.3, 3.0), "reg": (3.0, 30.0, 300.0)},
        implicit_only=True,
        check_options={"neighbors": 20, "l1_reg": 0.1, "reg": 1.0},
    ),
    "als": ModelEntry(
        FoldInModel,
        FoldInConfig,
        solver=f"{_SOLVERS}.als:fit_als",
        sharded_solver=f"{_SHARDED}.baselines:fit_als",
        reads_weights=True,
        grid={"embedding_size": (8, 16), "reg": (5.0, 10.0, 20.0)},
        implicit_grid={"embedding_size": (8, 64), "alpha": (3.0, 10.0), "reg": (1.0, 10.0)},
        check_options={"reg": 1.0, "embedding_size": 4},
    ),
    "idcf-bayes": ModelEntry(
        BayesModel,
        BayesConfig,
        solver=f"{_SOLVERS}.bayes:fit_bayes",
        sharded_solver=f"{_SHARDED}.sampled:fit_bayes",
        ratings_only=True,
        implicit_model="idcf-takeup",
        take_up_model="idcf-takeup",
    ),
    "idcf-odds": ModelEntry(
        OddsModel,
        OddsConfig,
        solver=f"{_SOLVERS}.odds:fit_odds",
        sharded_solver=f"{_SHARDED}.sampled:fit_odds",
        implicit_only=True,
    ),
    "idcf-takeup": ModelEntry(
        TakeUpModel,
        TakeUpConfig,
        solver=f"{_SOLVERS}.take_up:fit_take_up",
        sharded_solver=f"{_SHARDED}.cooccurrences:fit_take_up",
        implicit_only=True,
        reads_weights=True,
    ),
    "pmf": ModelEntry(
        MatrixFactorization,
        MatrixFactorizationConfig,
        {"head": "dot"},
        check_options={"embedding_size": 8},
    ),
    "nnmf": ModelEntry(
        MatrixFactorization,
        MatrixFactorizationConfig,
        {"head": "perceptron"},
        check_options={"embedding_size": 8, "hidden": (16,)},
    ),
    "gcmc": ModelEntry(GCMC, GCMCConfig, check_options={"embedding_size": 8, "hidden": (16,)}),
    "idcf-dot": ModelEntry(
        IDCF, IDCFConfig, backbone="pmf", check_options={"n_attended_users": 24}
    ),
    "idcf-nn": ModelEntry(
        IDCF, IDCFConfig, backbone="nnmf", check_options={"n_attended_users": 24}
    ),
    "idcf-gc": ModelEntry(
        IDCF, IDCFConfig, backbone="gcmc", check_options={"n_attended_users": 24}
    ),
}


@cache
def plugin_models() -> Mapping[str, ModelEntry]:
    """Return the models that installed packages add through the entry-point group.

    Raises `ConfigError` if a package adds a name that exists already.
    """
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
    """Return the registry's row for a name; plugins are read when the core has no such row.

    Raises `ConfigError` if there is no such model.
    """
    row = MODELS.get(name) or plugin_models().get(name)
    if row is None:
        raise ConfigError(unknown_name_message("model", name, all_models()))
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


def require_weights(name: str) -> None:
    """Raise `ConfigError`, naming the models that do, if a model reads no weights of clicks."""
    if not model_entry(name).reads_weights:
        names = ", ".join(sorted(x for x, entry in all_models().items() if entry.reads_weights))
        raise ConfigError(
            f"model {name!r} counts every click once; leave the weights out, or fit a model that "
            f"reads them: {names}"
        )


def has_option(name: str, option: str) -> bool:
    """Return whether a model, or its backbone, has an option."""
    entry = model_entry(name)
    if option in {f.name for f in fields(entry.config_class)}:
        return True
    return entry.backbone is not None and has_option(entry.backbone, option)


def require_option(name: str, option: str) -> None:
    """Raise `ConfigError`, naming the models that have it, if a model lacks an option."""
    models_with_option = [model for model in all_models() if has_option(model, option)]
    if name not in models_with_option:
        label = option.replace("_", " ")
        verb = "does" if len(models_with_option) == 1 else "do"
        names = ", ".join(models_with_option)
        raise ConfigError(f"model {name!r} reads no {label}; {names} {verb}")


def configure(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Return a model's validated config: an instance of its `config_class`.

    Raises `ConfigError` if an option is unknown or its value has the wrong type.
    """
    row = model_entry(name)
    return config.dataclass_from_dict(
        row.config_class, {**row.defaults, **(options or {})}, f"model {name!r}"
    )


def user_data_of(name: str, options: Mapping[str, Any], backbone: str | None = None) -> UserData:
    """Return what a model with these options, around a backbone if it has one, holds of users.

    Names that are no options of the model, such as those of its training, are passed over.
    """
    entry = model_entry(name)
    known = {f.name for f in fields(entry.config_class)}
    config = configure(name, {key: x for key, x in options.items() if key in known})
    kinds = [entry.model_class.user_data_with(config)]
    if entry.backbone:
        kinds.append(user_data_of(backbone or entry.backbone, {}))
    return max(kinds, key=get_args(UserData).index)
