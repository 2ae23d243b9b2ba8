"""bfloat16: the upper half of a float32, rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .base import Array, Bytes, Codec
from .kernels import VALUES, Backend, Kernel

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def _encode_loop(x: Any, out: Any) -> None:
    for i in range(x.size):
        u = np.float32(x[i]).view(np.uint32)
        magnitude = np.uint32(u & np.uint32(0x7FFFFFFF))
        # adding half of what is cut off, less one, carries into what is kept; a tie does so if that is odd
        odd = np.uint32((u >> np.uint32(16)) & np.uint32(1))
        upper = np.uint32(np.uint32(u + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        cut = np.uint32(u >> np.uint32(16))
        beyond = cut if magnitude == np.uint32(0x7F800000) else np.uint32(cut | np.uint32(0x40))
        beyond = np.uint32(cut | np.uint32(0x7F)) if magnitude < np.uint32(0x7F800000) else beyond
        out[i] = np.uint16(upper if magnitude < np.uint32(0x7F7F8000) else beyond)


def _encode_numpy(x: Any, out: Any) -> None:
    u = x.astype(np.float32).view(np.uint32)
    magnitude = u & np.uint32(0x7FFFFFFF)
    cut = u >> np.uint32(16)
    rounded = (u + np.uint32(0x7FFF) + (cut & np.uint32(1))) >> np.uint32(16)
    out[:] = np.select(
        [magnitude < 0x7F7F8000, magnitude < 0x7F800000, magnitude == 0x7F800000],
        [rounded, cut | 0x7F, cut],
        cut | np.uint32(0x40),  # the bit that makes a NaN a quiet one, and keeps it a NaN
    )


def _decode_loop(halves: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = np.uint32(np.uint32(halves[i]) << np.uint32(16)).view(np.float32)


def _decode_numpy(halves: Any, out: Any) -> None:
    out[:] = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


ENCODE = Kernel(_encode_loop, _encode_numpy, reads=(VALUES,), writes=("u2",))
DECODE = Kernel(_decode_loop, _decode_numpy, reads=("u2",), writes=(VALUES,))


@dataclass(frozen=True)
class BF16(Codec):
    """See `bf16`."""

    name: ClassVar[str] = "bf16"

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: two bytes a value."""
        return 2 * size

    def _encode(self, array: Array, residual: Array | None, seed: int, backend: Backend) -> Bytes:
        halves = np.empty(array.size, np.uint16)
        ENCODE(backend, array.dtype, array, halves)
        return halves.view(np.uint8)

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend) -> tuple[Array, int]:
        halves = self._whole_blob(blob, 2 * size).view(np.uint16)
        array = np.empty(size, dtype)
        DECODE(backend, dtype, halves, array)
        return array, halves.nbytes


def bf16() -> BF16:
    r"""Return the codec that keeps sign, exponent and 7 bits of the fraction of a float32.

    .. math:: |\mathrm{decode}(\mathrm{encode}(x)) - x| \le 2^{-8}\,|x|

    Rounds to nearest, ties to even (below :math:`2^{-126}` the error is at most :math:`2^{-134}`). A
    finite value never becomes infinite: above the largest bfloat16, 3.39e38, it becomes that. NaN
    stays NaN and infinity infinity. float64 values are rounded to float32 first.

    References
    ----------
    Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", arXiv:1905.12322, 2019.
    """
    return BF16()
