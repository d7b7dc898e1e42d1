"""Parameters of a recommender, as scikit-learn reads and changes them, and how it is printed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Self

from idcf.data.inputs import Features, History, Table
from idcf.errors import ConfigError, unknown_name_message
from idcf.inference.manifest import RecommenderConfig
from idcf.inference.predictor import Predictor
from idcf.inference.similar_users import find_similar_users
from idcf.models.registry import model_entry
from idcf.results import SimilarUsers, TextTable

_ARGUMENTS = ("model", "key_threshold", "key_users", "preset", "seed", "device")


class Estimator:
    """The base class of `Recommender`: parameters, similar users and the printed form."""

    config: RecommenderConfig  # what the next `fit` does
    _predictor: Predictor | None  # None before `fit`

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor, options included, as scikit-learn does.

        `sklearn.base.clone` makes an unfitted recommender of them. `deep` changes nothing.

        Examples
        --------
        >>> from idcf import Recommender
        >>> Recommender("als", reg=5.0).get_params()["reg"]
        5.0
        """
        return {k: getattr(self.config, k) for k in _ARGUMENTS} | dict(self.config.options)

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor, and return this recommender.

        As in scikit-learn, the values are used, and checked, by the next `fit`; a recommender that
        is fitted keeps its model until then. A name that is neither an argument nor an option of
        the model raises ConfigError. Options of models that are trained by epochs are checked by
        `fit`.

        Examples
        --------
        >>> from idcf import Recommender
        >>> Recommender("als", reg=5.0).set_params(reg=2.0, seed=1).get_params()["reg"]
        2.0
        """
        names = _parameter_names(params.get("model", self.config.model))
        for name in params:
            if names and name not in names:
                raise ConfigError(unknown_name_message("parameter", name, names))
        options = {**self.get_params(), **params}
        arguments = {k: options.pop(k) for k in _ARGUMENTS}
        self.config = replace(self.config, options=options, **arguments)
        return self

    def similar_users(
        self,
        history: History | None,
        embeddings: Table,
        n: int = 10,
        *,
        features: Features | None = None,
    ) -> SimilarUsers:
        """Return the n users whose saved embeddings are most similar to that of one new user.

        Parameters
        ----------
        history, features
            Those of `recommend` for one user.
        embeddings
            The file or folder that `idcf embed` wrote with this model, or a table with the columns
            user_id and embedding. The model itself stores no users.

        Examples
        --------
        >>> import pyarrow as pa
        >>> from idcf import Recommender
        >>> model = Recommender.from_factors([[2], [1], [-1]], item_ids="abc", implicit=True)
        >>> vectors = model.embed([["a"], ["c"]])
        >>> saved = pa.table({"user_id": ["x", "y"], "embedding": list(vectors)})
        >>> [user.user_id for user in model.similar_users(["b"], saved)]
        ['x', 'y']
        """
        if self._predictor is None:
            raise ConfigError("this recommender is not fitted; call fit, or use Recommender.load")
        new_user = self._predictor.read_new_user(history, features)
        return find_similar_users(self._predictor.embed([new_user])[0], embeddings, n)

    def __repr__(self) -> str:
        if self._predictor is None:
            return f"<Recommender {self.config.model}, not fitted>"
        manifest = self._predictor.artifact.manifest
        data, kind = manifest.training_data, "clicks" if manifest.domain.implicit else "ratings"
        counts = [f"{len(self._predictor.item_ids):,} items"]
        if data.n_rows:  # none if the factors were trained elsewhere
            counts = [f"{data.n_key_users:,} key users", f"{data.n_rows:,} rows of {kind}", *counts]
        return f"<Recommender {manifest.fitted_model}: {', '.join(counts)}>"

    def _repr_html_(self) -> str:
        """Return the printed form and the parameters as HTML, for notebooks."""
        params = self.get_params()
        columns = {"parameter": list(params), "value": [repr(x) for x in params.values()]}
        return TextTable(repr(self), columns).to_html()


def _parameter_names(model: str) -> set[str]:
    """Return the arguments and the options of a model; nothing if some are known to `fit` alone."""
    entry = model_entry(model)
    if entry.solver is None:
        return set()
    return {*_ARGUMENTS, *(x.name for x in fields(entry.config_class))}
