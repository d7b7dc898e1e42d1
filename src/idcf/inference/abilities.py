"""What a model cannot do, and what to use instead: one sentence for each operation.

The sentences are those of `Recommender`, of the command line and of the server, and
docs/howto/what-works.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from idcf.errors import ConfigError
from idcf.inference.artifact import Artifact

_NEEDS: Mapping[str, str] = {
    "predict_interval": "standard deviations of ratings",
    "return_std": "standard deviations of ratings",
    "if_shown": "what a fit on ratings learns of how users choose",
    "quality": "both how likely an item is taken up and how it is rated",
    "embed": "vectors of users",
    "next_question": "a posterior of ratings, or probabilities of clicks",
    "partial_fit_items": "the uncertainty of items",
}
_FIT_RATINGS = "fit idcf-bayes on a table with ratings"
_INSTEAD_ON_CLICKS: Mapping[str, str] = {
    "embed": f"fit 'als' or 'idcf-dot', or {_FIT_RATINGS}",
    "next_question": "fit the default, 'idcf-takeup', or 'idcf-odds'",
    "partial_fit_items": f"fit it again with the new items, or {_FIT_RATINGS}",
}
_INSTEAD_ON_RATINGS: Mapping[str, str] = {
    "embed": "fit the default, 'idcf-bayes', or 'als'",
    "next_question": "fit the default, 'idcf-bayes'",
    "partial_fit_items": "fit the default, 'idcf-bayes', or this one again with the new items",
}


def missing_ability(operation: str, artifact: Artifact) -> ConfigError:
    """Return the error of an operation that the model of an artifact cannot do."""
    manifest = artifact.manifest
    implicit = manifest.domain.implicit
    name = manifest.fitted_model
    kind, instead = ("clicks", _INSTEAD_ON_CLICKS) if implicit else ("ratings", _INSTEAD_ON_RATINGS)
    way_out = instead.get(operation, _FIT_RATINGS)
    if operation == "predict_interval" and artifact.model.predicts_probabilities:
        way_out += "; of a click, predict gives the probability"
    return ConfigError(
        f"{operation} needs {_NEEDS[operation]}, which {name!r}, fitted on {kind}, does not have: "
        f"{way_out}"
    )


def suggests_questions(model: Any) -> bool:
    """Return whether a model says what to ask a new user; see `idcf.inference.questions`."""
    return bool(model.suggests_questions or model.predicts_probabilities)
