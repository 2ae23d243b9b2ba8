"""Fills slices from other copies on the same server when a job's shards are recut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zmqps.core.job.recut import Lookup
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.slices import Pin, SliceState
from zmqps.errors import ProtocolError


def fill_slices(states: Sequence[SliceState], others: Sequence[SliceState], memory: Memory) -> None:
    """Let slices have the values, slots, counts and versions that others have of their elements.

    A slice has the newest version of those that it is made of, and a parameter in it the most updates: where pushes
    failed in part, or one shard went back to a checkpoint alone, they may differ.

    Raises
    ------
    ProtocolError
        The others lack some of it.
    MemoryError
        There is not enough for older versions that are kept readable.
    """
    there = Lookup([(other.slice, other) for other in others])
    for state in states:
        _fill_slice(state, list(there.over(state.slice)), memory)


def _fill_slice(state: SliceState, over: Sequence[tuple[SliceState, slice, slice]], memory: Memory) -> None:
    num_filled = sum(here.stop - here.start for _, here, _ in over)
    if num_filled != state.size:
        raise ProtocolError(f"of slice {state.slice.index} {state.size} elements are wanted, {num_filled} are here")
    kept = set.intersection(*({number for number, *_ in other.history} for other, _, _ in over))
    older = [(number, memory.empty(state.size, state.value.dtype)) for number in sorted(kept)]
    steps = np.zeros_like(state.steps)
    for other, here, there in over:
        state.value[here] = other.value[there]
        for slot, its in zip(state.slots, other.slots, strict=True):
            slot[here] = its[there]
        for number, value in older:
            value[here] = other.at(number)[1][there]
        ours, its_own = slice(*state.segments(here.start, here.stop)), slice(*other.segments(there.start, there.stop))
        steps[ours] = np.maximum(steps[ours], other.steps[its_own])
    state.steps = steps
    state.version = max(other.version for other, _, _ in over)
    state.history.clear()
    for number, value in older:
        pin = Pin()
        state.history.append((number, value, [pin], pin))
