"""What synchronous training must give to the bit: its steps done once more, by shards that nothing happens to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.fields import Contributor, Part
from zmqps.core.server.shard import Shard
from zmqps.optim import OptimizerSpec
from zmqps.testing.reference import Gradient
from zmqps.testing.training import ReferenceRules

#: A slice at a version: its value, its slots, and how many updates each parameter has had.
State = tuple[list[bytes], list[int]]


class ExactReference:
    """The shards of a job that is trained in one place, without a network, and what their slices were at each version.

    Parameters
    ----------
    job, placement, values
        What is trained, how it is cut, and its initial values.
    """

    def __init__(self, job: JobSpec, placement: Placement, values: Sequence[Array]) -> None:
        rules = ReferenceRules(OptimizerSpec.from_wire(job.optimizer))
        self._shards = [Shard(placement, i, rules, synchronous=True) for i in range(placement.num_shards)]
        for shard in self._shards:
            parts, payload = _of_shard(shard, values)
            if parts:
                shard.load(parts, payload)
        self._states: dict[tuple[int, int, int], State] = {}  # by shard, slice and version
        self._note()

    def step(self, contributors: Sequence[Contributor], gradients: Iterable[Gradient]) -> None:
        """Do a step of these gradients, one for each attempt of each contributor."""
        pushes = [(who, attempt) for who, attempts in contributors for attempt in attempts]
        brought = list(zip(pushes, gradients, strict=True))
        for shard in self._shards:
            for push, (source, examples) in brought:
                parts, payload = _of_shard(shard, source)
                if parts:
                    shard.collect(parts, payload, push, shard.version, examples, "somebody")
            shard.commit(shard.version, contributors)
        self._note()

    def _note(self) -> None:
        for shard in self._shards:
            for state in shard.slices:
                arrays = [array.tobytes() for array in (state.value, *state.slots)]
                self._states[shard.index, state.slice.index, shard.version] = arrays, state.steps.tolist()

    def compare(self, shard: Shard, who: str) -> None:
        """Assert that a copy of a shard is what it must be at its version."""
        for state in shard.slices:
            expected = self._states[shard.index, state.slice.index, shard.version]
            got = [array.tobytes() for array in (state.value, *state.slots)], state.steps.tolist()
            assert got == expected, f"{who} differs from uninterrupted training at version {shard.version}"


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
            payload.append(np.ascontiguousarray(array.reshape(-1)[s.start : s.start + s.size]))
    return parts, payload
