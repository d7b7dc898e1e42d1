"""Models of idcf in MLflow: a pyfunc flavor, whose model folder holds data and no pickled code.

A row of the input is a new user: the column `history` holds a list of {"item_id", "rating"}, and
`features`, if the model was fitted with features of users, {name: value}. A row of the output has
the user's list in `items`. The signature says so to MLflow, with the options of a list as
parameters. Needs the extra `mlflow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from idcf.errors import IdcfError, require_extra
from idcf.recommender import Recommender
from idcf.results import Recommendation

__all__ = ["load_model", "log_model", "save_model"]

_EXAMPLE_LENGTH = 2  # items in the history of the input example
_NUMBERS = ("score", "std", "probability", "rating", "rating_if_shown")  # of a recommendation


def save_model(recommender: Recommender, path: str | Path, **options: Any) -> None:
    """Save a fitted recommender as an MLflow model in a new folder, `path`.

    `options` are those of `mlflow.pyfunc.save_model`, such as `pip_requirements`, by default this
    version of idcf and of torch. Models that hold rows of their training table are refused, as by
    `Recommender.save`.
    """
    mlflow = _import_mlflow()
    with TemporaryDirectory() as folder:
        arguments = _model_arguments(recommender, Path(folder))
        mlflow.pyfunc.save_model(path=str(path), **{**arguments, **options})


def log_model(recommender: Recommender, name: str = "model", **options: Any) -> Any:
    """Log a fitted recommender as a model of the active MLflow run, and return its `ModelInfo`.

    `name` is that of the model within the run; `options` are those of `mlflow.pyfunc.log_model`,
    such as `registered_model_name`.

    Examples
    --------
    .. code-block:: python

        import idcf.mlflow, mlflow
        with mlflow.start_run():
            model = idcf.mlflow.log_model(recommender)
        users = [{"history": [{"item_id": "film-000", "rating": 5.0}]}]
        mlflow.pyfunc.load_model(model.model_uri).predict(users, params={"n": 3})
    """
    mlflow = _import_mlflow()
    with TemporaryDirectory() as folder:
        arguments = _model_arguments(recommender, Path(folder))
        return mlflow.pyfunc.log_model(name=name, **{**arguments, **options})


def load_model(model_uri: str, *, device: str = "cpu") -> Recommender:
    """Load the recommender of an MLflow model that `save_model` or `log_model` wrote.

    `model_uri` is its address, such as "models:/films/3"; `device` is that of `Recommender.load`.

    Raises
    ------
    ArtifactError
        If files of the model are missing or were changed.
    """
    mlflow = _import_mlflow()
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=str(model_uri)))
    flavor = mlflow.models.Model.load(str(folder)).flavors["python_function"]
    return Recommender.load(folder / flavor["data"], device=device)


class ListModel:
    """What `mlflow.pyfunc.load_model` wraps: a list of recommendations for each row."""

    def __init__(self, recommender: Recommender) -> None:
        self.recommender = recommender

    def predict(self, data: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Return a dataframe with the list of each new user in the column `items`.

        `data` is a dataframe with the columns `history` and, if the model has them, `features`.
        """
        import pandas as pd
        from mlflow.exceptions import MlflowException

        histories = [self._history(cells) for cells in data["history"]]
        features = None
        if "features" in data.columns:
            features = [_without_gaps(cells) for cells in data["features"]]
        try:
            has_std = self.recommender.artifact.model.has_uncertainty
            lists = self.recommender.recommend(
                histories, features=features, return_std=has_std, **(params or {})
            )
        except IdcfError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        return pd.DataFrame({"items": [[_item_values(x) for x in items] for items in lists]})

    def _history(self, cells: Any) -> list[Any]:
        """Return the history of a user as `recommend` takes it."""
        entries = [] if cells is None else [_without_gaps(x) for x in cells]
        no_rating = 1.0 if self.recommender.manifest.domain.implicit else None
        pairs = [(x["item_id"], x.get("rating", no_rating)) for x in entries]
        if any("timestamp" in x for x in entries):
            return [(*pair, x.get("timestamp")) for pair, x in zip(pairs, entries, strict=True)]
        return pairs


def _load_pyfunc(data_path: str) -> ListModel:
    """Load the model, as MLflow asks the loader module of a flavor to."""
    return ListModel(Recommender.load(data_path))


def _import_mlflow() -> Any:
    """Return the package mlflow, with the modules that are used; ConfigError: it is missing."""
    require_extra("mlflow", "mlflow", "pandas")
    import mlflow.artifacts
    import mlflow.models
    import mlflow.pyfunc

    return mlflow


def _model_arguments(recommender: Recommender, folder: Path) -> dict[str, Any]:
    """Write the artifact into a folder, and return what MLflow must know of it."""
    versions = recommender.manifest.versions
    return {
        "loader_module": __name__,
        "data_path": str(recommender.save(folder / "recommender")),
        "signature": _signature(recommender),
        "input_example": _input_example(recommender),
        "pip_requirements": [
            f"{name}=={versions[name].partition('+')[0]}" for name in ("idcf", "torch")
        ],
        "metadata": {"idcf_model": recommender.manifest.fitted_model},
    }


def _signature(recommender: Recommender) -> Any:
    """Return the types of the columns and of the parameters, as MLflow has them."""
    options: list[tuple[str, str, Any]] = [("n", "long", 10), ("filter_seen", "boolean", True)]
    if recommender.artifact.take_up_model is not None:
        options.append(("quality", "double", recommender.predictor.check_quality(None)))
    if recommender.artifact.model.has_item_similarities:
        options.append(("diversity", "double", 0.0))
    from mlflow.models import ModelSignature
    from mlflow.types import schema

    t: Any = schema
    text, artifact = t.DataType.string, recommender.artifact
    any_number = t.AnyType()  # a double refuses the 5 of JSON, and JavaScript writes no 5.0

    def optional(names: Iterable[str], kind: Any) -> list[Any]:
        """Return properties that may be left out."""
        return [t.Property(name, kind, required=False) for name in names]

    has_integer_ids = all(isinstance(x, int) for x in artifact.items.ids)
    item_id = t.Property("item_id", t.DataType.long if has_integer_ids else text)
    history = t.Object([item_id, *optional(("rating", "timestamp"), any_number)])
    inputs = [t.ColSpec(t.Array(history), "history")]
    encoder = artifact.manifest.user_encoder
    if encoder:
        numbers = optional((x.name for x in encoder.columns if x.words is None), any_number)
        words = optional((x.name for x in encoder.columns if x.words is not None), text)
        inputs.append(t.ColSpec(t.Object([*numbers, *words]), "features", required=False))
    numbers = optional(_NUMBERS, t.DataType.double)
    rank = t.Property("rank", t.DataType.long)
    item = t.Object([item_id, rank, *optional(("title", "source"), text), *numbers])
    outputs = [t.ColSpec(t.Array(item), "items")]
    params = t.ParamSchema(
        [t.ParamSpec(name, getattr(t.DataType, kind), value) for name, kind, value in options]
    )
    return ModelSignature(t.Schema(inputs), t.Schema(outputs), params)


def _input_example(recommender: Recommender) -> Any:
    """Return a dataframe of one new user, who likes the first items."""
    import pandas as pd

    domain, ids = recommender.manifest.domain, recommender.artifact.items.ids
    rating = {} if domain.implicit else {"rating": float(domain.levels[-1])}
    return pd.DataFrame({"history": [[{"item_id": x, **rating} for x in ids[:_EXAMPLE_LENGTH]]]})


def _item_values(item: Recommendation) -> dict[str, Any]:
    """Return the fields of a recommendation that are known."""
    return {name: value for name, value in item._asdict().items() if value is not None}


def _without_gaps(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values that are there: MLflow fills optional ones with None."""
    return {name: value for name, value in (values or {}).items() if value is not None}
