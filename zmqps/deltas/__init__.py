"""Deltas: what has changed between two versions of an array, bit for bit, in a little over a byte a changed element.

Elements are seen as *words*, unsigned integers of their bits. The difference of two words is taken modulo ``2**width``,
so differences add up exactly: of versions 1, 2 and 3 the sum of both differences is that of 1 and 3. A reader at any
version that deltas are kept from gets one, the sum, and no old values are kept::

    from zmqps import deltas

    delta = deltas.between(deltas.words(old), deltas.words(new))
    deltas.add(delta, deltas.words(old))                      # old is new now
    delta = deltas.merge([first, second], old.size, np.dtype("u4"))

A delta has for each `BLOCK` of words the number of its bytes, four each, then the blocks: nothing where no word has
changed; two bytes with the ``k`` of the gaps and of the differences (`zmqps.deltas.kernels`), two with how many words
have changed, less one, and their bits; or `DENSE` and all differences as they are, where that is shorter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..codecs import Backend
from ..errors import ProtocolError
from .kernels import ADD, BLOCK, GAP_BITS, HEAD_NBYTES, LINE_NBYTES, PACK, SLACK_NBYTES

__all__ = ["BLOCK", "Packer", "add", "between", "merge", "words"]

Words = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: In the place of k.
DENSE = 255
_LENGTH = np.dtype("<u4")


def words(array: np.ndarray[Any, Any]) -> Words:
    """Return the bits of a contiguous array as unsigned integers, without a copy.

    Parameters
    ----------
    array : ndarray
        Of elements of 1, 2, 4 or 8 bytes.

    Returns
    -------
    ndarray
        One-dimensional; writing to it writes to ``array``.
    """
    return array.reshape(-1).view(f"u{array.itemsize}")


class Packer:
    """Makes a delta block by block, for differences that are found in a pass over the values.

    Parameters
    ----------
    dtype
        Of the words.
    backend
        Of the loops.
    """

    def __init__(self, dtype: np.dtype[Any], backend: Backend = "numba") -> None:
        self._dtype = dtype
        self._backend = backend
        self._positions = np.empty(BLOCK + LINE_NBYTES, np.uint16)
        self._out = np.empty((BLOCK * dtype.itemsize + SLACK_NBYTES) // 4, np.uint32)
        self._blocks: list[bytes] = []

    def add(self, differences: Words, size: int = BLOCK) -> None:
        """Append a block: the first ``size`` of `BLOCK` differences, all others zero."""
        most = size * self._dtype.itemsize
        nbytes = PACK(self._backend, self._dtype, differences, self._positions, self._out, most)
        if nbytes < 0:
            self._blocks.append(bytes([DENSE]) + differences[:size].tobytes())
        else:
            self._blocks.append(self._out.view(np.uint8)[:nbytes].tobytes())

    def finish(self) -> Bytes:
        """Return the delta of all blocks, and begin the next one."""
        lengths = np.array([len(block) for block in self._blocks], _LENGTH)
        made = np.frombuffer(b"".join([lengths.tobytes(), *self._blocks]), np.uint8)
        self._blocks = []
        return made


def between(old: Words, new: Words, *, backend: Backend = "numba") -> Bytes:
    """Return the delta from one version to another.

    Parameters
    ----------
    old, new : ndarray of unsigned integers
        As many words of one size.
    """
    packer = Packer(new.dtype, backend)
    differences = np.zeros(BLOCK, new.dtype)  # of a block, so that they are still in the cache when they are packed
    for start in range(0, new.size, BLOCK):
        block = new[start : start + BLOCK]
        np.subtract(block, old[start : start + BLOCK], out=differences[: block.size])
        differences[block.size :] = 0
        packer.add(differences, block.size)
    return packer.finish()


def add(delta: Bytes, words: Words, *, subtract: bool = False, backend: Backend = "numba") -> None:
    """Let words be those of the newer version, in place.

    Parameters
    ----------
    delta : ndarray of uint8
        From `between` or `merge`; it need not be trusted.
    words : ndarray of unsigned integers
        Of the older version, as many as the delta is of; or with ``subtract`` of the newer one, which become the older.

    Raises
    ------
    ProtocolError
        It is not a delta of this many words of this size. Some may have been written: add to a copy.
    """
    for start, block in _blocks(delta, words.size):
        _add_block(block, words[start : start + BLOCK], subtract, backend)


def merge(deltas: Sequence[Bytes], size: int, dtype: np.dtype[Any], *, backend: Backend = "numba") -> Bytes:
    """Return the sum of deltas, which is at most as long as they are together.

    Parameters
    ----------
    deltas : sequence of ndarray of uint8
        Of consecutive versions, in any order; at least one.
    size, dtype
        Of the words.

    Raises
    ------
    ProtocolError
        One of them is not a delta of such words.
    """
    packer = Packer(dtype, backend)
    sum_ = np.empty(BLOCK, dtype)
    for several in zip(*(_blocks(delta, size) for delta in deltas), strict=True):
        start = several[0][0]
        num = min(BLOCK, size - start)
        sum_[:] = 0
        for _, block in several:
            _add_block(block, sum_[:num], False, backend)
        packer.add(sum_, num)
    return packer.finish()


def _blocks(delta: Bytes, size: int) -> Iterator[tuple[int, Bytes]]:
    """Yield the first word of each block, and the block."""
    num = -(-size // BLOCK)
    at = num * _LENGTH.itemsize
    lengths = delta[:at].view(_LENGTH).astype(np.int64) if delta.size >= at else np.empty(0, np.int64)
    if lengths.size != num or at + int(lengths.sum()) != delta.size:
        raise ProtocolError(f"{delta.size} bytes are not a delta of {size} words")
    for number, length in enumerate(lengths.tolist()):
        yield number * BLOCK, delta[at : at + length]
        at += length


def _add_block(block: Bytes, words: Words, subtract: bool, backend: Backend) -> None:
    if block.size == 0:
        return
    width = 8 * words.itemsize
    if block[0] == DENSE:
        if block.size != 1 + words.nbytes:
            raise ProtocolError(f"a dense block of {block.size} bytes does not have {words.size} words")
        differences = block[1:].view(words.dtype)
        if subtract:
            words -= differences
        else:
            words += differences
        return
    if block.size < HEAD_NBYTES or block[0] >= GAP_BITS or block[1] >= width:
        raise ProtocolError(f"a block of a delta begins with {block[:HEAD_NBYTES].tobytes().hex()}")
    count = int(block[2]) + (int(block[3]) << 8) + 1
    numbers = np.uint64(block[0]), np.uint64(block[1]), np.uint64(width), np.uint64(-int(subtract) % (1 << 64))
    if not ADD(backend, words.dtype, block[HEAD_NBYTES:], words, count, *numbers):
        raise ProtocolError(f"a block of a delta does not fit {words.size} words")
