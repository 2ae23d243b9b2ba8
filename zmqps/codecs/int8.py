"""Eight bits a value, with one scale a block."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ProtocolError
from .base import Array, Bytes, Codec, block_size, num_blocks, padded_blocks
from .kernels import VALUES, Backend, CodecKernel, Spread, namespace

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: Scales below the smallest normal float32 are zero: their reciprocal would not be finite.
SMALLEST = np.finfo(np.float32).tiny
#: Keeps 127 times the scale, which is what a receiver computes, from overflowing.
LARGEST = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))
BAD_CODE = "an int8 blob holds -128, which no encoder writes"


def _encode_loop(x: Any, scales: Any, codes: Any, block: Any, stochastic: Any, key: Any) -> None:
    for b in range(scales.size):
        part = slice(b * block, b * block + block)  # without it numba allows for negative indices
        xs, qs = x[part], codes[part]
        largest = np.uint32(0)
        for i in range(xs.size):  # as integers, floats compare the same, with infinity and NaN above all
            largest = max(largest, np.uint32(np.float32(xs[i]).view(np.uint32) & np.uint32(0x7FFFFFFF)))
        scale = np.float32(np.uint32(largest).view(np.float32) / np.float32(127))
        if largest < np.uint32(0x7F800000):
            scale = min(scale, LARGEST)
        inverse = np.float32(1) / scale
        if scale < SMALLEST:
            scale = inverse = np.float32(0)
        scales[b] = scale
        if stochastic:
            first = np.uint32(key + np.uint32(b * block))
            for i in range(xs.size):
                c = np.uint32(np.uint32(i) + first)  # lowbias32: every bit in changes half of the bits out
                c = np.uint32(c ^ (c >> np.uint32(16)))
                c = np.uint32(c * np.uint32(0x7FEB352D))
                c = np.uint32(c ^ (c >> np.uint32(15)))
                c = np.uint32(c * np.uint32(0x846CA68B))
                c = np.uint32(c ^ (c >> np.uint32(16)))
                chance = np.float32(np.int32(c >> np.uint32(8))) * np.float32(2.0**-24)
                q = np.floor(np.float32(np.float32(xs[i]) * inverse) + chance)
                q = q if q < np.float32(127) else np.float32(127)
                q = q if q > np.float32(-127) else np.float32(-127)
                qs[i] = np.int8(np.int32(q))
        else:
            for i in range(xs.size):
                q = np.rint(np.float32(xs[i]) * inverse)
                q = q if q < np.float32(127) else np.float32(127)
                q = q if q > np.float32(-127) else np.float32(-127)
                qs[i] = np.int8(np.int32(q))


def _encode_numpy(xp: Any, x: Any, scales: Any, codes: Any, block: Any, stochastic: Any, key: Any) -> None:
    rows = padded_blocks(xp, x.astype(np.float32), block)
    largest = xp.abs(rows).max(axis=1)
    scale = largest / np.float32(127)
    scale = xp.where(xp.isfinite(largest), xp.minimum(scale, LARGEST), scale)
    small = scale < SMALLEST
    inverse = xp.where(small, np.float32(0), np.float32(1) / scale)
    scales[:] = xp.where(small, np.float32(0), scale)
    q = (rows * inverse[:, None]).reshape(-1)[: x.size]
    q = xp.floor(q + _chances(xp, x.size, key)) if stochastic else xp.rint(q)
    codes[:] = xp.clip(xp.where(xp.isnan(q), np.float32(127), q), -127, 127)


def _chances(xp: Any, size: int, key: Any) -> Any:
    c = xp.arange(size, dtype=np.uint32) + key
    c ^= c >> np.uint32(16)
    c *= np.uint32(0x7FEB352D)
    c ^= c >> np.uint32(15)
    c *= np.uint32(0x846CA68B)
    c ^= c >> np.uint32(16)
    return (c >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _decode_loop(scales: Any, codes: Any, out: Any, block: Any) -> bool:
    bad = np.int8(0)
    for b in range(scales.size):
        part = slice(b * block, b * block + block)
        qs, outs, scale = codes[part], out[part], scales[b]
        for i in range(outs.size):
            bad |= np.int8(qs[i] == np.int8(-128))
            outs[i] = np.float32(qs[i]) * scale
    return not bad


def _decode_numpy(xp: Any, scales: Any, codes: Any, out: Any, block: Any) -> bool:
    out[:] = (padded_blocks(xp, codes.astype(np.float32), block) * scales[:, None]).reshape(-1)[: out.size]
    return xp is not np or not (codes == -128).any()  # a device would be waited for, and `check_blob` has looked


ENCODE = CodecKernel(_encode_loop, _encode_numpy, reads=(VALUES,), writes=("f4", "i1"), scalars=("i8", "?", "u4"))
DECODE = CodecKernel(_decode_loop, _decode_numpy, reads=("f4", "i1"), writes=(VALUES,), scalars=("i8",), returns="?")


@dataclass(frozen=True)
class Int8(Codec):
    """See `int8`."""

    name: ClassVar[str] = "int8"
    portable: ClassVar[bool] = True
    checkable: ClassVar[bool] = True

    block: int = block_size()
    stochastic: bool = False

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: the float32 scales, then a byte a value."""
        return 4 * num_blocks(size, self.block) + size

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        blob: Bytes = namespace(backend).empty(self.encoded_nbytes(array.size, array.dtype), np.uint8)
        scales, codes = self._parts(blob, array.size)
        digest = hashlib.blake2b(b"%d" % seed, digest_size=4).digest() if self.stochastic else bytes(4)
        key = np.uint32(int.from_bytes(digest, "little"))

        # with one thread: it is as fast as memory
        ENCODE(backend, array.dtype, array, scales, codes, self.block, self.stochastic, key)
        return blob

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        blob = self._whole_blob(blob, self.encoded_nbytes(size, dtype))
        scales, codes = self._parts(blob, size)
        array = namespace(backend).empty(size, dtype)
        if not DECODE(backend, dtype, scales, codes, array, self.block):
            raise ProtocolError(BAD_CODE)
        return array, blob.nbytes

    def check_blob(self, view: Any, size: int, dtype: DTypeLike) -> Bytes:
        """Return the blob that a view starts with, checked but not decoded."""
        blob = super().check_blob(view, size, dtype)
        if (self._parts(blob, size)[1] == -128).any():
            raise ProtocolError(BAD_CODE)
        return blob

    def _parts(self, blob: Bytes, size: int) -> tuple[Array, Array]:
        scales_nbytes = 4 * num_blocks(size, self.block)
        return blob[:scales_nbytes].view(np.float32), blob[scales_nbytes:].view(np.int8)


def int8(block: int = 1024, stochastic: bool = False) -> Int8:
    r"""Return the codec that rounds every value to a multiple of its block's scale.

    .. math:: s_b = \max_{i \in b} |x_i| \,/\, 127, \qquad q_i = \mathrm{round}(x_i / s_b), \qquad
        \mathrm{decode} = s_b\, q_i

    so the error is at most half a scale (a whole one with stochastic rounding), besides the rounding of float32.

    Parameters
    ----------
    block : int
        How many values share a scale.
    stochastic : bool
        Round up with the probability that makes the expected result the value itself, so that errors
        cancel over steps and workers. The random numbers are a hash of the value's position and the
        seed given to `Codec.encode`.

    Notes
    -----
    A block with an infinity or NaN decodes to nothing but those. Values are float32 to this codec:
    a float64 is rounded to one first. A block whose largest value is below 1.5e-36 becomes zero.

    References
    ----------
    Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016. Alistarh et al., "QSGD:
    Communication-Efficient SGD via Gradient Quantization and Encoding", NeurIPS 2017 (stochastic
    rounding). The hash is Chris Wellons's lowbias32.
    """
    return Int8(block, stochastic)
