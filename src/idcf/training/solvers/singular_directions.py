"""Singular directions of histories, in which the priors of users and items distinguish them."""

from __future__ import annotations

from inspect import signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from idcf.data.interactions import Floats
from idcf.rng import random_stream
from idcf.types import RaggedRows

Array = NDArray[np.float64]

_MIN_SINGULAR_VALUE = 1e-6  # as a share of the largest; below it is 0 but for rounding
_MAX_EXACT_ROWS = 1_200_000  # directions of a larger table are approximate
_EXTRA_DIRECTIONS, _SUBSPACE_ITERATIONS = 10, 5  # of `leading_directions`


def singular_directions(history: RaggedRows, n_columns: int, rank: int, seed: int) -> Tensor:
    """Return the right singular vectors of the 0/1 histories scaled by 1/√n: [columns, rank].

    Where there are fewer than `rank`, the remaining columns are zero.
    """
    n = history.lengths().numpy()
    scaled = np.repeat(1 / np.sqrt(np.maximum(n, 1)), n)
    shape = (len(n), n_columns)
    matrix = csr_matrix((scaled, history.indices.numpy(), history.offsets.numpy()), shape=shape)
    vectors = np.zeros((rank, n_columns))
    if rank < min(shape) and matrix.nnz > _MAX_EXACT_ROWS:
        vectors[:] = leading_directions(matrix, rank, random_stream(seed, "directions")).T
    elif rank < min(shape):
        start = random_stream(seed, "directions").normal(size=min(shape))
        vectors[:] = right_singular_vectors(matrix, rank, start).T
    else:
        dense = np.linalg.svd(matrix.toarray(), full_matrices=False)[2]
        vectors[: len(dense)] = dense
    return determine_signs(torch.from_numpy(vectors.T.copy()).float())


def right_singular_vectors(matrix: csr_array | csr_matrix, rank: int, start: Array) -> Array:
    """Return the right singular vectors [columns, rank] of the largest singular values, the largest
    last, where `rank` is less than both sides of the matrix. Where the rank of the matrix is less,
    the first columns are zero: any other vectors would do.

    They are a function of the matrix and the start vector. Those of SciPy's `svds` are not: where
    its Lanczos vectors span all rows, it goes on from a vector that it draws at random.
    """
    is_wide = matrix.shape[0] < matrix.shape[1]
    tall = matrix.T if is_wide else matrix
    if tall.shape[1] <= max(2 * rank + 1, 20):  # ARPACK would span the whole space
        basis = np.linalg.eigh((tall.T @ tall).toarray())[1][:, -rank:]
    else:
        gram = LinearOperator(
            (tall.shape[1],) * 2, lambda x: tall.T @ (tall @ x), dtype=np.dtype(np.float64)
        )
        options: dict[str, Any] = {}
        if "rng" in signature(eigsh).parameters:  # since SciPy 1.17; before, ARPACK had its seed
            options["rng"] = np.random.default_rng(0)
        basis = np.linalg.qr(eigsh(gram, rank, v0=start, **options)[1])[0]
    of_rows, values, rotation = np.linalg.svd(tall @ basis, full_matrices=False)
    vectors: Array = of_rows if is_wide else basis @ rotation.T
    vectors[:, values <= _MIN_SINGULAR_VALUE * values[0]] = 0
    return vectors[:, ::-1]


def leading_directions(matrix: csr_matrix, rank: int, rng: np.random.Generator) -> Floats:
    """Return approximate right singular vectors [columns, rank] of a large sparse matrix, largest
    first, by subspace iteration from a random start (Halko, Martinsson and Tropp 2011)."""
    matrix = matrix.astype(np.float32)
    width = min(rank + _EXTRA_DIRECTIONS, *matrix.shape)
    basis = rng.normal(size=(matrix.shape[1], width)).astype(np.float32)
    for _ in range(_SUBSPACE_ITERATIONS):
        basis = np.linalg.qr(matrix.T @ (matrix @ basis))[0]
    image = matrix @ basis
    rotation = np.linalg.eigh(image.T @ image)[1][:, ::-1]
    vectors: Floats = basis @ rotation[:, :rank]
    return vectors


def determine_signs(directions: Tensor) -> Tensor:
    """Return singular vectors [n, R] with the signs in which the largest entry is positive.

    Their signs are arbitrary, differ between processors and decide what the chain draws. Of entries
    that are equal but for rounding, the first counts.
    """
    size = directions.abs()
    is_largest = size >= (1 - 1e-3) * size.amax(0)
    first = is_largest.int().argmax(0, keepdim=True)
    return directions * directions.gather(0, first).sign()
