"""The few largest values, as they are; the rest waits in the residual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ProtocolError
from .base import Array, Bytes, Codec, octets, real
from .kernels import VALUES, Backend, CodecKernel, namespace

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

#: A magnitude is a float32 without its sign, seen as an integer; bins of the histogram are its upper 11 bits.
BIN_BITS = 20
NUM_BINS = 1 << (31 - BIN_BITS)
BAD_INDICES = "the indices of a topk blob do not ascend, or one is beyond {} values"


def _add_loop(x: Any, residual: Any, counts: Any) -> None:
    for i in range(x.size):
        residual[i] = x[i] + residual[i]
    for i in range(x.size):
        counts[np.uint32(np.float32(residual[i]).view(np.uint32) & np.uint32(0x7FFFFFFF)) >> np.uint32(BIN_BITS)] += 1


def _add_numpy(xp: Any, x: Any, residual: Any, counts: Any) -> None:
    residual += x
    counts += xp.bincount(_magnitudes(residual) >> np.uint32(BIN_BITS), minlength=NUM_BINS).astype(np.uint32)


def _collect_loop(values: Any, found: Any, floor: Any) -> None:
    n = 0
    for i in range(values.size):
        if np.uint32(np.float32(values[i]).view(np.uint32) & np.uint32(0x7FFFFFFF)) >= floor and n < found.size:
            found[n] = i
            n += 1


def _collect_numpy(xp: Any, values: Any, found: Any, floor: Any) -> None:
    found[:] = xp.flatnonzero(_magnitudes(values) >= floor)


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
COLLECT = CodecKernel(_collect_loop, _collect_numpy, reads=(VALUES,), writes=("u4",), scalars=("u4",))
SCATTER = CodecKernel(_scatter_loop, _scatter_numpy, reads=("u4", VALUES), writes=(VALUES,), returns="?")


@dataclass(frozen=True)
class TopK(Codec):
    """See `topk`."""

    name: ClassVar[str] = "topk"
    error_feedback: ClassVar[bool] = True
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

    def _encode(self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType) -> Bytes:
        assert residual is not None
        xp = namespace(backend)
        counts = xp.zeros(NUM_BINS, np.uint32)
        ADD(backend, array.dtype, array, residual, counts)
        indices = self._largest(residual, counts, backend)
        middle = 4 + 4 * indices.size
        blob: Bytes = xp.empty(middle + indices.size * array.itemsize, np.uint8)
        blob[:4].view(np.uint32)[:] = indices.size
        blob[4:middle].view(np.uint32)[:] = indices
        blob[middle:] = residual[indices].view(np.uint8)  # as bytes: they may begin where no value of theirs may
        residual[indices] = 0.0
        return blob

    def _largest(self, values: Array, counts: Array, backend: Backend | ModuleType) -> Array:
        """Return the ascending indices of the largest values; of equal ones, the first come first."""
        xp = namespace(backend)
        most = self.most(values.size)
        at_least = xp.cumsum(counts[::-1], dtype=np.int64)[::-1]  # how many values are in a bin or above it
        lowest = int(xp.count_nonzero(at_least >= most)) - 1  # the highest bin with enough of them above
        floor = np.uint32(max(lowest << BIN_BITS, 1))
        # in the bin of zero all but the zeros count, so there the histogram says too much
        count = at_least[lowest] if lowest > 0 else xp.count_nonzero(_magnitudes(values))
        found: Array = xp.empty(int(count), np.uint32)
        COLLECT(backend, values.dtype, values, found, floor)
        if found.size <= most:
            return found
        keys = _magnitudes(values[found])
        least = xp.partition(keys, keys.size - most)[keys.size - most]
        chosen = keys > least
        chosen[xp.flatnonzero(keys == least)[: most - int(xp.count_nonzero(chosen))]] = True
        ascending: Array = found[chosen]
        return ascending

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
    where they can be refused. No comparison sort: a histogram of the exponents and three more bits
    finds the few values that need one.

    References
    ----------
    Lin et al., "Deep Gradient Compression", ICLR 2018. Stich et al., "Sparsified SGD with Memory",
    NeurIPS 2018. Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", ICML 2019.
    """
    return TopK(fraction)
