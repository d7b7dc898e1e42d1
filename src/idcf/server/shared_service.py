"""A loaded model in memory that several processes share.

A service is pickled once into an anonymous file; its arrays are stored as they are, so that every
process that reads the file maps the same pages. The file never leaves the processes of one server.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from idcf.server.service import RecommendationService

_ALIGNMENT = 64  # of arrays in the file, as numerical kernels like it
_FOOTER = struct.Struct("<QQ")  # position and length of the pickle, at the end of the file
Bytes = NDArray[np.uint8]


def write_service(service: RecommendationService) -> int:
    """Write a service into an anonymous file and return its descriptor, which the caller closes."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _ServicePickler(stream, buffers.append).dump(service)
    descriptor = os.memfd_create("idcf-model")
    with open(descriptor, "wb", closefd=False) as file:
        spans = []
        for buffer in buffers:
            with buffer.raw() as raw:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                spans.append((file.tell(), raw.nbytes))
                file.write(raw)
        start = file.tell()
        file.write(pickle.dumps((stream.getvalue(), spans)))
        file.write(_FOOTER.pack(start, file.tell() - start))
    return descriptor


def read_service(descriptor: int) -> RecommendationService:
    """Return the service in a file of `write_service`; what it changes in its arrays is private."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=protection)
    view = memoryview(memory)
    start, size = _FOOTER.unpack(view[-_FOOTER.size :])
    content, spans = pickle.loads(view[start : start + size])
    service: RecommendationService = pickle.loads(
        content, buffers=[view[begin : begin + length] for begin, length in spans]
    )
    return service


class _ServicePickler(pickle.Pickler):
    """Stores the memory of tensors and arrays outside the pickle, and each block of it once."""

    def __init__(
        self, file: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any]
    ) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        self._blocks: dict[tuple[int, int, bool], Bytes] = {}

    def reducer_override(self, value: Any) -> Any:
        """Return how to rebuild a dense tensor or an array from a block of bytes."""
        if type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided:
            storage = value.untyped_storage()
            if value.device.type == "cpu" and storage.nbytes():
                block = self._block(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
                shape = (value.dtype, value.storage_offset(), tuple(value.shape), value.stride())
                return _rebuild_tensor, (block, *shape, type(value) is nn.Parameter)
        if type(value) is np.ndarray and _is_plain(value):
            block = self._block(value.reshape(-1).view(np.uint8))
            return _rebuild_array, (block, value.dtype, value.shape)
        return NotImplemented

    def _block(self, block: Bytes) -> Bytes:
        """Return the first array of these bytes, which the pickle then refers to."""
        key = (block.ctypes.data, block.nbytes, block.flags.writeable)
        return self._blocks.setdefault(key, block)


def _is_plain(array: NDArray[Any]) -> bool:
    """Return whether an array is a block of numbers; blocks of bytes are stored as they are."""
    is_number = array.dtype.kind in "biuf" and array.dtype != np.uint8
    return is_number and array.flags.c_contiguous and array.nbytes > 0


def _rebuild_tensor(
    block: Bytes,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    is_parameter: bool,
) -> Tensor:
    """Return a tensor on a block of bytes."""
    tensor = torch.from_numpy(block).view(dtype).as_strided(shape, stride, offset)
    return nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor


def _rebuild_array(block: Bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array on a block of bytes."""
    return block.view(dtype).reshape(shape)
