"""Fast inference kernels for frozen models, and which model has which.

A kernel gives the scores or embeddings of the model's own methods, to rounding; the tests compare
the two. A model without a kernel is scored by its own methods. Models do not know their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from idcf.data.interactions import Floats, Ints
from idcf.inference.kernels.als import FoldInKernel, fold_in_kernel
from idcf.inference.kernels.bayes import BayesSingleUserScorer
from idcf.inference.kernels.idcf import (
    IDCFBatchEmbedder,
    IDCFSingleUserScorer,
    idcf_batch_embedder,
    idcf_single_user_scorer,
)
from idcf.models.base import Model
from idcf.models.baselines import FoldInModel
from idcf.models.bayes import BayesModel
from idcf.models.idcf import IDCF
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
    build = _BATCH_EMBEDDERS.get(type(model))
    return None if build is None else build(model)


def single_user_scorer(model: Model, embedder: BatchEmbedder | None) -> SingleUserScorer | None:
    """Return the kernel that scores the catalogue for one user, or None if the model has none.

    Parameters
    ----------
    model
        The frozen model.
    embedder
        Its `batch_embedder`, whose arrays are shared.
    """
    source = model if embedder is None else embedder
    build = _SINGLE_USER_SCORERS.get(type(source))
    return None if build is None else build(source)


# What builds the kernel of a class; it returns None for instances that have no kernel. The keys
# are final classes, so that `type` finds them.
_BATCH_EMBEDDERS: Mapping[type, Callable[[Any], BatchEmbedder | None]] = {
    IDCF: idcf_batch_embedder,
    FoldInModel: fold_in_kernel,
}
_SINGLE_USER_SCORERS: Mapping[type, Callable[[Any], SingleUserScorer | None]] = {
    BayesModel: BayesSingleUserScorer,  # the classes below are batch embedders
    IDCFBatchEmbedder: idcf_single_user_scorer,
    FoldInKernel: lambda kernel: kernel,
}
