"""The buffers that the values of slices lie in.

A buffer that somebody still reads is never written to: an update goes to another one, which takes
its place. Each slice has a *home* in the shard's arena. Where readers may take as long as they like
(`zmqps.core.protocol.loans.Loan`) it gets a second place, in an arena of the same shape, and goes back and
forth between the two: so neighbours usually stay neighbours, and an array over several slices can
be read where it lies. Whatever else is needed comes from a pool of spares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.loans import Loan
from zmqps.core.server.memory import Memory
from zmqps.core.server.slices import SliceState


class Buffers:
    """Gives slices buffers that nobody reads.

    Parameters
    ----------
    tables
        For each table the shard's first element and how many it has.
    dtypes
        Of the tables.
    memory
        Where they are.
    counters
        Counts ``spare_buffers``, and in ``spare_nbytes`` all memory beyond the first arena.
    """

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],
        dtypes: Sequence[np.dtype[Any]],
        memory: Memory,
        counters: Counter[str],
    ) -> None:
        self._tables = tables
        self._dtypes = dtypes
        self._memory = memory
        self._counters = counters
        self._homes = [memory.values(size, dtype) for (_, size), dtype in zip(tables, dtypes, strict=True)]
        self._seconds: dict[int, Array] = {}  # by table
        self._spares: list[tuple[Array, list[Reader]]] = []
        self._lends = False  # some reader has taken a loan

    def home(self, slice_: Slice) -> Array:
        """Return the place of a slice in the arena."""
        return self._place(self._homes[slice_.table], slice_)

    def _place(self, arena: Array, slice_: Slice) -> Array:
        origin, _ = self._tables[slice_.table]
        return arena[slice_.start - origin : slice_.stop - origin]

    def _second(self, slice_: Slice) -> Array:
        if slice_.table not in self._seconds:
            arena = self._memory.values(self._tables[slice_.table][1], self._dtypes[slice_.table])
            self._seconds[slice_.table] = arena
            self._counters["spare_nbytes"] += arena.nbytes
        return self._place(self._seconds[slice_.table], slice_)

    def make_writable(self, state: SliceState) -> None:
        """Give a slice a buffer that nobody reads; what it holds is up to the caller."""
        value, readers = state.value, state.readers
        at_home = any(value is place for place, _ in state.places)
        free = _is_free(readers)
        if free and (at_home or not self._lends):
            readers.clear()
            return
        if not free and len(state.places) == 1 and any(isinstance(reader, Loan) for reader in readers):
            self._lends = True
            state.places.append((self._second(state.slice), []))
        for place, watchers in state.places:
            if place is not value and _is_free(watchers):
                state.value, state.readers = place, watchers
                break
        else:
            if free:
                readers.clear()
                return
            state.value, state.readers = self._spare(value.size, value.dtype)
        state.readers.clear()
        if not at_home:
            self._spares.append((value, readers))

    def _spare(self, size: int, dtype: np.dtype[Any]) -> tuple[Array, list[Reader]]:
        for i, (spare, readers) in enumerate(self._spares):
            if spare.size == size and spare.dtype == dtype and _is_free(readers):
                del self._spares[i]
                return spare, []
        spare = self._memory.empty(size, dtype)
        self._counters["spare_buffers"] += 1
        self._counters["spare_nbytes"] += spare.nbytes
        return spare, []


def _is_free(readers: Sequence[Reader]) -> bool:
    return all(reader.done for reader in readers)
