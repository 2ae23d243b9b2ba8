"""A code of fixed width for each value: what the codecs of shorter floats share."""

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
class FixedWidthCodec(Codec):
    """A blob is the values in their order, each as a code of the same width; any code is a value.

    A subclass says how one becomes the other: ``encoder(values, codes)`` and ``decoder(codes, values)``. What its
    encoder writes is the dtype of a code: ``"u1"`` for one byte, ``"u2"`` for two.
    """

    checkable: ClassVar[bool] = True
    encoder: ClassVar[CodecKernel]
    decoder: ClassVar[CodecKernel]

    @property
    def code(self) -> np.dtype[Any]:
        """The dtype of a code."""
        return np.dtype(self.encoder.writes[0])

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: a code for each value."""
        return self.code.itemsize * size

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        codes: Array = namespace(backend).empty(array.size, self.code)
        self.encoder(backend, array.dtype, array, codes)  # with one thread: it is as fast as memory
        blob: Bytes = codes.view(np.uint8)
        return blob

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        codes = self._whole_blob(blob, self.encoded_nbytes(size, dtype)).view(self.code)
        array = namespace(backend).empty(size, dtype)
        self.decoder(backend, dtype, codes, array)
        return array, codes.nbytes
