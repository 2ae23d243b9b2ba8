"""What a shard keeps of one slice, and how new values are computed of several."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.message import Part
from zmqps.core.protocol.terms import SET_TO_MEAN, are_values
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.rules import Kernels, Timing, Undo
from zmqps.errors import InternalError, ProtocolError, PSError, ShardBrokenError, SliceRangeError, VersionError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: A buffer, and its readers.
Room = tuple[Array, list[Reader]]
#: Elements that one kernel call can take: ``(start, stop, kernel, updates so far)``.
Stretch = tuple[int, int, int, int]
#: A piece of what a message brings: its slice, its first element there, and its values.
Piece: TypeAlias = tuple["SliceState", int, Any]
#: Does nothing that needs memory, and the same if it is called twice.
Note = Callable[[], None]


#: From this many segments on numpy finds the stretches faster than a loop does.
MANY_SEGMENTS = 64


#: Readers of a slice noted before those that are done are forgotten.
MAX_DONE_READERS = 64


class Pin:
    """Keeps a buffer as it is until ``done``: a version that may still be asked for."""

    __slots__ = ("_give_up", "done")

    # called where there is no memory for an update to go elsewhere; it may let go of the buffer
    def __init__(self, give_up: Callable[[], None] = lambda: None) -> None:
        self._give_up = give_up
        self.done = False

    def yield_(self) -> None:
        """Be done, if the owner of the pin can do without it."""
        self._give_up()


class SliceState:
    """A slice of the shard: its values, slots and version."""

    __slots__ = (
        *(
            "history",
            "kernels",
            "places",
            "positions",
            "readers",
            "size",
            "slice",
            "slots",
            "snapshot",
            "steps",
            "value",
        ),
        "version",
    )

    def __init__(self, slice_: Slice, value: Array, slots: tuple[Array, ...], kernels: Kernels) -> None:
        self.slice = slice_
        self.size = slice_.size
        self.value = value
        self.slots = slots
        self.version = 0
        self.snapshot: Watcher | None = None  # wants the slots as they are; the values are pinned by a reader
        self.readers: list[Reader] = []  # those that still read ``value``
        self.places: list[tuple[Array, list[Reader]]] = [(value, self.readers)]  # where it belongs, and its readers
        self.history: deque[tuple[int, Array, list[Reader], Pin]] = deque()  # versions kept readable
        self.positions = [segment.position for segment in slice_.segments]
        # which kernel updates each parameter: that of its rule, and where groups of one rule differ, of its group
        self.kernels = tuple(
            np.array([of[segment.parameter] for segment in slice_.segments], np.int32)
            for of in (kernels.of_rule, kernels.of_group)
        )
        # updates each parameter has had: a push of some parameters is not a step of the others
        self.steps = np.zeros(len(slice_.segments), np.int64)

    def restore(self, value: Array, slots: Sequence[Array], steps: Sequence[int], version: int, memory: Memory) -> None:
        """Be as it was saved, by arrays of this host; slots that are left out stay as they are."""
        self.value[:] = memory.take(value)
        for slot, saved in zip(self.slots, slots, strict=False):
            slot[:] = memory.take(saved)
        self.steps[:] = steps
        self.version = version

    def validate(self) -> None:
        """Assert that arrays are of one size, and steps add up."""
        assert {array.size for array in (self.value, *self.slots)} == {self.size}
        for steps in self.steps.tolist():
            assert 0 <= steps <= self.version

    def segments(self, start: int, stop: int) -> tuple[int, int]:
        """Return first and one-past-last number of the segments that ``[start, stop)`` touches."""
        return bisect_right(self.positions, start) - 1, bisect_left(self.positions, stop)

    def forget_done(self) -> None:
        """Forget readers that are done: many come by pulls and checkpoints where there is no push between them."""
        self.readers[:] = [reader for reader in self.readers if not reader.done]

    def at(self, version: int | None) -> tuple[int, Array, list[Reader]]:
        """Return a version (None: the current one) with its values and readers."""
        for number, value, readers, _ in self.history:
            if number == version:
                return number, value, readers
        return self.version, self.value, self.readers

    def check_kept(self, version: int) -> None:
        """Raise `VersionError` if a version is not kept any more."""
        if version < self.version and all(version != kept[0] for kept in self.history):
            oldest = self.history[0][0] if self.history else self.version
            raise VersionError(version=version, oldest=oldest, newest=self.version)

    def runs(self, start: int, stop: int, *, of_groups: bool = False) -> list[Stretch]:
        """Return the stretches between two elements that one kernel call can take, or one for each group at least."""
        kernels = self.kernels[of_groups]
        if len(self.positions) == 1:
            return [(start, stop, int(kernels[0]), int(self.steps[0]))]
        first, last = self.segments(start, stop)
        if last - first > MANY_SEGMENTS:
            return self._runs_of_many(kernels[first:last], first, last, start, stop)
        keys = list(zip(kernels[first:last].tolist(), self.steps[first:last].tolist(), strict=True))
        runs: list[Stretch] = []
        for number, (kernel, steps) in enumerate(keys):
            if number and keys[number - 1] == (kernel, steps):
                continue
            begin = self.positions[first + number] if number else start
            if runs:
                runs[-1] = runs[-1][0], begin, *runs[-1][2:]
            runs.append((begin, stop, kernel, steps))
        return runs

    def _runs_of_many(
        self, kernels: np.ndarray[Any, np.dtype[np.int32]], first: int, last: int, start: int, stop: int
    ) -> list[Stretch]:
        steps = self.steps[first:last]
        changes = np.flatnonzero((kernels[1:] != kernels[:-1]) | (steps[1:] != steps[:-1])) + 1
        begins = [start, *(self.positions[first + number] for number in changes.tolist())]
        numbers = [0, *changes.tolist()]
        ends = [*begins[1:], stop]
        return [
            (begin, end, int(kernels[number]), int(steps[number]))
            for begin, end, number in zip(begins, ends, numbers, strict=True)
        ]


def resolve(slices: Sequence[SliceState], shard: int, parts: Sequence[Part]) -> list[SliceState]:
    """Return the slice of each part; every range falls on parameter boundaries.

    Raises
    ------
    SliceRangeError
        The parts do not exist.
    """
    states: list[SliceState] = []
    if len(parts) > len(slices):
        raise SliceRangeError(f"shard {shard} has {len(slices)} slices, a message names {len(parts)}")
    for index, _, ranges in parts:
        if index >= len(slices):
            raise SliceRangeError(f"shard {shard} has {len(slices)} slices, none is number {index}")
        state = slices[index]
        size = state.size
        for bound in ranges:
            i = bisect_left(state.positions, bound)
            if bound != size and (i == len(state.positions) or state.positions[i] != bound):
                raise SliceRangeError(f"element {bound} of slice {index} is not a parameter's boundary")
        states.append(state)
    if len({id(state) for state in states}) != len(states):
        raise SliceRangeError("a message names a slice twice")
    return states


def walk(memory: Memory, states: Sequence[SliceState], parts: Sequence[Part], payload: Sequence[Buffer]) -> list[Piece]:
    """Return the pieces of a payload, each with its slice and its first element there.

    Raises
    ------
    ProtocolError
        The payload does not fit the parts.
    """
    runs = [
        (state, start, stop)
        for state, (_, _, ranges) in zip(states, parts, strict=True)
        for start, stop in bounds_of(state, ranges)
    ]
    sizes = [(stop - start, state.value.dtype) for state, start, stop in runs]
    pieces = memory.scatter(payload, sizes)
    return [(runs[run][0], runs[run][1] + offset, piece) for run, offset, piece in pieces]


def bounds_of(state: SliceState, ranges: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the ranges of a part as pairs; none means the whole slice."""
    return list(zip(ranges[::2], ranges[1::2], strict=True)) if ranges else [(0, state.size)]


def check_sort(states: Sequence[SliceState], worker: str, terms: Sequence[float]) -> None:
    """Raise `ProtocolError` if buffers get anything but values, or integers would be averaged."""
    if not are_values(terms) and any(state.slice.buffers for state in states):
        raise ProtocolError(f"{worker} pushes a gradient of a buffer, which has none")
    if terms and terms[0] == SET_TO_MEAN and any(state.value.dtype.kind != "f" for state in states):
        raise ProtocolError(f"{worker} asks for the mean of whole numbers, or of flags")


def present(
    missing: Container[int], states: list[SliceState], parts: Sequence[Part], pieces: list[Piece]
) -> tuple[list[SliceState], list[Part], list[Piece]]:
    """Return of a push what concerns slices that are not missing."""
    return (
        [state for state in states if state.slice.index not in missing],
        [part for part in parts if part[0] not in missing],
        [piece for piece in pieces if piece[0].slice.index not in missing],
    )


class Watcher(Protocol):
    """What updates need of `zmqps.core.server.dense.snapshot.Snapshot`."""

    def before_update(self, state: SliceState) -> None:
        """The slots of a slice are about to be written to."""


class Rooms(Protocol):
    """What updates need of `zmqps.core.server.dense.buffers.Buffers`."""

    def room(self, state: SliceState) -> Room:
        """Return a buffer without readers for the next values of a slice."""

    def move(self, state: SliceState, room: Room) -> None:
        """Let a slice's values be those in a buffer; done again it continues where it failed."""

    def put_back(self, state: SliceState, room: Room) -> None:
        """The slice stays where it is."""


#: A slice with its state after the update: its version, the updates of each of its parameters, and how often
#: values were set.
After: TypeAlias = tuple["SliceState", int, "np.ndarray[Any, np.dtype[np.int64]]"]


class Updates:
    """Updates slices: all that belong together, or none."""

    def __init__(
        self,
        kernels: Kernels,
        rooms: Rooms,  # where new values go while the old ones are being read
        memory: Memory,
        *,
        undoes: bool,  # whether kernels may fail after they have begun to write, so that copies must be kept meanwhile
    ) -> None:
        self.timing = Timing()
        self.broken: PSError | None = None  # an update failed half way, or another copy has taken over
        self.kernels = kernels.each  # a recorder may put such in their place as do the same
        self._made_of = kernels
        self._rooms = rooms
        self._memory = memory
        self._undoes = undoes
        self._num_calls = 0  # of kernels that have not failed, in the update under way
        self._torn = ShardBrokenError(why="memory was short")  # there must be none for it then

    def apply(
        self,
        states: Sequence[SliceState],
        pieces: Sequence[Piece],
        gradients: Sequence[Array | None],
        after: Sequence[After],
        note: Note | None = None,
        terms: Sequence[float] = (),
        num_values: int = 0,
    ) -> None:
        """Run the kernels over pieces of gradients, once all memory is there that is needed, and count the update.

        Parameters
        ----------
        states, pieces
            The slices, and for each piece its slice and first element.
        gradients
            What to apply instead of each piece; None, or none at all: what `Memory.take` makes of it.
        after
            What slices have afterwards.
        note
            Remembers that the update was applied.
        terms
            As they travel (`zmqps.core.protocol.terms`).
        num_values
            How many of the pieces, the last ones, are values that are set.

        Raises
        ------
        ShardBrokenError
            It failed after a kernel had written, and there was no copy. Whatever else fails changes nothing; and once
            the last kernel has run, memory that is short is not a failure any more.
        """
        rooms: dict[int, Room] = {}
        undo = None
        written = False
        self._num_calls = 0
        try:
            for state in states:
                if state.readers or state.value is not state.places[0][0]:  # it is read, or not at home
                    rooms[state.slice.index] = self._rooms.room(state)
                    if state.snapshot is not None:
                        state.snapshot.before_update(state)
            if self._undoes:
                undo = Undo(self._memory)
                for state in states:
                    room = rooms.get(state.slice.index, (state.value, state.readers))
                    undo.save([room[0], *state.slots])  # the room may be a version that stays if this fails
            if len(pieces) > 1 and not gradients:
                pieces = self._memory.secure(pieces)
            if rooms:
                _fill(rooms, states, pieces)
            of_groups, width = self._made_of.numbers(terms) if terms else (False, 0)
            runs = [state.runs(start, start + piece.size, of_groups=of_groups) for state, start, piece in pieces]
            for number, (state, start, piece) in enumerate(pieces):
                out = rooms[state.slice.index][0] if rooms and state.slice.index in rooms else state.value
                gradient = gradients[number] if gradients else None
                taken = self._memory.take(piece) if gradient is None else gradient
                if num_values and number >= len(pieces) - num_values:
                    self._num_calls += 1
                    out[start : start + taken.size] = taken
                else:
                    self._compute(state, out, start, taken, runs[number], terms, width, of_groups)
            written = True
            if note is not None:  # as `_finish`, but for a call on the way of each push
                note()
            for state, version, steps in after:
                if rooms and state.slice.index in rooms:
                    self._rooms.move(state, rooms[state.slice.index])
                state.steps = steps
                state.version = version
        except BaseException as error:
            if not written:
                self._take_back(states, rooms, undo, error)
                raise
            self._finish_again(after, rooms, note, error)

    def _finish(self, after: Sequence[After], rooms: dict[int, Room], note: Note | None) -> None:
        """Count what is written; done again it continues where it failed."""
        if note is not None:
            note()
        for state, version, steps in after:
            if rooms and state.slice.index in rooms:
                self._rooms.move(state, rooms[state.slice.index])
            state.steps = steps
            state.version = version

    def _finish_again(
        self, after: Sequence[After], rooms: dict[int, Room], note: Note | None, cause: BaseException
    ) -> None:
        """Count what is written, which is applied, though memory was so short that not even this could be done."""
        try:
            self._finish(after, rooms, note)
        except BaseException as error:
            self._break(error)
        if not isinstance(cause, MemoryError):
            raise cause

    def is_frozen(self, kernel: int) -> bool:
        """Whether a kernel, by its number, is missing: its parameters are frozen."""
        return self.kernels[kernel] is None

    def _compute(
        self,
        state: SliceState,
        out: Array,
        start: int,
        gradient: Array,
        runs: Sequence[Stretch],
        terms: Sequence[float],
        width: int,
        of_groups: bool,
    ) -> None:
        """Update elements from ``start`` of a slice, out of its value into ``out``."""
        source, timing = state.value, self.timing
        began = timing.clock()
        first = 2 - width * (self._made_of.first_group if of_groups else 0)
        for lo, hi, kernel_index, step in runs:
            kernel = self.kernels[kernel_index]
            if kernel is not None:
                if lo == 0 and hi == out.size:  # the whole slice: start is 0 as well
                    slots, new, w, g = state.slots, out, source, gradient
                else:
                    slots, new = tuple([slot[lo:hi] for slot in state.slots]), out[lo:hi]
                    w = new if source is out else source[lo:hi]
                    g = gradient[lo - start : hi - start]
                self._num_calls += 1
                try:
                    if terms:
                        at = first + width * kernel_index
                        kernel(w, g, new, slots, step + 1, terms[0], tuple(terms[at : at + width]))
                    else:
                        kernel(w, g, new, slots, step + 1)
                except BaseException:
                    self._num_calls -= 1  # it has written nothing
                    raise
            elif source is not out:
                out[lo:hi] = source[lo:hi]
        timing.seconds += timing.clock() - began
        timing.num += 1

    def _take_back(
        self, states: Sequence[SliceState], rooms: dict[int, Room], undo: Undo | None, cause: BaseException
    ) -> None:
        """Leave all as it was before an update that has failed; raise `ShardBrokenError` if that cannot be done."""
        torn = undo is None and (self._num_calls > 0 or isinstance(cause, InternalError))
        try:
            if undo is not None:
                undo.restore()
        except Exception:
            torn = True
        with suppress(MemoryError):  # a spare that is lost costs nothing but memory
            for state in states:
                if state.slice.index in rooms:
                    self._rooms.put_back(state, rooms[state.slice.index])
        if torn:
            self._break(cause)

    def _break(self, cause: BaseException) -> NoReturn:
        """Nothing can be done with the shard any more."""
        self.broken = self._torn  # before anything that needs memory
        self.broken = ShardBrokenError(why=f"{type(cause).__name__}: {cause}"[:200])
        raise self.broken.again() from cause


def _fill(rooms: dict[int, Room], states: Sequence[SliceState], pieces: Sequence[Piece]) -> None:
    """Copy to other buffers what an update leaves out."""
    for state in states:
        room = rooms.get(state.slice.index)
        if room is not None and room[0] is not state.value:
            if sum([piece.size for owner, _, piece in pieces if owner is state]) < state.size:
                room[0][:] = state.value
