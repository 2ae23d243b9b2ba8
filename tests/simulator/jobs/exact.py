"""What synchronous training must give to the bit: its steps done once more, by shards that nothing happens to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tests.simulator.jobs.reference import Gradient
from tests.simulator.jobs.training import ReferenceRules
from zmqps.core.job.keyspace import Placement, Segment
from zmqps.core.job.norms import scale_to
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.message import Contributor, Part
from zmqps.core.protocol.terms import terms_of
from zmqps.core.server.dense.slices import SliceState
from zmqps.core.server.shard import Shard
from zmqps.optim import OptimizerSpec

#: A parameter at a version: its value and its slots, flat, and how many updates it has had.
State = tuple[list[Array], int]


class ExactReference:
    """The shards of a job that is trained in one place, without a network, and its parameters at each version.

    Parameters
    ----------
    job, placement, values
        What is trained, how it is cut, and its initial values.
    """

    def __init__(self, job: JobSpec, placement: Placement, values: Sequence[Array]) -> None:
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
        self._clip_norm = job.clip_norm
        self._shards = [Shard(placement, i, rules, synchronous=True) for i in range(placement.num_shards)]
        for shard in self._shards:
            parts, payload = _of_shard(shard, values)
            if parts:
                shard.dense.load(parts, payload)
        self._states: dict[tuple[int, int], State] = {}  # by parameter and version: a job may be cut otherwise
        self._note()

    def step(
        self, contributors: Sequence[Contributor], gradients: Iterable[Gradient], rates: Sequence[float] = (), *,
        examples: int = 0, left_out: bool = False,
    ) -> None:  # fmt: skip
        """Do a step of these gradients, one for each attempt of each contributor, with these numbers."""
        pushes = [(who, attempt) for who, attempts in contributors for attempt in attempts]
        brought = list(zip(pushes, gradients, strict=True))
        for shard in self._shards:
            for push, gradient in brought:
                parts, payload = _of_shard(shard, gradient.source)
                if parts:
                    terms = (gradient.sort,) if gradient.sort else ()
                    shard.dense.collect(parts, payload, push, shard.version, gradient.examples, "somebody", terms)
        total = sum(_squares(shard, contributors, examples) for shard in self._shards)
        scale = 1.0 if self._clip_norm is None or not brought else scale_to(self._clip_norm, total)
        for shard in self._shards:
            shard.commit(shard.version, contributors, terms_of(scale, rates), examples, left_out=left_out)
        self._note()

    def _note(self) -> None:
        found: dict[int, list[tuple[int, list[Array], int]]] = defaultdict(list)
        for state in (state for shard in self._shards for state in shard.slices):
            for s, arrays, steps in _segments(state):
                found[s.parameter].append((s.start, arrays, steps))
        for parameter, parts in found.items():
            parts.sort(key=lambda part: part[0])
            whole = [np.concatenate(pieces) for pieces in zip(*(arrays for _, arrays, _ in parts), strict=True)]
            self._states[parameter, self._shards[0].version] = whole, parts[0][2]

    def compare(self, shard: Shard, who: str) -> None:
        """Assert that a copy of a shard is what it must be at its version."""
        for state in shard.slices:
            for s, arrays, steps in _segments(state):
                expected, there = self._states[s.parameter, shard.version]
                its = [array[s.start : s.start + s.size] for array in expected]
                same = [one.tobytes() == other.tobytes() for one, other in zip(arrays, its, strict=True)]
                text = f"{who} differs from uninterrupted training at version {shard.version}"
                assert (same, steps) == ([True] * len(same), there), text


def _segments(state: SliceState) -> Iterator[tuple[Segment, list[Array], int]]:
    """Yield what a slice has of each parameter: where that is, its value and slots, and how many updates it has had."""
    for number, s in enumerate(state.slice.segments):
        its = slice(s.position, s.position + s.size)
        yield s, [array[its] for array in (state.value, *state.slots)], int(state.steps[number])


def _of_shard(shard: Shard, source: Sequence[Array | None]) -> tuple[list[Part], list[Array]]:
    """Return what parameters that are there bring to the slices of a shard."""
    parts, payload = list[Part](), list[Array]()
    for state in shard.slices:
        there = [s for s in state.slice.segments if source[s.parameter] is not None]
        if not there:
            continue
        whole = len(there) == len(state.slice.segments)
        ranges = () if whole else tuple(bound for s in there for bound in (s.position, s.position + s.size))
        parts.append((state.slice.index, 0, ranges))
        for s in there:
            array = source[s.parameter]
            assert array is not None
            part = array.reshape(-1)[s.start : s.start + s.size]
            payload.append(np.ascontiguousarray(part, state.value.dtype))  # as they travel
    return parts, payload


def _squares(shard: Shard, contributors: Sequence[Contributor], examples: int) -> float:
    """Return the sum of the squares of a shard's part of the mean."""
    assert shard.steps is not None
    return shard.steps.measure(shard.version, contributors, examples)
