"""IEEE 754 half precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .base import FixedWidthCodec
from .kernels import VALUES, CodecKernel

#: The largest finite half.
LARGEST = 65504.0


def _encode_loop(x: Any, out: Any) -> None:
    for i in range(x.size):
        u = np.float32(x[i]).view(np.uint32)
        sign = np.uint32((u >> np.uint32(16)) & np.uint32(0x8000))
        magnitude = np.uint32(u & np.uint32(0x7FFFFFFF))
        # the exponent's bias goes from 127 to 15; half of what is cut off, less one, carries as in bf16
        odd = np.uint32((magnitude >> np.uint32(13)) & np.uint32(1))
        normal = np.uint32(np.uint32(magnitude + np.uint32(0xC8000FFF) + odd) >> np.uint32(13))
        # a sum of [0.5, 1) has steps of 2**-24, as subnormal halves have: the addition rounds
        half = np.float32(np.uint32(magnitude).view(np.float32) + np.float32(0.5)).view(np.uint32)
        subnormal = np.uint32(half - np.uint32(0x3F000000))
        bits = subnormal if magnitude < np.uint32(0x38800000) else normal
        bits = bits if magnitude < np.uint32(0x477FF000) else np.uint32(0x7BFF)
        bits = np.uint32(0x7C00) if magnitude == np.uint32(0x7F800000) else bits
        bits = np.uint32(0x7E00) if magnitude > np.uint32(0x7F800000) else bits
        out[i] = np.uint16(sign | bits)


def _encode_numpy(xp: Any, x: Any, out: Any) -> None:
    x = x.astype(np.float32)
    halves = xp.where(xp.isinf(x), x, xp.clip(x, -LARGEST, LARGEST)).astype(np.float16).view(np.uint16)
    out[:] = xp.where(xp.isnan(x), xp.where(xp.signbit(x), np.uint16(0xFE00), np.uint16(0x7E00)), halves)


def _decode_loop(halves: Any, out: Any) -> None:
    for i in range(out.size):
        bits = np.uint32(halves[i])
        sign = np.uint32(np.uint32(bits & np.uint32(0x8000)) << np.uint32(16))
        magnitude = np.uint32(np.uint32(bits & np.uint32(0x7FFF)) << np.uint32(13))
        # the multiplication corrects the exponent's bias and makes subnormal halves normal
        scaled = np.float32(np.uint32(magnitude).view(np.float32) * np.float32(2.0**112)).view(np.uint32)
        scaled = np.uint32(scaled | np.uint32(0x7F800000)) if magnitude >= np.uint32(0x0F800000) else scaled
        out[i] = np.uint32(scaled | sign).view(np.float32)


def _decode_numpy(xp: Any, halves: Any, out: Any) -> None:
    out[:] = halves.view(np.float16).astype(np.float32)


@dataclass(frozen=True)
class FP16(FixedWidthCodec):
    """See `fp16`."""

    name: ClassVar[str] = "fp16"
    portable: ClassVar[bool] = True
    encoder = CodecKernel(_encode_loop, _encode_numpy, reads=(VALUES,), writes=("u2",))
    decoder = CodecKernel(_decode_loop, _decode_numpy, reads=("u2",), writes=(VALUES,))


def fp16() -> FP16:
    r"""Return the codec that keeps sign, 5 bits of exponent and 10 bits of the fraction.

    .. math:: |\mathrm{decode}(\mathrm{encode}(x)) - x| \le \max(2^{-11}\,|x|,\; 2^{-25})
        \quad\text{for}\quad |x| \le 65504

    Rounds to nearest, ties to even. A finite value never becomes infinite: beyond 65504 it becomes
    65504, as a receiver that refuses infinite gradients would lose the whole push to one large value.
    NaN stays NaN and infinity infinity. float64 values are rounded to float32 first.

    References
    ----------
    IEEE 754-2008, binary16. Micikevicius et al., "Mixed Precision Training", ICLR 2018.
    """
    return FP16()
