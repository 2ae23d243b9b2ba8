"""Gradients of a synchronous step, kept apart by push until the step is committed.

They are not added up on arrival: the contributors are known only at the commit (a worker may die between two slices, or
be one too many), and a sum of floats cannot be undone. Kept apart they are also added in the order the coordinator
names, so the result does not depend on the order of arrival.

What is in the memory of a worker on this host that does not touch it until the step is over is not even copied, but
read there when the step is committed. So a step reads each gradient once, and writes nothing but the new values.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array, lender_of
from zmqps.core.protocol.message import OPEN_STEPS
from zmqps.core.protocol.terms import SET, SET_TO_MEAN
from zmqps.core.server.dense.memory import GIVE_BACK_NBYTES, HostMemory, Memory
from zmqps.core.server.dense.slices import Note
from zmqps.errors import LimitError, ProtocolError

#: Gradients of a worker that a step may hold beyond those it needs: of pushes that failed halfway and were repeated.
SPARE_GRADIENTS = 4
#: What storing one part costs besides its elements, and how much of that a worker may cause in a step: it may divide
#: its gradient into sixty thousand pushes, but not into any number.
PART_NBYTES = 256
PARTS_NBYTES = 16 << 20

#: Steps after which a buffer that was not needed is returned: of a worker that has left, or a repeated push.
SPARE_STEPS = 8

#: One push of one worker: (incarnation, attempt).
PushId = tuple[bytes, int]
#: Elements and dtype of a buffer.
Key = tuple[int, np.dtype[Any]]
#: What a push brings that brings no values.
GRADIENT = 0.0


#: Writes the sum of arrays, times a share, to another: ``mean(arrays, share, out)``. Added in their order; False, and
#: ``out`` undefined, where a sum is too large for the dtype, and where it cannot tell.
Mean = Callable[[Sequence[Array], float, Array], bool]


#: Stretches of a slice, ascending and disjoint: first element, and what is there.
Stretches = list[tuple[int, Array]]


class Contribution(NamedTuple):
    """What a push brings to one slice: pieces (`Memory`) of the gradient within ``bounds``, one after the other."""

    slice: Slice
    bounds: Sequence[tuple[int, int]]  # ascending, disjoint
    pieces: Sequence[Any]
    sort: float = GRADIENT  # or `SET`, or `SET_TO_MEAN`
    stays: bool = False  # what is another process's is left alone there until the step is over


class Brought:
    """What one push brought to one slice: gradients of its elements within some bounds, or values, packed."""

    __slots__ = ("_origins", "_starts", "bounds", "buffer", "examples", "lent", "sort", "whole")

    def __init__(self, part: Contribution, buffer: Array, examples: int, *, lent: bool = False) -> None:
        self.lent = lent  # the buffer is the worker's
        self.bounds = part.bounds
        self.buffer = buffer
        self.examples = examples
        self.sort = part.sort
        self.whole = buffer.size == part.slice.size
        self._starts = [start for start, _ in part.bounds]
        self._origins = list(accumulate([stop - start for start, stop in part.bounds], initial=0))

    def between(self, start: int, stop: int) -> Array | None:
        """Return the gradients of elements ``[start, stop)`` if all of them were brought."""
        i = bisect_right(self._starts, start) - 1
        if i < 0 or stop > self.bounds[i][1]:
            return None
        origin = self._origins[i] - self._starts[i]
        return self.buffer[origin + start : origin + stop]


class Stage:
    """The gradients of the open steps of one shard, apart for each push and slice.

    Memory is bounded for each worker, not in sum, as their number is not known beforehand: `OPEN_STEPS` times the
    gradients that a step may need of it, and `SPARE_GRADIENTS`. Buffers of whole slices are reused, and released when
    idle for `SPARE_STEPS`.
    """

    def __init__(
        self,
        nbytes: int,  # of the shard's values, and so of a gradient
        gradients: int = 1,  # how many whole ones of one worker a step may need
        memory: Memory | None = None,  # where they are kept
        mean: Mean | None = None,  # how those that count alike are averaged; by default by numpy
    ) -> None:
        self._memory = memory or HostMemory()
        self._mean = mean or mean_in_passes
        self._limit = (gradients + SPARE_GRADIENTS) * nbytes + PARTS_NBYTES
        self._steps: dict[int, dict[PushId, dict[int, Brought]]] = {}
        self._used: dict[int, Counter[bytes]] = {}  # bytes, by step and worker
        self._spares: dict[Key, list[tuple[Array, int]]] = {}  # with the step they were last needed for
        self._setting: set[int] = set()  # steps that values were brought to
        self._totals: dict[np.dtype[Any], Array] = {}
        self._averages: dict[np.dtype[Any], Array] = {}  # the same for values
        self._scratch: dict[np.dtype[Any], Array] = {}

    def add(
        self, step: int, push: PushId, parts: Sequence[Contribution], examples: int, note: Note = lambda: None
    ) -> None:
        """Keep what a message brings: all of it, or nothing if that is too much; ``note`` remembers that it is kept.

        Raises
        ------
        LimitError
            The worker has brought more to this step than it may.
        ProtocolError
            This push has brought one of the slices before.
        """
        slices = self._steps.get(step, {}).get(push, {})
        before = self._used.get(step, Counter[bytes]())[push[0]]
        got, sets = before + PART_NBYTES * max(1, len(parts)), False
        for part in parts:
            if part.slice.index in slices:
                raise ProtocolError("a push has one message for each slice")
            for piece in part.pieces:
                got += piece.nbytes
            sets = sets or part.sort != GRADIENT
        if got > self._limit:
            raise LimitError(what="bytes of one worker's gradients of a step", got=got, limit=self._limit)
        brought = self._keep(parts, examples)
        used, kept = self._used.setdefault(step, Counter()), self._steps.setdefault(step, {}).setdefault(push, {})
        try:
            kept.update(brought)
            used[push[0]] = got
            if sets:
                self._setting.add(step)
            note()
        except BaseException:
            for index in brought:
                kept.pop(index, None)
            used[push[0]] = before
            raise

    def _keep(self, parts: Sequence[Contribution], examples: int) -> dict[int, Brought]:
        """Copy parts to buffers, by slice; what fails leaves the spares as they were."""
        taken: list[tuple[Key, tuple[Array, int]]] = []
        brought: dict[int, Brought] = {}
        try:
            for part in parts:
                if not part.pieces:
                    continue
                if (lent := _lent(part)) is not None:
                    brought[part.slice.index] = Brought(part, lent, examples, lent=True)
                    continue
                key = sum([stop - start for start, stop in part.bounds]), part.pieces[0].dtype
                if key[0] == part.slice.size and self._spares.get(key):
                    taken.append((key, self._spares[key].pop()))
                    buffer = taken[-1][1][0]
                else:
                    buffer = self._memory.empty(*key)
                brought[part.slice.index] = Brought(part, buffer, examples)
                start = 0
                for piece in part.pieces:
                    buffer[start : start + piece.size] = self._memory.take(piece)
                    start += piece.size
        except BaseException:
            for key, spare in reversed(taken):
                self._spares[key].append(spare)
            raise
        return brought

    def outcome(
        self, step: int, index: int, pushes: Sequence[PushId], total: int = 0, *, left_out: bool = False
    ) -> tuple[Stretches, Stretches]:
        """Return what some pushes do to a slice: the mean of their gradients, and the values that it is set to instead.

        Of several that set an element, the first in their order has its way, before all that average it; and what is
        set is not trained in that step. With ``left_out`` nothing is trained. Valid until the next call.
        """
        means = [] if left_out else self.mean(step, index, pushes, total=total)
        if step not in self._setting:
            return means, []
        values: Stretches = []
        slices = self._steps.get(step, {})
        for push in pushes:
            brought = slices[push].get(index) if push in slices else None
            if brought is not None and brought.sort == SET:
                values = _beside(values, _all_of(brought))
        values = _beside(values, self.mean(step, index, pushes, SET_TO_MEAN))
        return _left(means, values), values

    def mean(
        self, step: int, index: int, pushes: Sequence[PushId], sort: float = GRADIENT, total: int = 0
    ) -> Stretches:
        """Return the mean of the gradients that some pushes brought to a slice, or of values, added in their order.

        Each counts as often as it has examples. Without a ``total`` a worker that did not push an element has no part
        in its mean, neither in the sum nor in the number of examples that divides it: so the workers of one
        replica may push different parameters (model parallelism), even within one slice. With a ``total``, the
        examples of all contributors, the sum is divided by that, as if the others had pushed zeros.

        What was brought stays as it is, so it may be asked again. The mean of finite gradients is finite, however
        large they are and however many their examples.

        Returns
        -------
        list of (start, mean)
            The stretches of the slice that were pushed, ascending. The arrays are valid until
            the next call.
        """
        slices = self._steps.get(step, {})
        found = [slices[push][index] for push in pushes if push in slices and index in slices[push]]
        brought = [b for b in found if b.sort == sort]
        if len(brought) == 1 and brought[0].examples >= total:
            return _all_of(brought[0])
        bounds = sorted({bound for b in brought for pair in b.bounds for bound in pair})
        sums = self._totals if sort == GRADIENT else self._averages
        into = _grown(sums, bounds[-1], brought[0].buffer.dtype, self._memory) if brought else None
        stretches: list[tuple[int, int]] = []
        for lo, hi in pairwise(bounds):
            some = [(array, b.examples) for b in brought if (array := b.between(lo, hi)) is not None]
            if some and into is not None:
                arrays, examples = [array for array, _ in some], [examples for _, examples in some]
                divisor = max(total, sum(examples))
                if not self._averaged_equally(into[lo:hi], arrays, examples, divisor):
                    scratch = _grown(self._scratch, bounds[-1], into.dtype, self._memory)
                    _average(into[lo:hi], scratch[lo:hi], arrays, examples, divisor)
                if stretches and stretches[-1][1] == lo:
                    stretches[-1] = stretches[-1][0], hi
                else:
                    stretches.append((lo, hi))
        return [(lo, into[lo:hi]) for lo, hi in stretches if into is not None]

    def _averaged_equally(self, into: Array, arrays: Sequence[Array], examples: Sequence[int], divisor: int) -> bool:
        """Write the mean and return True, where each array counts as much as the others and the sum is finite."""
        share = examples[0] / divisor
        if len(arrays) > 1:
            # a GPU does not report that a sum is too large
            alike = isinstance(into, np.ndarray) and min(examples) == max(examples)
            return alike and self._mean(arrays, share, into)
        if share == 1:
            into[:] = arrays[0]
        else:
            np.multiply(arrays[0], into.dtype.type(share), out=into)
        return True

    def close(self, step: int) -> set[PushId]:
        """Forget a step and all before it; return the pushes that had brought something to it."""
        pushes: set[PushId] = set()
        for old in [number for number in self._used if number <= step]:
            del self._used[old]
        self._setting = {number for number in self._setting if number > step}
        for old in [number for number in self._steps if number <= step]:
            for push, slices in self._steps.pop(old).items():
                pushes.add(push)
                for buffer in (brought.buffer for brought in slices.values() if brought.whole and not brought.lent):
                    self._spares.setdefault((buffer.size, buffer.dtype), []).append((buffer, step))
        given_back = 0
        for spares in self._spares.values():  # taken from the end: unused ones stay at the front
            old = 0
            while old < len(spares) and spares[old][1] <= step - SPARE_STEPS and given_back < GIVE_BACK_NBYTES:
                given_back += spares[old][0].nbytes
                old += 1
            del spares[:old]
        if given_back:
            self._memory.given_back(given_back)
        return pushes

    def is_open(self, version: int) -> bool:
        """Whether anything was brought to a step from this one on."""
        return any(step >= version for step in (*self._steps, *self._used))

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, spare ones included, without what is read in workers' memory."""
        kept = (b for step in self._steps.values() for slices in step.values() for b in slices.values())
        used = (brought.buffer for brought in kept if not brought.lent)
        spare = (buffer for spares in self._spares.values() for buffer, _ in spares)
        means = (*self._totals.values(), *self._averages.values(), *self._scratch.values())
        return sum(buffer.nbytes for buffers in (used, spare, means) for buffer in buffers)

    def validate(self) -> None:
        """Assert that only open steps are kept, and what they cover is in order."""
        assert len(self._steps) <= OPEN_STEPS
        for counter in self._used.values():
            for used in counter.values():
                assert used <= self._limit
        for brought in [b for step in self._steps.values() for slices in step.values() for b in slices.values()]:
            size = last = 0
            for start, stop in brought.bounds:
                assert last <= start <= stop
                size, last = size + stop - start, stop
            assert brought.buffer.size == size


def _lent(part: Contribution) -> Array | None:
    """Return what a part brings, in the worker's memory, if it stays there in one piece."""
    if not part.stays or len(part.pieces) != 1 or not isinstance(part.pieces[0], np.ndarray):
        return None
    return part.pieces[0] if lender_of(part.pieces[0]) is not None else None


def _all_of(brought: Brought) -> Stretches:
    return [(lo, array) for lo, hi in brought.bounds if (array := brought.between(lo, hi)) is not None]


def _beside(first: Stretches, others: Stretches) -> Stretches:
    """Return stretches, and of others what they leave."""
    return sorted([*first, *_left(others, first)], key=itemgetter(0))


def _left(stretches: Stretches, taken: Stretches) -> Stretches:
    """Return the rest of stretches without the taken ones."""
    left: Stretches = []
    for start, array in stretches:
        at, stop = start, start + array.size
        for lo, other in taken:
            hi = lo + other.size
            if lo < stop and hi > at:
                if at < lo:
                    left.append((at, array[at - start : lo - start]))
                at = max(at, hi)
        if at < stop:
            left.append((at, array[at - start :]))
    return left


def _grown(buffers: dict[np.dtype[Any], Array], size: int, dtype: np.dtype[Any], memory: Memory) -> Array:
    """Return the buffer of a dtype, a larger one if it is too small."""
    if dtype not in buffers or buffers[dtype].size < size:
        buffers[dtype] = memory.empty(size, dtype)
    return buffers[dtype]


def mean_in_passes(arrays: Sequence[Array], share: float, out: Array) -> bool:
    """Write the sum of at least two arrays, times a share, to ``out``, in a pass over it for each array (`Mean`)."""
    try:
        with np.errstate(over="raise", invalid="ignore"):
            np.add(arrays[0], arrays[1], out=out)
            for array in arrays[2:]:
                out += array
        out *= out.dtype.type(share)
    except FloatingPointError:
        return False
    return True


def _average(total: Array, scratch: Array, summands: Sequence[Array], examples: Sequence[int], divisor: int) -> None:
    """Write the sum of the summands, each counted as often as it has examples, over the divisor to ``total``.

    Each is multiplied with its part first, so that nothing grows.
    """
    parts = [total.dtype.type(count / divisor) for count in examples]
    with np.errstate(over="ignore", invalid="ignore"):
        np.multiply(summands[0], parts[0], out=total)
        for summand, part in zip(summands[1:], parts[1:], strict=True):
            np.multiply(summand, part, out=scratch)
            total += scratch
