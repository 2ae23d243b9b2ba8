"""The bytes of the values, as they are."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .base import Array, Bytes, Codec
from .kernels import Backend, Spread

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


@dataclass(frozen=True)
class Raw(Codec):
    """See `raw`."""

    name: ClassVar[str] = "raw"
    portable: ClassVar[bool] = True

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob."""
        return size * np.dtype(dtype).itemsize

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        return array.view(np.uint8)

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        nbytes = self.encoded_nbytes(size, dtype)
        array = self._whole_blob(blob, nbytes).view(dtype)
        aligned = not isinstance(backend, str) or array.flags.aligned  # a blob on a device always is
        return array if aligned else array.copy(), nbytes


def raw() -> Raw:
    """Return the codec that changes nothing.

    Encoding and decoding copy nothing either: both results alias what they were given, unless that
    is unaligned.
    """
    return Raw()
