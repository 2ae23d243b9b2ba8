"""The values of one shard and how a gradient changes them; no messages, no peers.

A slice is updated in one go, so its update is atomic. A buffer that the transport still reads
(a pull being sent without a copy) is never written: the update then goes to a spare buffer, which
takes its place. So a pull never sees a slice half updated, and nobody waits for a lock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from zmqps.core.arrays import Array, gather, scatter
from zmqps.core.events import Reader
from zmqps.core.keyspace import Placement, Slice
from zmqps.core.messages import Part
from zmqps.errors import NonFiniteGradientError, SliceRangeError

if TYPE_CHECKING:
    from zmqps.core.messages import Buffer

#: Readers of a slice noted before those that are done are forgotten.
MAX_DONE_READERS = 64


class Kernel(Protocol):
    """One optimizer rule, compiled: ``step`` is the number of this update, from 1."""

    def __call__(self, w: Array, g: Array, out: Array, slots: tuple[Array, ...], step: int, /) -> None:
        """Write the updated ``w`` to ``out`` (which may be ``w``) and update ``slots`` in place."""


class Rules(Protocol):
    """What the shard needs of an optimizer; `zmqps.optim` builds it."""

    @property
    def slot_fill(self) -> tuple[float, ...]:
        """The initial value of each slot."""

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[Kernel | None], Sequence[int]]:
        """Return the kernels in use (None: frozen) and, for each parameter, which one is its."""

    def all_finite(self, g: Array, /) -> bool:
        """Whether an array holds neither NaN nor infinity."""


class SliceState:
    """A slice of the shard: its values, slots and version."""

    __slots__ = ("groups", "piece", "positions", "readers", "slots", "steps", "value", "version")

    def __init__(self, piece: Slice, value: Array, slots: tuple[Array, ...], kernel_of: Sequence[int]) -> None:
        self.piece = piece
        self.value = value
        self.slots = slots
        self.version = 0
        self.readers: list[Reader] = []  # who still reads ``value``
        self.positions = [segment.position for segment in piece.segments]
        self.groups = np.array([kernel_of[segment.parameter] for segment in piece.segments], np.int32)
        # updates each parameter has had: a push of some parameters is no step of the others
        self.steps = np.zeros(len(piece.segments), np.int64)

    def segments(self, start: int, stop: int) -> tuple[int, int]:
        """Return first and one-past-last number of the segments that ``[start, stop)`` touches."""
        return bisect_right(self.positions, start) - 1, bisect_left(self.positions, stop)

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield ``(start, stop, kernel, updates so far)`` of stretches that one kernel call can take."""
        first, last = self.segments(start, stop)
        keys = list(zip(self.groups[first:last].tolist(), self.steps[first:last].tolist(), strict=True))
        while keys:
            same = next((i for i, key in enumerate(keys) if key != keys[0]), len(keys))
            end = stop if same == len(keys) else self.positions[first + same]
            yield start, end, *keys[0]
            start, first, keys = end, first + same, keys[same:]


class Shard:
    """One server's part of the model.

    Parameters
    ----------
    placement, index
        The placement, and which shard of it this is.
    rules
        The optimizer.
    reject_nonfinite
        Whether gradients with NaN or infinity are refused.
    empty
        Allocates an arena: ``empty(size, dtype)``.
    """

    def __init__(
        self,
        placement: Placement,
        index: int,
        rules: Rules,
        *,
        reject_nonfinite: bool = True,
        empty: Callable[[int, np.dtype[Any]], Array] = np.empty,
    ) -> None:
        self.placement = placement
        self.index = index
        self.counters: Counter[str] = Counter()
        self._rules = rules
        self._reject_nonfinite = reject_nonfinite
        self._spares: list[tuple[Array, list[Reader]]] = []
        self._kernels, kernel_of = rules.kernels([p.name for p in placement.keyspace.parameters])
        self.slices: list[SliceState] = []
        self.arena_nbytes = 0
        arenas: list[tuple[Array, list[Array]]] = []
        for table, cuts in zip(placement.keyspace.tables, placement.cuts, strict=True):
            size = cuts[index + 1] - cuts[index]
            slots = [empty(size, table.dtype) for _ in rules.slot_fill]
            for slot, fill in zip(slots, rules.slot_fill, strict=True):
                slot.fill(fill)
            arenas.append((empty(size, table.dtype), slots))
            self.arena_nbytes += size * table.dtype.itemsize * (1 + len(slots))
        for piece in placement.slices[index]:
            values, slots = arenas[piece.table]
            origin = placement.cuts[piece.table][index]
            where = slice(piece.start - origin, piece.stop - origin)
            self.slices.append(SliceState(piece, values[where], tuple(slot[where] for slot in slots), kernel_of))
        self._missing = {piece.index for piece in placement.slices[index]}

    @property
    def loaded(self) -> bool:
        """Whether every slice has its initial values."""
        return not self._missing

    def load(self, parts: Sequence[Part], payload: Sequence[Buffer]) -> None:
        """Take initial values of whole slices; ignored once the shard is loaded."""
        states = self._resolve(parts)
        if any(ranges for _, _, ranges in parts):
            raise SliceRangeError("initial values come in whole slices")
        pieces = self._walk(states, parts, payload)
        if self.loaded:
            return
        for state, start, array in pieces:
            state.value[start : start + array.size] = array
        self._missing.difference_update(index for index, _, _ in parts)

    def push(
        self, parts: Sequence[Part], payload: Sequence[Buffer], worker: str, *, checked: bool = False
    ) -> list[tuple[int, int]]:
        """Apply the gradients of all parts, or none of them.

        Parameters
        ----------
        parts, payload
            As in `Push`.
        worker
            Who is to blame.
        checked
            The gradients are known to be finite.

        Returns
        -------
        list of (version, staleness)
            A part: the slice's version after the update, and how many updates it had had since the
            worker read it.

        Raises
        ------
        SliceRangeError, ProtocolError
            The parts do not exist or the payload does not fit them.
        NonFiniteGradientError
            Names ``worker`` and the parameters.
        """
        states = self._resolve(parts)
        pieces = self._walk(states, parts, payload)
        if self._reject_nonfinite and not checked:
            self._check_finite(pieces, worker)
        sources = {state.piece.index: state.value for state in states}
        for state, (_, _, ranges) in zip(states, parts, strict=True):
            self._make_writable(state)
            if ranges and state.value is not sources[state.piece.index]:
                state.value[:] = sources[state.piece.index]  # what this push leaves out stays
        for state, start, gradient in pieces:
            source = sources[state.piece.index]
            for lo, hi, kernel_index, step in state.runs(start, start + gradient.size):
                kernel = self._kernels[kernel_index]
                if kernel is not None:
                    slots = tuple(slot[lo:hi] for slot in state.slots)
                    kernel(source[lo:hi], gradient[lo - start : hi - start], state.value[lo:hi], slots, step + 1)
                elif source is not state.value:
                    state.value[lo:hi] = source[lo:hi]
        results = []
        for state, (_, read_version, ranges) in zip(states, parts, strict=True):
            for start, stop in _bounds(state, ranges):
                first, last = state.segments(start, stop)
                state.steps[first:last] += 1
            staleness = max(0, state.version - read_version)
            state.version += 1
            results.append((state.version, staleness))
        return results

    def pull(self, parts: Sequence[Part]) -> tuple[list[Array], tuple[int, ...], list[list[Reader]]]:
        """Return the values of the parts, without a copy where they are large.

        Returns
        -------
        payload
            Buffers that alias the arena.
        versions
            A version a part.
        readers
            Lists to append to while somebody still reads the payload.
        """
        states = self._resolve(parts)
        for state in states:
            if len(state.readers) >= MAX_DONE_READERS:  # many pulls, no push that would clear them
                state.readers[:] = [reader for reader in state.readers if not reader.done]
        pieces = [
            state.value[start:stop]
            for state, (_, _, ranges) in zip(states, parts, strict=True)
            for start, stop in _bounds(state, ranges)
        ]
        return gather(pieces), tuple(state.version for state in states), [state.readers for state in states]

    def _resolve(self, parts: Sequence[Part]) -> list[SliceState]:
        """Return the slice of each part; every range falls on parameter boundaries."""
        states = []
        for index, _, ranges in parts:
            if index >= len(self.slices):
                raise SliceRangeError(f"shard {self.index} has {len(self.slices)} slices, none is number {index}")
            state = self.slices[index]
            size = state.piece.size
            for bound in ranges:
                i = bisect_left(state.positions, bound)
                if bound != size and (i == len(state.positions) or state.positions[i] != bound):
                    raise SliceRangeError(f"element {bound} of slice {index} is no boundary of a parameter")
            states.append(state)
        if len({id(state) for state in states}) != len(states):
            raise SliceRangeError("a message names a slice twice")
        return states

    @staticmethod
    def _walk(
        states: Sequence[SliceState], parts: Sequence[Part], payload: Sequence[Buffer]
    ) -> list[tuple[SliceState, int, Array]]:
        runs = [
            (state, start, stop)
            for state, (_, _, ranges) in zip(states, parts, strict=True)
            for start, stop in _bounds(state, ranges)
        ]
        sizes = ((stop - start, state.value.dtype) for state, start, stop in runs)
        return [(runs[run][0], runs[run][1] + offset, array) for run, offset, array in scatter(payload, sizes)]

    def _check_finite(self, pieces: Sequence[tuple[SliceState, int, Array]], worker: str) -> None:
        bad = [piece for piece in pieces if not self._rules.all_finite(piece[2])]
        if bad:
            self.counters["nonfinite"] += 1
            names = list(dict.fromkeys(name for piece in bad for name in self._culprits(*piece)))
            shown = ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
            raise NonFiniteGradientError(worker=worker, parameters=shown)

    def _culprits(self, state: SliceState, start: int, gradient: Array) -> Iterator[str]:
        for segment in state.piece.segments:
            lo, hi = segment.position - start, segment.position + segment.size - start
            part = gradient[max(0, lo) : max(0, hi)]
            if not np.isfinite(part).all():
                yield self.placement.keyspace.parameters[segment.parameter].name

    def _make_writable(self, state: SliceState) -> None:
        """Give the slice a buffer that nobody reads; what it holds is up to the caller."""
        if all(reader.done for reader in state.readers):
            state.readers.clear()
            return
        self._spares.append((state.value, state.readers))
        for i, (spare, readers) in enumerate(self._spares):
            if spare.size == state.value.size and spare.dtype == state.value.dtype and all(r.done for r in readers):
                del self._spares[i]
                break
        else:
            spare = np.empty_like(state.value)
            self.counters["spare_buffers"] += 1
        state.value, state.readers = spare, []

    def validate(self) -> None:
        """Assert that slices cover the shard and that steps add up."""
        pieces = self.placement.slices[self.index]
        assert [state.piece for state in self.slices] == list(pieces)
        for state in self.slices:
            assert state.value.size == state.piece.size
            assert all(slot.size == state.piece.size for slot in state.slots)
            assert all(0 <= steps <= state.version for steps in state.steps)


def _bounds(state: SliceState, ranges: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(ranges[::2], ranges[1::2], strict=True)) if ranges else [(0, state.piece.size)]
