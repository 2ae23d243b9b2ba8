"""Two bits a value: its sign and whether it is a large one, with two scales a block, and a residual."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .base import Array, Bytes, Codec, block_size, num_blocks, padded_blocks
from .bits import LANES, TILE, add_up, num_octets, pack_loop, unpack
from .kernels import VALUES, Backend, CodecKernel, Spread, spans

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


def _encode_loop(x: Any, residual: Any, low: Any, high: Any, signs: Any, larges: Any, block: Any) -> None:
    negative, large = np.zeros(LANES * block, np.uint8), np.zeros(LANES * block, np.uint8)
    tiles = np.zeros((2, LANES * TILE))
    total, total_low, total_high = np.zeros(LANES), np.zeros(LANES), np.zeros(LANES)
    for first in range(0, low.size, LANES):
        group = slice(first * block, (first + LANES) * block)  # without it numba allows for negative indices
        xs, rest = x[group], residual[group]
        for i in range(rest.size):
            rest[i] = xs[i] + rest[i]
        total[:] = 0.0
        total_low[:] = 0.0
        total_high[:] = 0.0
        for start in range(0, block, TILE):
            for lane in range(LANES):
                vs = rest[lane * block + start : lane * block + min(start + TILE, block)]
                magnitudes = tiles[0][lane * TILE : lane * TILE + TILE]
                for i in range(vs.size):
                    magnitudes[i] = abs(np.float64(vs[i]))
                magnitudes[vs.size :] = 0.0
            add_up(tiles[0], total)
        for start in range(0, block, TILE):
            for lane in range(LANES):
                part = slice(lane * block + start, lane * block + min(start + TILE, block))
                at = slice(lane * TILE, lane * TILE + TILE)
                vs, flags, lows, highs = rest[part], large[part], tiles[0][at], tiles[1][at]
                mean = total[lane] / max(min(block, rest.size - lane * block), 1)
                for i in range(vs.size):
                    magnitude = abs(np.float64(vs[i]))
                    flags[i] = magnitude > mean
                    is_high = np.float64(flags[i])
                    highs[i] = magnitude * is_high  # products, as branches would be mispredicted
                    lows[i] = magnitude * (1.0 - is_high)
                lows[vs.size :] = 0.0
                highs[vs.size :] = 0.0
            add_up(tiles[0], total_low)
            add_up(tiles[1], total_high)
        for lane in range(min(LANES, low.size - first)):
            part = slice(lane * block, lane * block + block)
            mine, signs_of, flags = rest[part], negative[part], large[part]
            num_high = np.uint32(0)
            for i in range(mine.size):
                num_high += np.uint32(flags[i])
            low_mean = np.float32(total_low[lane] / max(mine.size - float(num_high), 1.0))
            high_mean = np.float32(total_high[lane] / max(float(num_high), 1.0))
            low[first + lane] = low_mean
            high[first + lane] = high_mean
            low_bits = np.float32(low_mean).view(np.uint32)
            difference = np.uint32(low_bits ^ np.float32(high_mean).view(np.uint32))
            for i in range(mine.size):
                sign = np.uint32(np.float32(mine[i]).view(np.uint32) >> np.uint32(31))
                signs_of[i] = sign
                bits = np.uint32(low_bits ^ (difference & np.uint32(np.uint32(0) - np.uint32(flags[i]))))
                mine[i] -= np.uint32(bits | (sign << np.uint32(31))).view(np.float32)
        negative[rest.size :] = 0
        large[rest.size :] = 0
        octets = slice(first * block // 8, (first * block + rest.size + 7) // 8)
        pack_loop(negative, signs[octets])
        pack_loop(large, larges[octets])


def _encode_numpy(xp: Any, x: Any, residual: Any, low: Any, high: Any, signs: Any, larges: Any, block: Any) -> None:
    residual += x
    rows = xp.abs(padded_blocks(xp, residual.astype(np.float64), block))
    sizes = xp.minimum(block, x.size - block * xp.arange(low.size))
    mean = xp.cumsum(rows, axis=1)[:, -1] / sizes  # cumsum adds one by one, as the loop does
    is_high = rows > mean[:, None]
    num_high = is_high.sum(axis=1)
    high[:] = xp.cumsum(rows * is_high, axis=1)[:, -1] / xp.maximum(num_high, 1)
    low[:] = xp.cumsum(rows * ~is_high, axis=1)[:, -1] / xp.maximum(sizes - num_high, 1)
    negative = xp.signbit(residual)
    signs[:] = xp.packbits(negative, bitorder="little")
    larges[:] = xp.packbits(is_high.reshape(-1)[: x.size], bitorder="little")
    sent = xp.where(is_high, high[:, None], low[:, None]).reshape(-1)[: x.size]
    residual -= xp.where(negative, -sent, sent)


def _decode_loop(low: Any, high: Any, negative: Any, large: Any, out: Any, block: Any) -> None:
    for b in range(low.size):
        part = slice(b * block, b * block + block)
        signs, flags, outs = negative[part], large[part], out[part]
        low_bits = np.float32(low[b]).view(np.uint32)
        difference = np.uint32(low_bits ^ np.float32(high[b]).view(np.uint32))
        for i in range(outs.size):  # on bits, as branches would be mispredicted
            bits = np.uint32(low_bits ^ (difference & np.uint32(np.uint32(0) - np.uint32(flags[i]))))
            outs[i] = np.uint32(bits ^ (np.uint32(signs[i]) << np.uint32(31))).view(np.float32)


def _decode_numpy(xp: Any, low: Any, high: Any, negative: Any, large: Any, out: Any, block: Any) -> None:
    sent = xp.where(padded_blocks(xp, large, block), high[:, None], low[:, None]).reshape(-1)[: out.size]
    out[:] = xp.where(negative, -sent, sent)


ENCODE = CodecKernel(
    _encode_loop, _encode_numpy, reads=(VALUES,), writes=(VALUES, "f4", "f4", "u1", "u1"), scalars=("i8",),
    calls=(add_up, pack_loop),
)  # fmt: skip
DECODE = CodecKernel(_decode_loop, _decode_numpy, reads=("f4", "f4", "u1", "u1"), writes=(VALUES,), scalars=("i8",))


@dataclass(frozen=True)
class TwoBit(Codec):
    """See `twobit`."""

    name: ClassVar[str] = "twobit"
    error_feedback: ClassVar[bool] = True
    portable: ClassVar[bool] = False

    block: int = block_size()

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: float32 low and high means, then all signs, then which are large."""
        return 8 * num_blocks(size, self.block) + 2 * num_octets(size)

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        assert residual is not None
        blob = np.empty(self.encoded_nbytes(array.size, array.dtype), np.uint8)
        low, high, signs, larges = _parts(blob, array.size, self.block)

        def encode(part: slice) -> None:
            blocks = slice(part.start // self.block, num_blocks(part.stop, self.block))
            bits = slice(part.start // 8, num_octets(part.stop))
            written = low[blocks], high[blocks], signs[bits], larges[bits]
            ENCODE(backend, array.dtype, array[part], residual[part], *written, self.block)

        spread([partial(encode, part) for part in spans(array.size, LANES * self.block, spread, backend)])
        return blob

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        blob = self._whole_blob(blob, self.encoded_nbytes(size, dtype))
        low, high, *planes = _parts(blob, size, self.block)
        array = np.empty(size, dtype)
        DECODE(backend, dtype, low, high, *(unpack(plane, size) for plane in planes), array, self.block)
        return array, blob.nbytes


def _parts(blob: Bytes, size: int, block: int) -> tuple[Array, Array, Bytes, Bytes]:
    """Return both means, all signs, and the bits that say which are large."""
    one, bits = 4 * num_blocks(size, block), num_octets(size)
    low, high = blob[:one].view(np.float32), blob[one : 2 * one].view(np.float32)
    return low, high, blob[2 * one : 2 * one + bits], blob[2 * one + bits :]


def twobit(block: int = 1024) -> TwoBit:
    r"""Return the codec that sends signs and one of two magnitudes, which fit the block.

    With the residual :math:`e` and the gradient :math:`g`, at each step and in each block:

    .. math:: v = g + e, \qquad m = \mathrm{mean}_j |v_j|, \qquad
        \mathrm{sent}_i = \mathrm{sign}(v_i) \begin{cases}
        \mathrm{mean}\{|v_j| : |v_j| > m\} & |v_i| > m \\ \mathrm{mean}\{|v_j| : |v_j| \le m\} & |v_i| \le m
        \end{cases}, \qquad e \leftarrow v - \mathrm{sent}

    Parameters
    ----------
    block : int
        How many values share the two magnitudes.

    Notes
    -----
    MXNet's 2-bit compression sends one of ``-t, 0, t`` with a threshold ``t`` the user has to guess,
    and the fourth code is idle. Here the cut and both magnitudes follow the gradient, as it shrinks
    during training; in a block of few large values and zeros, zeros are sent as zeros. The means
    have the least squared error for that cut, which makes the codec a contraction. A block with
    an infinity or NaN decodes to nothing but those.

    References
    ----------
    MXNet, "Gradient Compression" (2-bit quantization with error feedback). Li et al., "Ternary Weight
    Networks", arXiv:1605.04711 (a cut proportional to the mean magnitude). Karimireddy et al., "Error
    Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
    """
    return TwoBit(block)
