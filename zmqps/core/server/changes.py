"""Which slices of a shard have changed since a save: what has had no update since is as it was.

Update counts are compared, not versions: a synchronous step gives every slice its version, also those that nobody has
pushed. What is kept for it are the counts of two saves of a shard, the one that is built upon and the one that may be
built upon next; nothing is done when a slice is updated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from zmqps.core.server.slices import SliceState

#: By slice: how many updates each of its parameters has had, and how often values were set.
Counts: TypeAlias = Mapping[int, tuple["np.ndarray[Any, np.dtype[np.int64]]", int]]
#: Slices that are as they were in what is built upon, with their versions and counts as of now.
Unchanged: TypeAlias = Mapping[int, tuple[int, Sequence[int]]]


class Changes:
    """What the slices of a server's shards had absorbed when they were saved."""

    def __init__(self) -> None:
        self._counts: dict[int, dict[int, Counts]] = {}  # by epoch, by number of the save

    def unchanged(self, epoch: int, base: int, states: Iterable[SliceState]) -> Unchanged | None:
        """Return which slices need not be written where the save ``base`` is built upon; None: 0, all are written.

        Of a save that is not known here all slices count as changed.
        """
        if not base:
            return None
        then = self._counts.get(epoch, {}).get(base, {})
        return {
            state.slice.index: (state.version, state.steps.tolist())
            for state in states
            if (before := then.get(state.slice.index)) is not None
            and before[1] == state.num_set
            and np.array_equal(before[0], state.steps)
        }

    def note(self, epoch: int, number: int, base: int, states: Iterable[SliceState]) -> None:
        """A save of a shard has begun: it may be built upon once the coordinator says so, until then ``base``."""
        kept = self._counts.get(epoch, {})
        now = {state.slice.index: (state.steps, state.num_set) for state in states}  # an update replaces them
        self._counts[epoch] = {number: now, **({base: kept[base]} if base in kept else {})}

    def drop(self, epoch: int) -> None:
        """A shard is not here any more."""
        self._counts.pop(epoch, None)

    def validate(self) -> None:
        """Assert that no more is kept than may be built upon."""
        for saves in self._counts.values():
            assert len(saves) <= 2
