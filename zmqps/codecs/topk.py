"""The few largest values, as they are; the rest waits in the residual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from ..errors import ProtocolError
from .base import Array, Bytes, Codec, octets, real
from .kernels import VALUES, Backend, CodecKernel, Spread, namespace, spans

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: A magnitude is a float32 without its sign, seen as an integer; bins of the histogram are its upper 11 bits.
BIN_BITS = 20
TABLE_BITS = 31 - BIN_BITS
NUM_BINS = 1 << TABLE_BITS
#: Copies of the histogram, which are filled in turns.
NUM_TABLES = 4
#: Values that are looked at in one go.
CHUNK = 1024
BAD_INDICES = "the indices of a topk blob do not ascend, or one is beyond {} values"


def _add_loop(x: Any, residual: Any, counts: Any) -> None:
    tables = np.zeros(NUM_TABLES << TABLE_BITS, np.uint32)
    for start in range(0, x.size, CHUNK):
        chunk = slice(start, start + CHUNK)  # stays in the fastest cache meanwhile
        xs, rest = x[chunk], residual[chunk]
        for i in range(rest.size):
            rest[i] = xs[i] + rest[i]
        for i in range(rest.size):
            key = np.uint32(np.float32(rest[i]).view(np.uint32) & np.uint32(0x7FFFFFFF))
            # in turns, as one value's bin is often that of the next, and would have to be read as it is written
            tables[np.uint32(np.uint32(i % NUM_TABLES) << np.uint32(TABLE_BITS)) + (key >> np.uint32(BIN_BITS))] += 1
    for i in range(NUM_BINS):
        for table in range(NUM_TABLES):
            counts[i] += tables[(table << TABLE_BITS) + i]


def _add_numpy(xp: Any, x: Any, residual: Any, counts: Any) -> None:
    residual += x
    counts += xp.bincount(_magnitudes(residual) >> np.uint32(BIN_BITS), minlength=NUM_BINS).astype(np.uint32)


def _collect_loop(residual: Any, found: Any, values: Any, keys: Any, floor: Any, sure: Any, first: Any) -> int:
    zero = residual.dtype.type(0.0)
    n = num_unsure = 0
    for start in range(0, residual.size, CHUNK):
        rest, indices, copies = residual[start : start + CHUNK], found[n:], values[n:]
        num = 0
        for i in range(rest.size):
            v = rest[i]
            indices[num] = first + start + i
            copies[num] = v  # each, and counted if it is one: branches would be mispredicted
            num += int(np.uint32(np.float32(v).view(np.uint32) & np.uint32(0x7FFFFFFF)) >= floor)
        for i in range(rest.size):
            v = rest[i]
            rest[i] = zero if np.uint32(np.float32(v).view(np.uint32) & np.uint32(0x7FFFFFFF)) >= sure else v
        unsure = keys[num_unsure:]
        num_here = 0
        for i in range(num):
            key = np.uint32(np.float32(copies[i]).view(np.uint32) & np.uint32(0x7FFFFFFF))
            unsure[num_here] = key
            num_here += int(key < sure)
        n += num
        num_unsure += num_here
    return n


def _collect_numpy(
    xp: Any, residual: Any, found: Any, values: Any, keys: Any, floor: Any, sure: Any, first: Any
) -> int:
    magnitudes = _magnitudes(residual)
    indices = xp.flatnonzero(magnitudes >= floor)
    n = int(indices.size)
    found[:n] = indices + first
    values[:n] = residual[indices]
    unsure = magnitudes[indices]
    unsure = unsure[unsure < sure]
    keys[: unsure.size] = unsure
    residual[magnitudes >= sure] = 0.0
    return n


def _least_loop(keys: Any, need: Any) -> Any:
    least = np.uint32(keys[0] >> np.uint32(BIN_BITS))  # the bin of all
    for bits in (BIN_BITS // 2, 0):  # of each half of what is below a bin's bits there is a histogram
        counts = np.zeros(1 << (BIN_BITS // 2), np.uint32)
        for i in range(keys.size):
            key = keys[i] >> np.uint32(bits)
            counts[key & np.uint32(counts.size - 1)] += np.uint32((key >> np.uint32(BIN_BITS // 2)) == least)
        part = counts.size - 1
        while need > counts[part]:
            need -= counts[part]
            part -= 1
        least = np.uint32(np.uint32(least << np.uint32(BIN_BITS // 2)) | np.uint32(part))
    return least


def _least_numpy(xp: Any, keys: Any, need: Any) -> int:
    return int(xp.partition(keys, keys.size - need)[keys.size - need])


def _send_loop(
    found: Any, values: Any, residual: Any, indices: Any, sent: Any, least: Any, equals: Any, sure: Any
) -> None:
    n = np.uint64(0)
    for i in range(found.size):
        v = values[i]
        key = np.uint32(np.float32(v).view(np.uint32) & np.uint32(0x7FFFFFFF))
        if key < sure:
            if key < least:
                continue
            if key == least:
                if equals == 0:
                    continue
                equals -= 1
            residual[found[i]] = 0.0
        indices[n] = found[i]
        sent[n] = v
        n += np.uint64(1)


def _send_numpy(
    xp: Any, found: Any, values: Any, residual: Any, indices: Any, sent: Any, least: Any, equals: Any, sure: Any
) -> None:
    keys = _magnitudes(values)
    chosen = keys > least
    chosen[xp.flatnonzero(keys == least)[:equals]] = True
    indices[:] = found[chosen]
    sent[:] = values[chosen]
    residual[found[chosen]] = 0.0


def _scatter_loop(indices: Any, values: Any, out: Any) -> bool:
    last = np.int64(-1)
    for i in range(indices.size):
        index = np.int64(indices[i])
        if index <= last or index >= out.size:
            return False
        out[index] = values[i]
        last = index
    return True


def _scatter_numpy(xp: Any, indices: Any, values: Any, out: Any) -> bool:
    if xp is np and not _ascend(indices, out.size):  # a device would be waited for, and `check_blob` has looked
        return False
    out[indices.astype(np.int64)] = values
    return True


def _ascend(indices: Any, size: int) -> bool:
    signed = indices.astype(np.int64)
    return not ((np.diff(signed) <= 0).any() or (signed >= size).any())


def _magnitudes(values: Any) -> Any:
    with np.errstate(over="ignore"):  # beyond float32 a float64 counts as infinite
        return values.astype(np.float32).view(np.uint32) & np.uint32(0x7FFFFFFF)


ADD = CodecKernel(_add_loop, _add_numpy, reads=(VALUES,), writes=(VALUES, "u4"))
COLLECT = CodecKernel(
    _collect_loop, _collect_numpy, reads=(), writes=(VALUES, "u4", VALUES, "u4"), scalars=("u4", "u4", "i8"),
    returns="i8",
)  # fmt: skip
LEAST = CodecKernel(_least_loop, _least_numpy, reads=("u4",), writes=(), scalars=("i8",), returns="u4")
SEND = CodecKernel(
    _send_loop, _send_numpy, reads=("u4", VALUES), writes=(VALUES, "u4", VALUES), scalars=("u4", "i8", "u4")
)
SCATTER = CodecKernel(_scatter_loop, _scatter_numpy, reads=("u4", VALUES), writes=(VALUES,), returns="?")


class _Found(NamedTuple):
    """Values of a part that are large enough to be looked at, in their order.

    Attributes
    ----------
    indices, values
        Where they are, and they themselves.
    keys
        The magnitudes of those that are in the lowest bin: not all of these are sent.
    """

    indices: Array
    values: Array
    keys: Array


@dataclass(frozen=True)
class TopK(Codec):
    """See `topk`."""

    name: ClassVar[str] = "topk"
    error_feedback: ClassVar[bool] = True
    portable: ClassVar[bool] = True
    checkable: ClassVar[bool] = True

    fraction: float = real(0.1, 1e-6, 1.0)

    def most(self, size: int) -> int:
        """Return how many of `size` values are sent at most."""
        return math.ceil(self.fraction * size)

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the most bytes of a blob: a count, then as many indices (uint32), then as many values.

        Zeros are not sent, so there may be fewer.
        """
        return 4 + self.most(size) * (4 + np.dtype(dtype).itemsize)

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        assert residual is not None
        xp, dtype, most = namespace(backend), array.dtype, self.most(array.size)
        parts = spans(array.size, CHUNK, spread, backend)

        def add(part: slice) -> Array:
            counts: Array = xp.zeros(NUM_BINS, np.uint32)
            ADD(backend, dtype, array[part], residual[part], counts)
            return counts

        each = spread([partial(add, part) for part in parts])
        counts = each[0] if len(each) == 1 else np.sum(each, axis=0)
        at_least = xp.cumsum(counts[::-1], dtype=np.int64)[::-1]  # how many values are in a bin or above it
        lowest = int(xp.count_nonzero(at_least >= most)) - 1  # the highest bin with enough of them above
        floor, sure = np.uint32(max(lowest << BIN_BITS, 1)), np.uint32((lowest + 1) << BIN_BITS)  # zeros are not sent

        # one more each, as a loop writes before it knows; zeros are counted, and not found
        rooms = [(int(counts[lowest:].sum()) + 1, int(counts[lowest]) + 1) for counts in each]
        arrays = [(xp.empty(n, np.uint32), xp.empty(n, dtype), xp.empty(m, np.uint32)) for n, m in rooms]

        def collect(part: slice, indices: Array, values: Array, keys: Array) -> _Found:
            n = COLLECT(backend, dtype, residual[part], indices, values, keys, floor, sure, part.start)
            return _Found(indices[:n], values[:n], keys[: n - (values.size - keys.size)])

        found = spread([partial(collect, part, *room) for part, room in zip(parts, arrays, strict=True)])
        return self._send(found, residual, sure, backend, spread)

    def _send(
        self, found: list[_Found], residual: Array, sure: Any, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        """Return the blob of the largest of what was found; of equal ones, the first come first."""
        xp, dtype = namespace(backend), residual.dtype
        num_found = sum(some.values.size for some in found)
        count = min(num_found, self.most(residual.size))
        num_unsure = sum(some.keys.size for some in found)
        equals = count - (num_found - num_unsure)  # how many that are not sure are sent, then how many of equal ones
        least = 0
        if count < num_found:
            keys = found[0].keys if len(found) == 1 else np.concatenate([some.keys for some in found])
            least = int(LEAST(backend, dtype, keys, equals))
        above = [int(xp.count_nonzero(some.keys > np.uint32(least))) for some in found]
        equals -= sum(above)
        middle = 4 + 4 * count
        blob: Bytes = xp.empty(middle + count * dtype.itemsize, np.uint8)
        blob[:4].view(np.uint32)[:] = count
        indices = blob[4:middle].view(np.uint32)
        on_host = isinstance(backend, str)  # elsewhere values may only begin where one of theirs may
        sent = blob[middle:].view(dtype) if on_host else xp.empty(count, dtype)
        tasks, start = [], 0
        for some, num in zip(found, above, strict=True):
            few = min(equals, int(xp.count_nonzero(some.keys == np.uint32(least))))
            to = slice(start, start + some.values.size - some.keys.size + num + few)
            written = residual, indices[to], sent[to]
            tasks.append(
                partial(SEND, backend, dtype, some.indices, some.values, *written, np.uint32(least), few, sure)
            )
            equals, start = equals - few, to.stop
        spread(tasks)
        if not on_host:
            blob[middle:] = sent.view(np.uint8)
        return blob

    def warm_up(self, dtype: DTypeLike, backend: Backend = "numba") -> None:
        """Compile, or load from disk, what the first array would otherwise wait for."""
        super().warm_up(dtype, backend)
        LEAST(backend, np.dtype(dtype), np.zeros(1, np.uint32), 1)  # an array without values leaves none out

    def check_blob(self, view: Any, size: int, dtype: DTypeLike) -> Bytes:
        """Return the blob that a view starts with, checked but not decoded."""
        blob = self._counted(octets(view), size, np.dtype(dtype))
        middle = _middle(blob, np.dtype(dtype))
        if not _ascend(blob[4:middle].view(np.uint32), size):
            raise ProtocolError(BAD_INDICES.format(size))
        return blob

    def _counted(self, blob: Bytes, size: int, dtype: np.dtype[Any]) -> Bytes:
        """Return the blob alone, as long as its count says."""
        count = int(self._whole_blob(blob, 4).view(np.uint32)[0])
        if count > self.most(size):
            raise ProtocolError(f"codec {self.spec!r} sends at most {self.most(size)} of {size} values, not {count}")
        return self._whole_blob(blob, 4 + count * (4 + dtype.itemsize))

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        if isinstance(backend, str):  # a device's is alone, and reading its count would be waiting
            blob = self._counted(blob, size, dtype)
        middle = _middle(blob, dtype)
        values = blob[middle:] if middle % dtype.itemsize == 0 else blob[middle:].copy()  # a GPU reads aligned only
        array: Array = namespace(backend).zeros(size, dtype)
        if not SCATTER(backend, dtype, blob[4:middle].view(np.uint32), values.view(dtype), array):
            raise ProtocolError(BAD_INDICES.format(size))
        return array, blob.nbytes


def _middle(blob: Bytes, dtype: np.dtype[Any]) -> int:
    """Return where the values begin in a blob that is alone: behind as many indices."""
    return 4 + 4 * ((blob.nbytes - 4) // (4 + dtype.itemsize))


def topk(fraction: float = 0.1) -> TopK:
    r"""Return the codec that sends the largest values, and keeps the others for later.

    With the residual :math:`e` and the gradient :math:`g`, at each step:

    .. math:: v = g + e, \qquad \text{send } v_i \text{ where } |v_i| \text{ is among the }
        \lceil \text{fraction} \cdot n \rceil \text{ largest}, \qquad e \leftarrow v - \text{sent}

    Parameters
    ----------
    fraction : float
        Part of the values to send, of every slice.

    Notes
    -----
    What is sent is exact, and a sent value's residual is zero. Magnitudes are compared as float32, of
    equal ones the first goes first. Infinity and NaN count as the largest of all, so that they come out
    where they can be refused. Nothing is sorted: a histogram of the exponents and three more bits finds the few
    values among which the smallest one that is sent has to be looked for, and two more histograms find that.

    References
    ----------
    Lin et al., "Deep Gradient Compression", ICLR 2018. Stich et al., "Sparsified SGD with Memory",
    NeurIPS 2018. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """
    return TopK(fraction)
