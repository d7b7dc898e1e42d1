"""Fast inference kernels for frozen models, and which model has which.

A kernel gives the scores or embeddings of the model's own methods, to rounding; the tests compare
the two. A model without a kernel is scored by its own methods. Models do not know their kernels.
"""

from __future__ import annotations

from typing import Protocol

from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels.als import FoldInKernel, fold_in_kernel
from idcf.inference.kernels.bayes import BayesSingleUserScorer
from idcf.inference.kernels.idcf import IDCFBatchEmbedder, IDCFSingleUserScorer
from idcf.models.base import Model
from idcf.models.baselines import FoldInModel
from idcf.models.bayes import BayesModel
from idcf.models.idcf import IDCF
from idcf.models.matrix_factorization import MatrixFactorization
from idcf.types import Embeddings, Users

__all__ = [
    "BatchEmbedder",
    "BayesSingleUserScorer",
    "FoldInKernel",
    "IDCFBatchEmbedder",
    "IDCFSingleUserScorer",
    "SingleUserScorer",
    "batch_embedder",
    "single_user_scorer",
]


class SingleUserScorer(Protocol):
    """Score the whole catalogue for one new user with a history, on NumPy arrays."""

    def __call__(self, item_rows: Ints, values: Floats) -> Floats:
        """Return the score of every item [I] for a history of item rows and values."""


class BatchEmbedder(Protocol):
    """Embed many new users: a replacement of `TwoTower.embed_users`."""

    def embed_users(self, users: Users) -> Embeddings:
        """Return the embeddings of the users: vectors [B, D] and biases [B]."""


def batch_embedder(model: Model) -> BatchEmbedder | None:
    """Return the kernel that embeds many users, or None if the model has none."""
    if isinstance(model, IDCF) and model.relation.attention == "dot" and model.meta_path is None:
        return IDCFBatchEmbedder(model)
    return fold_in_kernel(model) if isinstance(model, FoldInModel) else None


def single_user_scorer(model: Model, embedder: BatchEmbedder | None) -> SingleUserScorer | None:
    """Return the kernel that scores the catalogue for one user, or None if the model has none.

    Parameters
    ----------
    model
        The frozen model.
    embedder
        Its `batch_embedder`, whose arrays are shared.
    """
    if isinstance(model, BayesModel):
        return BayesSingleUserScorer(model)
    if isinstance(embedder, IDCFBatchEmbedder):
        has_table = isinstance(embedder.model.backbone, MatrixFactorization)
        return IDCFSingleUserScorer(embedder) if has_table else None
    return embedder if isinstance(embedder, FoldInKernel) else None
