"""All that a shard has, piece by piece, for a backup that has nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zmqps.core.server.dense.shard import Shard
from zmqps.core.server.replicas.records import ReplicationRecord, state_of
from zmqps.core.server.tables.row_records import rows_now

#: Bytes of rows in a piece, about: as much as a slice of dense parameters.
PIECE_NBYTES = 4 << 20


class Filling:
    """The slices of a shard, then the rows of its tables, each as it is when its turn comes.

    What changes later the backup is told beside it, in the order in which it happens: nothing need be kept as it was.

    Parameters
    ----------
    shard
        The shard.
    tell
        Tells of all that has changed so far, or raises `MemoryError`: a row must not come before those that have made
        way for it are gone.
    """

    def __init__(self, shard: Shard, tell: Callable[[], None]) -> None:
        self._shard = shard
        self._tell = tell
        self._tables = shard.rows.tables if shard.rows is not None else ()
        self._slice = self._table = self._row = 0

    @property
    def is_over(self) -> bool:
        """Whether all have had their turn."""
        return self._slice == len(self._shard.slices) and self._table == len(self._tables)

    def next(self) -> ReplicationRecord:
        """Return the next piece; one that there was no memory for comes again (`MemoryError`)."""
        if self._slice < len(self._shard.slices):
            record = state_of(self._shard.slices[self._slice], self._shard.version, self._shard.memory)
            self._slice += 1
            return record
        self._tell()
        table = self._tables[self._table]
        store = table.store
        stop = min(store.end, self._row + max(1, PIECE_NBYTES // store.row_nbytes))
        rows = np.arange(self._row, stop)
        is_last = stop == store.end  # rows that come later are told as they come
        record = rows_now(table, rows[store.live[rows] != 0], step=self._shard.version, is_last=is_last)
        self._row = 0 if is_last else stop
        self._table += is_last
        return record
