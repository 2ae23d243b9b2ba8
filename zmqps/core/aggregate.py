"""Gradients of a synchronous step, kept by contributor until the step is committed.

They are not added up on arrival: who contributes is known only at the commit (a worker may die
between two slices, or be one too many), and a sum of floats cannot be taken back. Kept apart they
are also added in the order the coordinator names, so the result does not depend on who came first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from zmqps.core.arrays import Array
from zmqps.core.keyspace import Slice

#: Steps whose gradients may wait at the same time: the one being collected, and the next, whose
#: first gradients can overtake the commit on another connection.
OPEN_STEPS = 2


#: One push of one worker: (incarnation, attempt).
Contributor = tuple[bytes, int]


class Brought:
    """What one push brought to one slice: gradients times ``examples``, and of which elements."""

    __slots__ = ("buffer", "examples", "ranges")

    def __init__(self, buffer: Array, examples: int) -> None:
        self.buffer = buffer
        self.examples = examples
        self.ranges: list[tuple[int, int]] = []  # disjoint, ascending, not touching

    @property
    def whole(self) -> bool:
        """Whether every element of the slice has come."""
        return self.ranges == [(0, self.buffer.size)]

    def cover(self, start: int, stop: int) -> None:
        """Note that elements ``[start, stop)`` have come; usually right behind those before."""
        if not self.ranges or start > self.ranges[-1][1]:
            self.ranges.append((start, stop))
        elif start == self.ranges[-1][1]:
            self.ranges[-1] = self.ranges[-1][0], stop
        else:
            known, self.ranges = sorted([*self.ranges, (start, stop)]), []
            for lo, hi in known:
                if self.ranges and lo <= self.ranges[-1][1]:
                    self.ranges[-1] = self.ranges[-1][0], max(hi, self.ranges[-1][1])
                else:
                    self.ranges.append((lo, hi))

    def covers(self, start: int, stop: int) -> bool:
        """Whether all of ``[start, stop)`` has come."""
        return any(lo <= start and stop <= hi for lo, hi in self.ranges)


class Stage:
    """The gradients of the open steps of one shard: a buffer for each push and slice it touches.

    Memory is bounded by `OPEN_STEPS` shards for each push a worker brings to a step, which is one
    unless it repeats or divides it; buffers are used again.

    Parameters
    ----------
    empty
        Allocates a buffer: ``empty(size, dtype)``.
    """

    def __init__(self, empty: Callable[[int, np.dtype[Any]], Array] = np.empty) -> None:
        self._empty = empty
        self._steps: dict[int, dict[Contributor, dict[int, Brought]]] = {}
        self._spares: dict[tuple[int, np.dtype[Any]], list[Array]] = {}

    def add(
        self, step: int, contributor: Contributor, piece: Slice, start: int, gradient: Array, examples: int
    ) -> None:
        """Keep elements ``[start, start + gradient.size)`` of a slice's gradient, times its ``examples``."""
        slices = self._steps.setdefault(step, {}).setdefault(contributor, {})
        brought = slices.get(piece.index)
        if brought is None:
            brought = slices[piece.index] = Brought(self._buffer(piece.size, gradient.dtype), examples)
        stop = start + gradient.size
        if brought.examples == 1:
            brought.buffer[start:stop] = gradient
        else:
            np.multiply(gradient, gradient.dtype.type(brought.examples), out=brought.buffer[start:stop])
        brought.cover(start, stop)

    def mean(self, step: int, index: int, contributors: Sequence[Contributor]) -> list[tuple[int, Array]]:
        """Return the mean of the contributors' gradients of a slice, added in their order.

        Whoever did not push an element has no part in its mean, neither in the sum nor in the number
        of examples that divides it: so the workers of one replica may push different parameters
        (model parallelism), even within one slice.

        Returns
        -------
        list of (start, mean)
            The stretches of the slice that somebody pushed, ascending. The arrays are valid until
            `close`.
        """
        slices = self._steps.get(step, {})
        brought = [slices[c][index] for c in contributors if c in slices and index in slices[c]]
        if not brought:
            return []
        total = brought[0].buffer
        if all(b.whole for b in brought):
            _average(total, [b.buffer for b in brought], sum(b.examples for b in brought))
            return [(0, total)]
        bounds = sorted({bound for b in brought for pair in b.ranges for bound in pair})
        stretches: list[tuple[int, int]] = []
        for lo, hi in pairwise(bounds):
            some = [b for b in brought if b.covers(lo, hi)]
            if some:
                _average(total[lo:hi], [b.buffer[lo:hi] for b in some], sum(b.examples for b in some))
                if stretches and stretches[-1][1] == lo:
                    stretches[-1] = stretches[-1][0], hi
                else:
                    stretches.append((lo, hi))
        return [(lo, total[lo:hi]) for lo, hi in stretches]

    def close(self, step: int) -> set[Contributor]:
        """Forget a step and all before it; return who had brought something to it."""
        contributors: set[Contributor] = set()
        for old in [number for number in self._steps if number <= step]:
            for contributor, slices in self._steps.pop(old).items():
                contributors.add(contributor)
                for brought in slices.values():
                    buffer = brought.buffer
                    self._spares.setdefault((buffer.size, buffer.dtype), []).append(buffer)
        return contributors

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, spare ones included."""
        used = (b.buffer for step in self._steps.values() for slices in step.values() for b in slices.values())
        spare = (b for buffers in self._spares.values() for b in buffers)
        return sum(buffer.nbytes for buffer in used) + sum(buffer.nbytes for buffer in spare)

    def _buffer(self, size: int, dtype: np.dtype[Any]) -> Array:
        spares = self._spares.get((size, dtype))
        return spares.pop() if spares else self._empty(size, dtype)

    def validate(self) -> None:
        """Assert that only open steps are kept, and what they cover is in order."""
        assert len(self._steps) <= OPEN_STEPS
        for brought in (b for step in self._steps.values() for slices in step.values() for b in slices.values()):
            bounds = [bound for pair in brought.ranges for bound in pair]
            assert bounds == sorted(set(bounds))
            assert not bounds or (bounds[0] >= 0 and bounds[-1] <= brought.buffer.size)


def _average(total: Array, summands: Sequence[Array], examples: int) -> None:
    """Write the sum of the summands, over ``examples``, to ``total``, which may be the first of them."""
    if not np.may_share_memory(total, summands[0]):
        total[:] = summands[0]
    for summand in summands[1:]:
        total += summand
    if examples != 1:
        total *= total.dtype.type(1.0 / examples)
