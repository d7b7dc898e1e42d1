"""The registry of models: a name, the class that scores, its options and how it is fitted.

To add a model to the library, write its file and add its row to `MODELS`. To add one from another
package, publish a mapping of names to `ModelEntry` under the entry-point group `idcf.models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib import import_module
from inspect import signature
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args

from idcf import config
from idcf.errors import ConfigError, unknown_name_message
from idcf.models import options as o
from idcf.models.plugins import MODELS_GROUP, load_plugins

if TYPE_CHECKING:
    from idcf.models.base import Model, UserData
    from idcf.types import Domain, Users

_MODELS = "idcf.models"
_SOLVERS = "idcf.training.solvers"
_SHARDED = "idcf.training.sharded"


@dataclass(frozen=True)
class ModelEntry:
    """One row of the registry.

    Attributes
    ----------
    model
        The class that scores, or where to import it from as "module:Class", so that models are
        listed without importing torch; `build` or, for a row with a backbone, `build_around` makes
        an instance.
    config_class
        The dataclass of the model's options.
    summary
        What the model is, in one line.
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
    inductive, has_uncertainty
        These flags of the model's class, which must agree.
    """

    model: type[Model] | str
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
    inductive: bool = True
    has_uncertainty: bool = False
    summary: str = ""

    @cached_property
    def model_class(self) -> type[Model]:
        """The class that scores, imported when it is first needed.

        Raises `ConfigError` if its flags are not those of the row, or `build` cannot call it.
        """
        model_class: type[Model] = _import_object(self.model)
        for flag in ("inductive", "has_uncertainty"):
            if getattr(self, flag) != getattr(model_class, flag):
                raise ConfigError(
                    f"{flag} of {model_class.__name__} is {getattr(model_class, flag)}, and "
                    f"{getattr(self, flag)} in its row of the registry; change one of the two"
                )
        arguments = ["config", "backbone", "key_users"] if self.backbone else ["config", "domain"]
        try:
            signature(model_class).bind(*arguments)
        except TypeError as error:
            raise ConfigError(
                f"a model is built as {model_class.__name__}({', '.join(arguments)}), which its "
                f"constructor does not accept ({error}); change the constructor"
            ) from None
        return model_class

    def build(self, config: Any, domain: Domain) -> Model:
        """Return an untrained model of a row without a backbone, with a config of `configure`."""
        return self.model_class(config, domain)

    def build_around(self, config: Any, backbone: Model, key_users: Users) -> Model:
        """Return an untrained model of a row with a backbone, which is on the device of
        `key_users`.

        Raises `ConfigError` if the model given as `backbone` cannot be wrapped.
        """
        from idcf.models.base import Backbone

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
        return _import_solver(self.solver)

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
        return _import_solver(self.sharded_solver)


def _import_solver(solver: Callable[..., Model] | str) -> Callable[..., Model]:
    """Return a solver that may be given as "module:function"."""
    function: Callable[..., Model] = _import_object(solver)
    return function


def _import_object(value: Any) -> Any:
    """Return what a text such as "module:name" stands for; anything else is returned as it is."""
    if not isinstance(value, str):
        return value
    module, _, name = value.partition(":")
    return getattr(import_module(module), name)


_SHRINKAGE_GRID = (2.0, 3.0, 5.0, 8.0, 12.0)

MODELS: dict[str, ModelEntry] = {
    "popularity": ModelEntry(
        f"{_MODELS}.baselines:PopularityModel",
        o.PopularityConfig,
        solver=f"{_SOLVERS}.bias:fit_popularity",
        sharded_solver=f"{_SHARDED}.baselines:fit_popularity",
        reads_weights=True,
        learns_item_quality_only=True,
        summary="The number of interactions of each item: one list for all users.",
    ),
    "item-mean": ModelEntry(
        f"{_MODELS}.baselines:BiasModel",
        o.BiasConfig,
        {"shrinkage": float("inf")},
        solver=f"{_SOLVERS}.bias:fit_bias",
        sharded_solver=f"{_SHARDED}.baselines:fit_bias",
        ratings_only=True,
        learns_item_quality_only=True,
        summary="The mean rating of each item.",
    ),
    "bias": ModelEntry(
        f"{_MODELS}.baselines:BiasModel",
        o.BiasConfig,
        solver=f"{_SOLVERS}.bias:fit_bias",
        sharded_solver=f"{_SHARDED}.baselines:fit_bias",
        grid={"shrinkage": _SHRINKAGE_GRID},
        ratings_only=True,
        learns_item_quality_only=True,
        summary="Mean rating plus a bias of the item and one of the user, both shrunk.",
    ),
    "item-knn": ModelEntry(
        f"{_MODELS}.baselines:ItemItemModel",
        o.ItemItemConfig,
        solver=f"{_SOLVERS}.item_item:fit_item_knn",
        sharded_solver=f"{_SHARDED}.baselines:fit_item_knn",
        reads_weights=True,
        grid={"neighbors": (20, 50, 100), "reg": (10.0, 100.0)},
        implicit_grid={"neighbors": (20, 50, 200), "reg": (0.0, 3.0, 30.0)},
        check_options={"reg": 1.0, "neighbors": 20},
        summary="Similarities of items, shrunk, summed over the history.",
    ),
    "ease": ModelEntry(
        f"{_MODELS}.baselines:ItemItemModel",
        o.ItemItemConfig,
        {"normalize": False, "neighbors": 4000},
        solver=f"{_SOLVERS}.item_item:fit_ease",
        sharded_solver=f"{_SHARDED}.baselines:fit_ease",
        reads_weights=True,
        grid={"reg": (50.0, 200.0, 500.0, 1000.0, 2000.0)},
        implicit_grid={"neighbors": (200,), "reg": (10.0, 30.0, 100.0, 300.0)},
        check_options={"reg": 50.0, "shrinkage": 20.0},
        summary="EASE: a ridge regression of every item on all others (Steck 2019).",
    ),
    "slim": ModelEntry(
        f"{_MODELS}.baselines:ItemItemModel",
        o.SlimConfig,
        {"neighbors": 100, "reg": 30.0},
        solver=f"{_SOLVERS}.slim:fit_slim",
        implicit_grid={"l1_reg": (0.3, 3.0), "reg": (3.0, 30.0, 300.0)},
        implicit_only=True,
        check_options={"neighbors": 20, "l1_reg": 0.1, "reg": 1.0},
        summary="SLIM: a sparse regression of every item on others (Ning & Karypis 2011).",
    ),
    "als": ModelEntry(
        f"{_MODELS}.baselines:FoldInModel",
        o.FoldInConfig,
        solver=f"{_SOLVERS}.als:fit_als",
        sharded_solver=f"{_SHARDED}.baselines:fit_als",
        reads_weights=True,
        grid={"embedding_size": (8, 16), "reg": (5.0, 10.0, 20.0)},
        implicit_grid={"embedding_size": (8, 64), "alpha": (3.0, 10.0), "reg": (1.0, 10.0)},
        check_options={"reg": 1.0, "embedding_size": 4},
        summary="Matrix factorization by alternating least squares; a new user is folded in.",
    ),
    "idcf-bayes": ModelEntry(
        f"{_MODELS}.bayes:BayesModel",
        o.BayesConfig,
        solver=f"{_SOLVERS}.bayes:fit_bayes",
        sharded_solver=f"{_SHARDED}.sampled:fit_bayes",
        ratings_only=True,
        implicit_model="idcf-takeup",
        take_up_model="idcf-takeup",
        summary="Matrix factorization with a posterior: ratings with intervals, for new users too.",
        has_uncertainty=True,
    ),
    "idcf-odds": ModelEntry(
        f"{_MODELS}.odds:OddsModel",
        o.OddsConfig,
        solver=f"{_SOLVERS}.odds:fit_odds",
        sharded_solver=f"{_SHARDED}.sampled:fit_odds",
        implicit_only=True,
        summary="Calibrated probabilities from counts and from relations between items.",
    ),
    "idcf-takeup": ModelEntry(
        f"{_MODELS}.take_up:TakeUpModel",
        o.TakeUpConfig,
        solver=f"{_SOLVERS}.take_up:fit_take_up",
        sharded_solver=f"{_SHARDED}.cooccurrences:fit_take_up",
        implicit_only=True,
        reads_weights=True,
        summary="Ridge regression on the items of the history, with calibrated probabilities.",
    ),
    "pmf": ModelEntry(
        f"{_MODELS}.matrix_factorization:MatrixFactorization",
        o.MatrixFactorizationConfig,
        {"head": "dot"},
        check_options={"embedding_size": 8},
        summary="Matrix factorization by gradient: the dot product of two vectors, and biases.",
        inductive=False,
    ),
    "nnmf": ModelEntry(
        f"{_MODELS}.matrix_factorization:MatrixFactorization",
        o.MatrixFactorizationConfig,
        {"head": "perceptron"},
        check_options={"embedding_size": 8, "hidden": (16,)},
        summary="Matrix factorization with a neural network instead of the dot product.",
        inductive=False,
    ),
    "gcmc": ModelEntry(
        f"{_MODELS}.gcmc:GCMC",
        o.GCMCConfig,
        check_options={"embedding_size": 8, "hidden": (16,)},
        summary="GC-MC: a graph convolution over the users and items of the ratings.",
        inductive=False,
    ),
    "idcf-dot": ModelEntry(
        f"{_MODELS}.idcf:IDCF",
        o.IDCFConfig,
        backbone="pmf",
        check_options={"n_attended_users": 24},
        summary="The paper's relation from new users to key users, around pmf.",
    ),
    "idcf-nn": ModelEntry(
        f"{_MODELS}.idcf:IDCF",
        o.IDCFConfig,
        backbone="nnmf",
        check_options={"n_attended_users": 24},
        summary="The paper's relation from new users to key users, around nnmf.",
    ),
    "idcf-gc": ModelEntry(
        f"{_MODELS}.idcf:IDCF",
        o.IDCFConfig,
        backbone="gcmc",
        check_options={"n_attended_users": 24},
        summary="The paper's relation from new users to key users, around gcmc.",
    ),
}


@cache
def plugin_models() -> Mapping[str, ModelEntry]:
    """Return the models that installed packages add through the entry-point group.

    A package that cannot be imported is left out, with a warning. Raises `ConfigError` if a package
    adds a name that exists already.
    """
    plugins: dict[str, ModelEntry] = {}
    for point, rows in load_plugins(MODELS_GROUP).values:
        for name, row in rows.items():
            if name in MODELS or name in plugins:
                raise ConfigError(
                    f"entry point {point.name!r} of {MODELS_GROUP} adds a model named "
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
        message = unknown_name_message("model", name, all_models())
        raise ConfigError("; ".join([message, *load_plugins(MODELS_GROUP).problems]))
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
    from idcf.models.base import UserData

    entry = model_entry(name)
    known = {f.name for f in fields(entry.config_class)}
    config = configure(name, {key: x for key, x in options.items() if key in known})
    kinds = [entry.model_class.user_data_with(config)]
    if entry.backbone:
        kinds.append(user_data_of(backbone or entry.backbone, {}))
    return max(kinds, key=get_args(UserData).index)
