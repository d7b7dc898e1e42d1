"""Arrays and products that the kernels share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from idcf.data.interactions import Floats

_MAX_NUMPY_TABLE_SIZE = 1 << 20  # numbers in a matrix; above this PyTorch multiplies faster


class MatrixVectorProduct:
    """Multiply one fixed matrix [I, D] with vectors [D].

    A call of NumPy has less overhead, PyTorch reads memory faster, so the size decides.
    """

    def __init__(self, matrix: Floats) -> None:
        self._is_small = matrix.size < _MAX_NUMPY_TABLE_SIZE
        # [D, I]: contiguous for NumPy, a transposed view of a contiguous matrix for PyTorch
        self._transposed = (
            np.ascontiguousarray(matrix.T) if self._is_small else np.ascontiguousarray(matrix).T
        )
        self._tensor = torch.from_numpy(self._transposed)  # the same memory

    def __call__(self, vector: Floats) -> Floats:
        """Return matrix @ vector: [I]."""
        product: Floats
        if self._is_small:
            product = vector @ self._transposed
        else:
            product = torch.mm(torch.from_numpy(vector)[None], self._tensor)[0].numpy()
        return product


def to_float32_array(tensor: Tensor) -> Floats:
    """Copy a tensor into a float32 array on the CPU."""
    array: Floats = tensor.detach().float().cpu().numpy().copy()
    return array
