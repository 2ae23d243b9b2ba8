"""Values read in place, as arrays.

One that lies in consecutive frames of the same borrowed memory is a view of it; any other is put
together in a buffer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.loans import Borrowed, borrow, lender_of


class _Piece(NamedTuple):
    """Bytes ``[start, stop)`` of a buffer, by their addresses, that lie at ``start + shift`` of a memory."""

    start: int
    stop: int
    shift: int
    array: Array
    owner: Borrowed


class Views:
    """What came for the arrays of a pull that are read where they lie.

    Each array has a buffer, flat and of the dtype of the wire, which says by its place in memory what
    belongs together and holds what has to be copied.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, _Piece] = {}  # by start

    def land(self, target: Array, array: Array) -> None:
        """Take values for a part of a buffer: by reference if they are borrowed, else as a copy."""
        owner = lender_of(array)
        if owner is None:
            np.copyto(target, array)
        else:
            start = _address(target)
            shift = _address(array) - _address(owner) + owner.start - start
            self._pieces[start] = _Piece(start, start + target.nbytes, shift, array, owner)

    def forget(self, target: Array) -> None:
        """What came for a part of a buffer is out of date."""
        start, stop = _address(target), _address(target) + target.nbytes
        for known in [known for known in self._pieces if start <= known < stop]:
            del self._pieces[known]

    def arrays(self, buffers: Sequence[Array]) -> list[Array]:
        """Return a read-only array for each buffer: of the borrowed memory if it lies there in one piece."""
        pieces = sorted(self._pieces.values())
        starts = [piece.start for piece in pieces]
        results = []
        for buffer in buffers:
            start = _address(buffer)
            stop = start + buffer.nbytes
            first = max(0, bisect_right(starts, start) - 1)
            if pieces and buffer.size and pieces[first].start <= start and stop <= pieces[first].stop:
                array, offset = pieces[first].array, (start - pieces[first].start) // buffer.itemsize
                results.append(array[offset : offset + buffer.size])
                continue
            over = [piece for piece in pieces[first : bisect_left(starts, stop)] if piece.stop > start]
            results.append(_joined(buffer, start, over))
        return results


def _joined(buffer: Array, start: int, pieces: Sequence[_Piece]) -> Array:
    """Return several pieces as one array, or, put together in its buffer, what came for that."""
    stop = start + buffer.nbytes
    view = _view(buffer.dtype, start, stop, pieces)
    if view is None:
        data = buffer.view(np.uint8)
        for piece in pieces:
            lo, hi = max(start, piece.start), min(stop, piece.stop)
            data[lo - start : hi - start] = piece.array.view(np.uint8)[lo - piece.start : hi - piece.start]
        view = buffer.view()
        view.flags.writeable = False
    return view


def _view(dtype: np.dtype[Any], start: int, stop: int, pieces: Sequence[_Piece]) -> Array | None:
    """Return the borrowed memory that holds a whole buffer's values in one piece."""
    if not pieces:
        return None
    memory, shift, at = pieces[0].owner.memory, pieces[0].shift, start
    for piece in pieces:
        if piece.start > at or piece.owner.memory is not memory or piece.shift != shift:
            return None
        at = piece.stop
    if at < stop:
        return None
    hold = tuple(piece.owner.hold for piece in pieces)
    view: Array = np.frombuffer(borrow(memory, start + shift, stop + shift, hold), dtype)
    return view if view.flags.aligned else None


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
