"""A snapshot: a shard as it is at one moment, kept while updates continue, until it is written or sent.

Nothing is copied when it is taken. The values of a slice are pinned, so the next update goes to another buffer. Slots
are updated in place, so they are copied: when their slice is updated for the first time since, or when its turn has
come, whichever is first. Of no slice they are copied twice, and the copy is dropped as soon as it is not needed any
more. So a snapshot costs one copy of the slots in all, and never more memory than what is updated before its turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.slices import Pin, SliceState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np


class SnapshotSlice(NamedTuple):
    """One slice of a snapshot. The arrays stay as they are until `Snapshot.done` is called with its number."""

    number: int  # of the slice in its shard
    version: int
    steps: np.ndarray[Any, np.dtype[np.int64]]  # updates of each of its parameters
    value: Array
    slots: tuple[Array, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.value.nbytes + sum([slot.nbytes for slot in self.slots])


class _Row:
    """What is kept of a slice."""

    __slots__ = ("pin", "slots", "state", "steps", "value", "version")

    def __init__(self, state: SliceState, pin: Pin) -> None:
        self.state = state
        self.pin = pin
        self.value = state.value
        self.steps = state.steps  # an update replaces it
        self.version = state.version
        self.slots: tuple[Array, ...] | None = None  # until they are copied: those of the state


class Snapshot:
    """A shard as it was when this was made."""

    #: The state besides the arrays: none.
    state: Mapping[str, Any] = {}

    def __init__(
        self,
        states: Sequence[SliceState],  # the shard's slices
        memory: Memory,
    ) -> None:
        self.failed: MemoryError | None = None  # there was no memory for what an update would have changed
        self._memory = memory
        self._rows: dict[int, _Row] = {}  # those that are not done
        self._waiting: deque[_Row] = deque()
        for state in states:
            state.forget_done()
            row = _Row(state, Pin(self.give_up))
            state.readers.append(row.pin)
            state.snapshot = self
            self._rows[state.slice.index] = row
            self._waiting.append(row)

    def before_update(self, state: SliceState) -> None:
        """Copy what an update is about to write to; where there is no memory for it, give up: training continues."""
        state.snapshot = None
        if self.failed is not None:
            return
        row = self._rows[state.slice.index]
        try:
            self._copy_slots(row)
        except MemoryError as error:
            self.failed = error
            self.release()

    def give_up(self) -> None:
        """There is no memory to keep the values of a slice that is updated: training continues without this."""
        if self.failed is None:
            self.failed = MemoryError("no room for values that are updated")
            self.release()

    def _copy_slots(self, row: _Row) -> tuple[Array, ...]:
        if row.slots is None:
            row.slots = tuple([self._memory.copied(slot) for slot in row.state.slots])
            row.state.snapshot = None
        return row.slots

    def next(self) -> SnapshotSlice | None:
        """Return a slice that has not had its turn; None: all had, or it was given up.

        Raises
        ------
        MemoryError
            There is none for its slots; the snapshot is given up.
        """
        if self.failed is not None or not self._waiting:
            return None
        row = self._waiting.popleft()
        try:
            slots, value = self._copy_slots(row), self._memory.readable(row.value)
        except MemoryError as error:
            self.failed = error
            self.release()
            raise
        return SnapshotSlice(row.state.slice.index, row.version, row.steps, value, slots)

    def done(self, number: int) -> None:
        """Release a slice that has been written."""
        row = self._rows.pop(number, None)
        if row is not None:
            row.pin.done = True

    def release(self) -> None:
        for row in self._rows.values():
            row.pin.done = True
            if row.state.snapshot is self:
                row.state.snapshot = None
        self._rows.clear()
        self._waiting.clear()

    @property
    def nbytes(self) -> int:
        total = 0
        for row in self._rows.values():
            total += sum([slot.nbytes for slot in row.slots or ()])
            total += row.value.nbytes if row.state.value is not row.value else 0
        return total

    def validate(self) -> None:
        """Assert that what waits is kept, and knows its snapshot as long as its slots are not copied."""
        assert {row.state.slice.index for row in self._waiting} <= set(self._rows)
        for row in self._rows.values():
            assert (row.state.snapshot is self) == (row.slots is None)
            assert not row.pin.done
