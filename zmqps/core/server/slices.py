"""What a shard keeps of one slice."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader


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
