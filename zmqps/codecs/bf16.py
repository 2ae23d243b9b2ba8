"""bfloat16: the upper half of a float32, rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .base import FixedWidthCodec
from .kernels import VALUES, CodecKernel


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


def _encode_numpy(xp: Any, x: Any, out: Any) -> None:
    u = x.astype(np.float32).view(np.uint32)
    magnitude = u & np.uint32(0x7FFFFFFF)
    cut = u >> np.uint32(16)
    rounded = (u + np.uint32(0x7FFF) + (cut & np.uint32(1))) >> np.uint32(16)
    special = xp.where(magnitude == np.uint32(0x7F800000), cut, cut | np.uint32(0x40))  # a NaN stays one, a quiet one
    beyond = xp.where(magnitude < np.uint32(0x7F800000), cut | np.uint32(0x7F), special)
    out[:] = xp.where(magnitude < np.uint32(0x7F7F8000), rounded, beyond)


def _decode_loop(halves: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = np.uint32(np.uint32(halves[i]) << np.uint32(16)).view(np.float32)


def _decode_numpy(xp: Any, halves: Any, out: Any) -> None:
    out[:] = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


@dataclass(frozen=True)
class BF16(FixedWidthCodec):
    """See `bf16`."""

    name: ClassVar[str] = "bf16"
    portable: ClassVar[bool] = True
    encoder = CodecKernel(_encode_loop, _encode_numpy, reads=(VALUES,), writes=("u2",))
    decoder = CodecKernel(_decode_loop, _decode_numpy, reads=("u2",), writes=(VALUES,))


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
