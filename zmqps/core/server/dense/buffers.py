"""The buffers that hold the values of slices.

A buffer that is still being read is never written to: an update goes to another one, which takes
its place. Each slice has a *home* in the shard's arena. Where readers may take as long as they like
(`zmqps.core.protocol.arrays.Loan`) it gets a second place, in an arena of the same shape, and goes back and
forth between the two: so neighbours usually stay neighbours, and an array over several slices can
be read in place. Whatever else is needed comes from a pool of spares. How much all that may be, `Beside` says:
without the memory for a second arena there is none. A slice returns to its own place
once that has no readers, and unused spares are released: so memory shrinks
again when a slow reader has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array, Loan
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.message import MAX_ALL_BACKLOGS_NBYTES, MAX_BACKLOG_NBYTES
from zmqps.core.server.dense.memory import GIVE_BACK_NBYTES, Memory
from zmqps.core.server.dense.slices import Pin, Room, SliceState

#: Asked for at once: to ask takes a look at the host.
GRANT_NBYTES = 64 << 20
#: No shard is so small that it has less: a few small values read by many are not worth a look.
LEAST_NBYTES = 4 << 20


def beside_nbytes(values_nbytes: int, num_workers: int) -> int:
    """Return the bytes to admit besides a shard's values.

    What waits to be sent to that many workers, with the bound that all answers have; that of a worker which copies what
    it reads in shared memory is a quarter of it.
    """
    return min(values_nbytes, num_workers * MAX_BACKLOG_NBYTES, MAX_ALL_BACKLOGS_NBYTES)


class Beside:
    """What a shard may take besides its values.

    A lender adds the bytes to ``read_nbytes``, and asks `may_lend` once that exceeds ``lendable_nbytes``.
    """

    def __init__(
        self,
        admitted_nbytes: int | None = None,  # without asking; None: as much as it likes
        more: Callable[[int], bool] = lambda nbytes: True,  # asks for more: ``more(nbytes)``, whether it may be had
    ) -> None:
        self._more = more
        self._second_nbytes = 0
        self._uncounted_nbytes = 0  # to copy before what is read is counted again
        self.admitted_nbytes = admitted_nbytes or 0
        self.granted_nbytes = 0
        self.limit = 1 << 62 if admitted_nbytes is None else max(admitted_nbytes, LEAST_NBYTES)
        self.read_nbytes = 0  # at most this many are needed for what is being read
        self.lendable_nbytes = self.limit

    def may_lend(self, nbytes: int, count: Callable[[], int]) -> bool:
        """Whether others may read the bytes added last in place; ``count`` returns how many are needed now.

        If not, they are taken off again.
        """
        if self._uncounted_nbytes >= nbytes:
            self._uncounted_nbytes -= nbytes
            self.read_nbytes -= nbytes
            return False
        needed = count()
        if self.fits(needed, nbytes):
            self.read_nbytes = needed - self._second_nbytes + nbytes
            return True
        self.read_nbytes = needed - self._second_nbytes
        self._uncounted_nbytes = self.limit // 8  # to count takes time that grows with the slices
        return False

    def may_double(self, nbytes: int) -> bool:
        """Whether a second arena of that many bytes is allowed, whatever is read of either."""
        return self.fits(self.read_nbytes + self._second_nbytes, nbytes)

    def doubled(self, nbytes: int) -> None:
        """There is a second arena."""
        self._second_nbytes += nbytes
        self.lendable_nbytes -= nbytes

    def fits(self, taken_nbytes: int, nbytes: int, *, ask: bool = True) -> bool:
        """Whether that many more bytes may be taken."""
        lacking = taken_nbytes + nbytes - self.limit
        if lacking <= 0:
            return True
        asked = max(lacking, GRANT_NBYTES)
        if not ask or not self._more(asked):
            return False
        self.granted_nbytes += asked
        self.limit += asked
        self.lendable_nbytes += asked
        return True


#: Values of a slice: version, array, readers.
Found = tuple[int, Array, list[Reader]]

#: Buffers asked for, for each slice, between two looks at which spares were not needed.
ROUNDS = 32


class Buffers:
    """Gives slices buffers that have no readers."""

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],  # for each table the shard's first element and how many it has
        dtypes: Sequence[np.dtype[Any]],
        memory: Memory,
        # counts in ``spare_buffers`` the spares ever made, and in ``copied_nbytes`` what was copied for readers;
        # ``spare_nbytes`` is all memory beyond the first arena now
        counters: Counter[str],
        beside: Beside,  # how much that may be
        kept_nbytes: int = 0,  # bytes of kept versions, which are not part of it
    ) -> None:
        self._tables = tables
        self._memory = memory
        self._counters = counters
        self.beside = beside
        self.kept_nbytes = kept_nbytes
        self._slices: list[SliceState] = []
        self._refused: set[int] = set()  # tables for whose second arena there was no memory, lately
        self._homes = [memory.values(size, dtype) for (_, size), dtype in zip(tables, dtypes, strict=True)]
        self._seconds: dict[int, Array] = {}  # by table
        self._spares: list[tuple[Room, int]] = []  # with the window in which they were last in use
        self._window = 0
        self._num_rooms = 0  # asked for in this window

    @property
    def home_nbytes(self) -> int:
        """Bytes of the first arena."""
        return sum([home.nbytes for home in self._homes])

    def home(self, slice_: Slice) -> Array:
        """Return the place of a slice in the arena."""
        return self._place(self._homes[slice_.table], slice_)

    def add(self, state: SliceState) -> None:
        """There is a slice, at home."""
        self._slices.append(state)

    def _place(self, arena: Array, slice_: Slice) -> Array:
        origin, _ = self._tables[slice_.table]
        return arena[slice_.start - origin : slice_.stop - origin]

    def lend(self, found: list[Found]) -> list[Found]:
        """Return values to read: those found, or copies when too much is being read already.

        Called where they might (`Beside.read_nbytes`).
        """
        nbytes = sum([value.nbytes for _, value, _ in found])
        if self.beside.may_lend(nbytes, self._needed_nbytes):
            return found
        self._counters["copied_nbytes"] += nbytes
        return [(version, self._memory.copied(value), []) for version, value, _ in found]

    def _needed_nbytes(self) -> int:
        """Return how much there must be besides the first arena if all that is read now is updated.

        What a snapshot or a kept version pins is counted elsewhere.
        """
        total = sum([room[0].nbytes for room, _ in self._spares if _is_read(room[1])])
        for state in self._slices:
            rooms = [*state.places, (state.value, state.readers), *[(kept[1], kept[2]) for kept in state.history]]
            read = {id(value) for value, readers in rooms if _is_read(readers)}
            total += max(len(read), int(state.slice.table in self._seconds)) * state.value.nbytes
        return total

    def _fits(self, nbytes: int, *, ask: bool = True) -> bool:
        return self.beside.fits(self._counters["spare_nbytes"] - self.kept_nbytes, nbytes, ask=ask)

    def _second(self, slice_: Slice) -> Array | None:
        if slice_.table not in self._seconds:
            if slice_.table in self._refused:
                return None
            home = self._homes[slice_.table]
            if not self.beside.may_double(home.nbytes):
                self._refused.add(slice_.table)
                return None
            arena = self._memory.values(home.size, home.dtype)
            self._seconds[slice_.table] = arena
            self.beside.doubled(arena.nbytes)
            self._counters["spare_nbytes"] += arena.nbytes
        return self._place(self._seconds[slice_.table], slice_)

    def room(self, state: SliceState) -> Room:
        """Return a buffer without readers for the next values of a slice: its own, if that has none.

        Its content is up to the caller, which then moves the slice there, or puts the buffer back.
        """
        self._num_rooms += 1
        if self._num_rooms > ROUNDS * len(self._slices):
            self._trim()
        value, readers = state.value, state.readers
        free = _is_free(readers)
        if free and any(value is place for place, _ in state.places):
            return value, readers
        if not free and len(state.places) == 1 and any(isinstance(reader, Loan) for reader in readers):
            if (second := self._second(state.slice)) is not None:
                state.places.append((second, []))
        for place, watchers in state.places:
            if place is not value and _is_free(watchers):
                return place, watchers
        return (value, readers) if free else self._spare(state)

    def move(self, state: SliceState, room: Room) -> None:
        """Let a slice's values be those in a buffer of `room`; done again it continues where it failed."""
        if room[0] is not state.value:
            self._keep(state, (state.value, state.readers))
            state.value, state.readers = room
        state.readers.clear()

    def put_back(self, state: SliceState, room: Room) -> None:
        """The slice stays where it is."""
        if room[0] is not state.value:
            self._keep(state, room)

    def _keep(self, state: SliceState, room: Room) -> None:
        """Keep a buffer that a slice is not in for others, unless it is a place of that slice."""
        if not any(room[0] is place for place, _ in state.places):
            if not self._spares or self._spares[-1][0][0] is not room[0]:  # else that was done before it failed
                self._spares.append((room, self._window))

    def _spare(self, state: SliceState) -> Room:
        size, dtype = state.value.size, state.value.dtype
        for i in range(len(self._spares) - 1, -1, -1):  # the last first: unused ones stay at the front
            if self._suits(self._spares[i][0], state):
                return self._spares.pop(i)[0]
        if not self._fits(state.value.nbytes, ask=False) and self._make_room(state):
            return self._spare(state)
        pins = [reader for reader in state.readers if isinstance(reader, Pin) and not reader.done]
        if pins and not self._fits(state.value.nbytes):
            for pin in pins:
                pin.yield_()
            if _is_free(state.readers):
                return state.value, state.readers
        spare = self._memory.empty(size, dtype)
        self._counters["spare_buffers"] += 1
        self._counters["spare_nbytes"] += spare.nbytes
        return spare, []

    def _make_room(self, wanted: SliceState) -> bool:
        """Send home slices without readers, drop spares of other sizes; return whether one of its size is free."""
        for state in self._slices:
            value, readers = state.value, state.readers
            home, watchers = state.places[0]
            if state is not wanted and not any(value is place for place, _ in state.places):
                if _is_free(readers) and _is_free(watchers):
                    home[:] = value
                    self.move(state, (home, watchers))
        kept = [(room, window) for room, window in self._spares if room[0].size == wanted.size or not _is_free(room[1])]
        gone = sum([room[0].nbytes for room, _ in self._spares]) - sum([room[0].nbytes for room, _ in kept])
        self._spares = kept
        self._counters["spare_nbytes"] -= gone
        return any(self._suits(room, wanted) for room, _ in kept)

    @staticmethod
    def _suits(room: Room, state: SliceState) -> bool:
        return room[0].size == state.size and room[0].dtype == state.value.dtype and _is_free(room[1])

    def _trim(self) -> None:
        """Release the spares not used since the last time; if these are many, some a round."""
        kept: list[tuple[Room, int]] = []
        given_back = 0
        for room, window in self._spares:
            if window < self._window and _is_free(room[1]) and given_back < GIVE_BACK_NBYTES:
                given_back += room[0].nbytes
            else:
                kept.append((room, window))
        self._spares = kept
        if given_back >= GIVE_BACK_NBYTES:
            self._num_rooms -= len(self._slices)
        else:
            self._window += 1
            self._refused.clear()
            self._num_rooms = 0
        if given_back:
            self._counters["spare_nbytes"] -= given_back
            self._memory.given_back(given_back)


def _is_read(readers: Sequence[Reader]) -> bool:
    return any([not isinstance(reader, Pin) and not reader.done for reader in readers])


def _is_free(readers: Sequence[Reader]) -> bool:
    return all(reader.done for reader in readers)
