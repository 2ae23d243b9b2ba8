"""What a shard keeps of one slice, and how new values are computed of several."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.server.memory import Memory
from zmqps.core.server.rules import UpdateKernel
from zmqps.core.server.undo import Undo
from zmqps.errors import InternalError, ShardBrokenError

#: A buffer, and who reads it.
Room = tuple[Array, list[Reader]]


class Pin:
    """Keeps a buffer as it is until ``done``: a version that may still be asked for."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class SliceState:
    """A slice of the shard: its values, slots and version."""

    __slots__ = (
        *("groups", "history", "places", "positions", "readers", "size", "slice", "slots", "steps", "value", "version"),
    )

    def __init__(self, slice_: Slice, value: Array, slots: tuple[Array, ...], kernel_of: Sequence[int]) -> None:
        self.slice = slice_
        self.size = slice_.size
        self.value = value
        self.slots = slots
        self.version = 0
        self.readers: list[Reader] = []  # who still reads ``value``
        self.places: list[tuple[Array, list[Reader]]] = [(value, self.readers)]  # where it belongs, and its readers
        self.history: deque[tuple[int, Array, list[Reader], Pin]] = deque()  # versions kept readable
        self.positions = [segment.position for segment in slice_.segments]
        self.groups = np.array([kernel_of[segment.parameter] for segment in slice_.segments], np.int32)
        # updates each parameter has had: a push of some parameters is not a step of the others
        self.steps = np.zeros(len(slice_.segments), np.int64)

    def segments(self, start: int, stop: int) -> tuple[int, int]:
        """Return first and one-past-last number of the segments that ``[start, stop)`` touches."""
        return bisect_right(self.positions, start) - 1, bisect_left(self.positions, stop)

    def at(self, version: int | None) -> tuple[int, Array, list[Reader]]:
        """Return a version (None: the current one) with its values and who reads them."""
        for number, value, readers, _ in self.history:
            if number == version:
                return number, value, readers
        return self.version, self.value, self.readers

    def runs(self, start: int, stop: int) -> list[tuple[int, int, int, int]]:
        """Return ``(start, stop, kernel, updates so far)`` of stretches that one kernel call can take."""
        first, last = self.segments(start, stop)
        keys = list(zip(self.groups[first:last].tolist(), self.steps[first:last].tolist(), strict=True))
        runs: list[tuple[int, int, int, int]] = []
        for number, (kernel, steps) in enumerate(keys):
            if number and keys[number - 1] == (kernel, steps):
                continue
            begin = self.positions[first + number] if number else start
            if runs:
                runs[-1] = runs[-1][0], begin, *runs[-1][2:]
            runs.append((begin, stop, kernel, steps))
        return runs


class Rooms(Protocol):
    """What updates need of `zmqps.core.server.buffers.Buffers`."""

    def room(self, state: SliceState) -> Room:
        """Return a buffer that nobody reads for the next values of a slice."""

    def put_back(self, state: SliceState, room: Room) -> None:
        """The slice stays where it is."""


class Updates:
    """Computes new values and slots of slices: of all slices that belong together, or of none.

    Parameters
    ----------
    kernels
        By number; None: of frozen parameters.
    rooms
        Where new values go while somebody reads the old ones.
    memory
        Of the arrays.
    undoes
        Whether kernels may fail after they have begun to write, so that copies must be kept meanwhile.
    """

    def __init__(self, kernels: Sequence[UpdateKernel | None], rooms: Rooms, memory: Memory, *, undoes: bool) -> None:
        self.broken: ShardBrokenError | None = None  # an update failed half way and could not be taken back
        self._kernels = kernels
        self._rooms = rooms
        self._memory = memory
        self._undoes = undoes
        self._num_calls = 0  # of kernels, in the update under way

    def compute(
        self,
        states: Sequence[SliceState],
        pieces: Sequence[tuple[SliceState, int, Any]],
        gradients: Sequence[Array | None] = (),
    ) -> dict[int, Room]:
        """Run the kernels over pieces of gradients, once all memory is there that is needed.

        Nothing is counted, and no slice is moved.

        Parameters
        ----------
        states, pieces
            The slices, and for each piece its slice and first element.
        gradients
            What to apply instead of each piece; None: what `Memory.take` makes of it.

        Returns
        -------
        dict of int to Room
            Where the new values of a slice are, by its number; of those left out they are in place.

        Raises
        ------
        ShardBrokenError
            It failed after a kernel had written, and there was no copy. Whatever else fails changes nothing.
        """
        rooms: dict[int, Room] = {}
        undo = None
        self._num_calls = 0
        try:
            for state in states:
                if state.readers or state.value is not state.places[0][0]:  # it is read, or not at home
                    rooms[state.slice.index] = self._rooms.room(state)
            if self._undoes:
                undo = Undo(self._memory)
                for state in states:
                    room = rooms.get(state.slice.index, (state.value, state.readers))
                    undo.save([room[0], *state.slots])  # the room may be a version that stays if this fails
            if len(pieces) > 1 and not gradients:
                pieces = self._memory.secure(pieces)
            if rooms:
                _fill(rooms, states, pieces)
            for number, (state, start, piece) in enumerate(pieces):
                out = rooms[state.slice.index][0] if rooms and state.slice.index in rooms else state.value
                gradient = gradients[number] if gradients else None
                self._apply(state, out, start, self._memory.take(piece) if gradient is None else gradient)
        except BaseException as error:
            self._take_back(states, rooms, undo, error)
            raise
        return rooms

    def _apply(self, state: SliceState, out: Array, start: int, gradient: Array) -> None:
        """Update elements from ``start`` of a slice, out of its value into ``out``."""
        source = state.value
        for lo, hi, kernel_index, step in state.runs(start, start + gradient.size):
            kernel = self._kernels[kernel_index]
            if kernel is not None:
                slots, new = tuple([slot[lo:hi] for slot in state.slots]), out[lo:hi]
                w = new if source is out else source[lo:hi]
                kernel(w, gradient[lo - start : hi - start], new, slots, step + 1)
                self._num_calls += 1
            elif source is not out:
                out[lo:hi] = source[lo:hi]

    def _take_back(
        self, states: Sequence[SliceState], rooms: dict[int, Room], undo: Undo | None, cause: BaseException
    ) -> None:
        """Leave all as it was before an update that has failed; raise `ShardBrokenError` if that cannot be done."""
        for state in states:
            if state.slice.index in rooms:
                self._rooms.put_back(state, rooms[state.slice.index])
        torn = undo is None and (self._num_calls > 0 or isinstance(cause, InternalError))
        try:
            if undo is not None:
                undo.restore()
        except Exception:
            torn = True
        if torn:
            self.broken = ShardBrokenError(why=f"{type(cause).__name__}: {cause}"[:200])
            raise self.broken.again() from cause


def _fill(rooms: dict[int, Room], states: Sequence[SliceState], pieces: Sequence[tuple[SliceState, int, Any]]) -> None:
    """Copy to other buffers what an update leaves out."""
    for state in states:
        room = rooms.get(state.slice.index)
        if room is not None and room[0] is not state.value:
            if sum([piece.size for owner, _, piece in pieces if owner is state]) < state.size:
                room[0][:] = state.value
