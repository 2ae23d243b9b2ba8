"""One bit a value: its sign, with two scales a block; what that misses waits in the residual."""

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


def _encode_loop(x: Any, residual: Any, up: Any, down: Any, octets: Any, block: Any) -> None:
    negative = np.zeros(LANES * block, np.uint8)
    tiles = np.zeros((2, LANES * TILE))
    above, below = np.zeros(LANES), np.zeros(LANES)
    for first in range(0, up.size, LANES):
        group = slice(first * block, (first + LANES) * block)  # without it numba allows for negative indices
        xs, rest = x[group], residual[group]
        for i in range(rest.size):
            rest[i] = xs[i] + rest[i]
        above[:] = 0.0
        below[:] = 0.0
        for start in range(0, block, TILE):
            for lane in range(LANES):
                vs = rest[lane * block + start : lane * block + min(start + TILE, block)]
                at = slice(lane * TILE, lane * TILE + TILE)
                positive, other = tiles[0][at], tiles[1][at]
                for i in range(vs.size):
                    v = np.float64(vs[i])
                    positive[i] = (
                        abs(v) + v
                    )  # twice the positive part, without a branch that random signs would mislead
                    other[i] = abs(v) - v
                positive[vs.size :] = 0.0
                other[vs.size :] = 0.0
            add_up(tiles[0], above)
            add_up(tiles[1], below)
        for lane in range(min(LANES, up.size - first)):
            part = slice(lane * block, lane * block + block)
            mine, signs = rest[part], negative[part]
            num_below = np.uint32(0)
            for i in range(mine.size):
                signs[i] = mine[i] < 0
                num_below += np.uint32(signs[i])
            positive_mean = np.float32(0.5 * above[lane] / max(mine.size - float(num_below), 1.0))
            negative_mean = np.float32(-0.5 * below[lane] / max(float(num_below), 1.0))
            up[first + lane] = positive_mean
            down[first + lane] = negative_mean
            for i in range(mine.size):
                v = mine[i]
                mine[i] = v - (negative_mean if v < 0 else positive_mean)
        negative[rest.size :] = 0
        pack_loop(negative, octets[first * block // 8 : (first * block + rest.size + 7) // 8])


def _encode_numpy(xp: Any, x: Any, residual: Any, up: Any, down: Any, octets: Any, block: Any) -> None:
    residual += x
    rows = padded_blocks(xp, residual.astype(np.float64), block)
    sizes = xp.minimum(block, x.size - block * xp.arange(up.size))
    num_below = (rows < 0).sum(axis=1)
    # cumsum adds one by one, as the loop does
    above = xp.cumsum(xp.abs(rows) + rows, axis=1)[:, -1]
    below = xp.cumsum(xp.abs(rows) - rows, axis=1)[:, -1]
    up[:] = 0.5 * above / xp.maximum(sizes - num_below, 1)
    down[:] = -0.5 * below / xp.maximum(num_below, 1)
    octets[:] = xp.packbits(residual < 0, bitorder="little")
    residual -= xp.where(rows < 0, down[:, None], up[:, None]).reshape(-1)[: x.size]


def _decode_loop(up: Any, down: Any, negative: Any, out: Any, block: Any) -> None:
    for b in range(up.size):
        part = slice(b * block, b * block + block)
        signs, outs = negative[part], out[part]
        up_bits = np.float32(up[b]).view(np.uint32)
        difference = np.uint32(up_bits ^ np.float32(down[b]).view(np.uint32))
        for i in range(outs.size):  # on bits, as branches would be mispredicted
            mask = np.uint32(np.uint32(0) - np.uint32(signs[i]))
            outs[i] = np.uint32(up_bits ^ (difference & mask)).view(np.float32)


def _decode_numpy(xp: Any, up: Any, down: Any, negative: Any, out: Any, block: Any) -> None:
    rows = padded_blocks(xp, negative, block)
    out[:] = xp.where(rows, down[:, None], up[:, None]).reshape(-1)[: out.size]


ENCODE = CodecKernel(
    _encode_loop, _encode_numpy, reads=(VALUES,), writes=(VALUES, "f4", "f4", "u1"), scalars=("i8",),
    calls=(add_up, pack_loop),
)  # fmt: skip
DECODE = CodecKernel(_decode_loop, _decode_numpy, reads=("f4", "f4", "u1"), writes=(VALUES,), scalars=("i8",))


@dataclass(frozen=True)
class OneBit(Codec):
    """See `onebit`."""

    name: ClassVar[str] = "onebit"
    error_feedback: ClassVar[bool] = True
    portable: ClassVar[bool] = False

    block: int = block_size()

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: the float32 means of both signs, then a bit a value."""
        return 8 * num_blocks(size, self.block) + num_octets(size)

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        assert residual is not None
        blob = np.empty(self.encoded_nbytes(array.size, array.dtype), np.uint8)
        up, down, octets = _parts(blob, array.size, self.block)

        def encode(part: slice) -> None:
            blocks = slice(part.start // self.block, num_blocks(part.stop, self.block))
            written = up[blocks], down[blocks], octets[part.start // 8 : num_octets(part.stop)]
            ENCODE(backend, array.dtype, array[part], residual[part], *written, self.block)

        spread([partial(encode, part) for part in spans(array.size, LANES * self.block, spread, backend)])
        return blob

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        blob = self._whole_blob(blob, self.encoded_nbytes(size, dtype))
        up, down, octets = _parts(blob, size, self.block)
        array = np.empty(size, dtype)
        DECODE(backend, dtype, up, down, unpack(octets, size), array, self.block)
        return array, blob.nbytes


def _parts(blob: Bytes, size: int, block: int) -> tuple[Array, Array, Bytes]:
    """Return the means of both signs, and the bits."""
    one = 4 * num_blocks(size, block)
    return blob[:one].view(np.float32), blob[one : 2 * one].view(np.float32), blob[2 * one :]


def onebit(block: int = 1024) -> OneBit:
    r"""Return the codec that sends signs, and for each block the mean of either sign.

    With the residual :math:`e` and the gradient :math:`g`, at each step and in each block:

    .. math:: v = g + e, \qquad \mathrm{sent}_i = \begin{cases}
        \mathrm{mean}\{v_j : v_j \ge 0\} & v_i \ge 0 \\ \mathrm{mean}\{v_j : v_j < 0\} & v_i < 0
        \end{cases}, \qquad e \leftarrow v - \mathrm{sent}

    The two means are the two numbers with the least squared error, which makes the codec a
    contraction: :math:`\lVert v - \mathrm{sent} \rVert \le \lVert v \rVert`.

    Parameters
    ----------
    block : int
        How many values share the two means.

    Notes
    -----
    A block with an infinity or NaN decodes to nothing but those.

    References
    ----------
    Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed
    Training of Speech DNNs", Interspeech 2014. Karimireddy et al., "Error Feedback Fixes SignSGD and
    other Gradient Compression Schemes", ICML 2019.
    """
    return OneBit(block)
