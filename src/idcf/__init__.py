"""Inductive collaborative filtering: train once, then recommend to new users.

Public names are imported when they are first used, so that `import idcf` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Recommender": "idcf.recommender",
    "Interactions": "idcf.data.interactions",
    "read_interactions": "idcf.data.readers",
    "IdcfError": "idcf.errors",
    "DataError": "idcf.errors",
    "ConfigError": "idcf.errors",
    "ColdUserError": "idcf.errors",
    "ArtifactError": "idcf.errors",
    "all_models": "idcf.models.registry",
    "evaluate": "idcf.evaluation.comparison",
    "Comparison": "idcf.evaluation.comparison",
    "ModelDifference": "idcf.evaluation.comparison",
    "Recommendation": "idcf.results",
    "Recommendations": "idcf.results",
    "RecommendationBatch": "idcf.results",
    "Explanation": "idcf.results",
    "Reason": "idcf.results",
    "Cohort": "idcf.results",
    "Question": "idcf.results",
    "Questions": "idcf.results",
    "SimilarUser": "idcf.results",
    "SimilarUsers": "idcf.results",
    "PredictionInterval": "idcf.results",
}
__all__ = [  # noqa: RUF022 - grouped by use
    "Recommender",
    "Interactions",
    "read_interactions",
    "all_models",
    "evaluate",
    "IdcfError",
    "DataError",
    "ConfigError",
    "ColdUserError",
    "ArtifactError",
    "Recommendation",
    "Recommendations",
    "RecommendationBatch",
    "Explanation",
    "Reason",
    "Cohort",
    "Question",
    "Questions",
    "SimilarUser",
    "SimilarUsers",
    "PredictionInterval",
    "Comparison",
    "ModelDifference",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'idcf' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
