"""Values left where they arrived, as arrays.

An array in consecutive frames of the same borrowed memory is a view of it, and so is one in one received frame of which
it is a large part; any other is assembled in a buffer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import (
    Array,
    Borrowed,
    Bytes,
    CopyOnWrite,
    OwnMemory,
    borrow,
    lender_of,
    received,
    scatter,
)
from zmqps.core.worker.transfer import Cargo, Target

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: A view keeps its whole frame in memory: at most this many times its own size.
MOST_KEPT = 16
#: The same for arrays that belong to the caller, which does not expect them to keep more than themselves.
MOST_KEPT_OWN = 4


class _Piece(NamedTuple):
    """Bytes ``[start, stop)`` of a buffer, by address, stored at ``start + shift`` of a borrowed memory.

    Without an owner they were received, are a whole buffer, and are stored nowhere else.
    """

    start: int
    stop: int
    shift: int
    array: Array
    owner: Borrowed | None


class Views:
    """The received values of a pull whose arrays are read in place.

    Each array has a buffer, flat and of the dtype of the wire. Its place in memory says what belongs together, and it
    holds what has to be copied.

    Parameters
    ----------
    buffers
        All of them.
    copy_on_write
        None: the arrays are read-only. Otherwise they belong to the caller, and may be written to.
    """

    def __init__(self, buffers: Sequence[Array], copy_on_write: CopyOnWrite | None = None) -> None:
        self._buffers = buffers
        self._copy_on_write = copy_on_write
        self._most_kept = MOST_KEPT if copy_on_write is None else MOST_KEPT_OWN
        self._bounds: list[tuple[int, int]] | None = None  # their addresses, ascending, once needed
        self._pieces: dict[int, _Piece] = {}  # by start

    def land(self, target: Array, array: Array) -> None:
        """Take values for a part of a buffer, or of several adjacent ones: by reference if possible, else as a copy.

        Borrowed memory may stay, and of received data a whole array that is a large part of its frame.
        """
        owner = lender_of(array)
        if owner is None:
            frame = received(array)
            np.copyto(target, array) if frame is None else self._receive(target, array, frame.nbytes)
        else:
            start = _address(target)
            shift = _address(array) - _address(owner) + owner.start - start
            self._pieces[start] = _Piece(start, start + target.nbytes, shift, array, owner)

    def _receive(self, target: Array, array: Array, frame_nbytes: int) -> None:
        start, itemsize, done = _address(target), target.itemsize, 0
        own = self._copy_on_write is not None
        stays = array.flags.writeable or not own
        for lo, hi in self._whole(start, start + target.nbytes) if stays else ():
            if (hi - lo) * self._most_kept >= frame_nbytes:
                first, last = (lo - start) // itemsize, (hi - start) // itemsize
                np.copyto(target[done:first], array[done:first])
                view = array[first:last]
                view.flags.writeable = own
                self._pieces[lo] = _Piece(lo, hi, 0, view, None)
                done = last
        np.copyto(target[done:], array[done:])

    def _whole(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the bounds of buffers between two addresses."""
        if self._bounds is None:
            starts = [(_address(buffer), buffer.nbytes) for buffer in self._buffers if buffer.size]
            self._bounds = sorted((lo, lo + nbytes) for lo, nbytes in starts)
        for number in range(bisect_left(self._bounds, (start, 0)), len(self._bounds)):
            lo, hi = self._bounds[number]
            if hi > stop:
                return
            yield lo, hi

    def forget(self, target: Array) -> None:
        """The values of a part of a buffer are out of date."""
        start, stop = _address(target), _address(target) + target.nbytes
        for known in [known for known in self._pieces if start <= known < stop]:
            del self._pieces[known]

    def arrays(self) -> list[Array]:
        """Return an array for each buffer: of the memory it arrived in, if it is there in one piece."""
        pieces = sorted(self._pieces.values())
        starts = [piece.start for piece in pieces]
        copies: dict[int, OwnMemory | None] = {}
        results = []
        for buffer in self._buffers:
            start = _address(buffer)
            stop = start + buffer.nbytes
            first = max(0, bisect_right(starts, start) - 1)
            over = [piece for piece in pieces[first : bisect_left(starts, stop)] if piece.stop > start]
            view = self._view(buffer.dtype, start, stop, over, copies) if over and buffer.size else None
            results.append(self._joined(buffer, start, over) if view is None else view)
        return results

    def _view(
        self, dtype: np.dtype[Any], start: int, stop: int, pieces: Sequence[_Piece], copies: dict[int, OwnMemory | None]
    ) -> Array | None:
        """Return a whole buffer's values if they are in one piece; ``copies``: of memories, by `id`."""
        first, at = pieces[0], start
        owner = first.owner
        if owner is None:
            return first.array if len(pieces) == 1 and (first.start, first.stop) == (start, stop) else None
        for start_, stop_, shift, _, other in pieces:
            if other is None or start_ > at or other.memory is not owner.memory or shift != first.shift:
                return None
            at = stop_
        if at < stop:
            return None
        memory = owner.memory
        hold: Any = tuple(piece.owner.hold for piece in pieces if piece.owner is not None)
        if self._copy_on_write is not None:
            if id(memory) not in copies:
                copies[id(memory)] = self._copy_on_write(memory, self._holds(memory))
            own = copies[id(memory)]
            if own is None:
                return None
            own.used.append((start + first.shift, stop + first.shift))
            memory, hold = own.data, own
        view: Array = np.frombuffer(borrow(memory, start + first.shift, stop + first.shift, hold), dtype)
        return view if view.flags.aligned else None

    def _holds(self, memory: Bytes) -> tuple[Any, ...]:
        """Return the loans of everything in a borrowed memory."""
        owners = [piece.owner for piece in self._pieces.values() if piece.owner is not None]
        return tuple({id(owner.hold): owner.hold for owner in owners if owner.memory is memory}.values())

    def _joined(self, buffer: Array, start: int, pieces: Sequence[_Piece]) -> Array:
        """Assemble several pieces in an array's buffer."""
        stop = start + buffer.nbytes
        data = buffer.view(np.uint8)
        for piece in pieces:
            lo, hi = max(start, piece.start), min(stop, piece.stop)
            data[lo - start : hi - start] = piece.array.view(np.uint8)[lo - piece.start : hi - piece.start]
        view = buffer.view()
        view.flags.writeable = self._copy_on_write is not None
        return view


@dataclass(slots=True, eq=False, kw_only=True)
class ViewTarget(Target):
    """Leaves values in place if they may stay there; others are copied into ``arrays`` or ``tables``."""

    views: Views

    def land(self, cargoes: Sequence[Cargo], payload: Sequence[Buffer], versions: Sequence[int]) -> None:
        """Take values of cargoes; none, but a `ProtocolError`, if the size is wrong."""
        places = [(place, cargo.dtype) for cargo in cargoes for place in self.places(cargo)]
        for run, offset, array in scatter(payload, [(place.size, dtype) for place, dtype in places]):
            self.views.land(places[run][0][offset : offset + array.size], array)
        for cargo, version in zip(cargoes, versions, strict=True):
            self.landed(cargo, version)

    def forget(self, cargoes: Sequence[Cargo]) -> None:
        """The values of some cargoes are out of date, and will arrive again."""
        Target.forget(self, cargoes)
        for place in [place for cargo in cargoes for place in self.places(cargo)]:
            self.views.forget(place)


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])
