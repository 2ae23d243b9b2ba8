"""Two bytes a value: what the codecs of shorter floats share."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .base import Array, Bytes, Codec
from .kernels import Backend, CodecKernel, Spread, namespace

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True)
class TwoByteCodec(Codec):
    """A blob is the values in their order, each as a float of 16 bits.

    A subclass says how one becomes the other: ``encoder(values, halves)`` and ``decoder(halves, values)``.
    """

    checkable: ClassVar[bool] = True
    encoder: ClassVar[CodecKernel]
    decoder: ClassVar[CodecKernel]

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: two bytes a value."""
        return 2 * size

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        halves: Array = namespace(backend).empty(array.size, np.uint16)
        self.encoder(backend, array.dtype, array, halves)  # with one thread: it is as fast as memory
        blob: Bytes = halves.view(np.uint8)
        return blob

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        halves = self._whole_blob(blob, 2 * size).view(np.uint16)
        array = namespace(backend).empty(size, dtype)
        self.decoder(backend, dtype, halves, array)
        return array, halves.nbytes
