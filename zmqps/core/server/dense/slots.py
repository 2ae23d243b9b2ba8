"""The optimizer's slots of a shard: momenta and the like, one array of each kind a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.memory import Memory


class Slots:
    """Allocates all slots of a shard."""

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],  # for each table the shard's first element and how many it has
        dtypes: Sequence[np.dtype[Any]],
        memory: Memory,
        fills: Sequence[float],  # the initial value of each slot
    ) -> None:
        self.nbytes = 0
        self._tables = tables
        self._arenas: list[list[Array]] = []
        for (_, size), dtype in zip(tables, dtypes, strict=True):
            slots = [memory.empty(size, dtype) for _ in fills]
            for slot, fill in zip(slots, fills, strict=True):
                memory.fill(slot, fill)
            self._arenas.append(slots)
            self.nbytes += size * dtype.itemsize * len(slots)

    def of(self, slice_: Slice) -> tuple[Array, ...]:
        """Return the slots of a slice; they alias the shard's."""
        origin, _ = self._tables[slice_.table]
        where = slice(slice_.start - origin, slice_.stop - origin)
        return tuple(slot[where] for slot in self._arenas[slice_.table])
