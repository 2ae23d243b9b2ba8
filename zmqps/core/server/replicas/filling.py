"""All that a shard has, piece by piece, for a backup that has nothing."""

from __future__ import annotations

from collections.abc import Callable

from zmqps.core.server.dense.slices import SliceState
from zmqps.core.server.replicas.record import ReplicationRecord
from zmqps.core.server.replicas.records import state_of
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_records import filling
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tables.table import RowTable


class Filling:
    """The parts of a shard, slice by slice and table by table, each piece as it is when its turn comes.

    What changes later the backup is told beside it, in the order in which it happens: nothing need be kept as it was.
    """

    def __init__(
        self,
        shard: Shard,
        # tells of all that has changed so far, or raises `MemoryError`: a row must not come before those that have made
        # way for it are gone
        tell: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._tell = tell
        self._turns: list[SliceState | RowTable] = [*shard.slices, *rows_in(shard).tables]
        self._turn = self._start = 0

    @property
    def is_over(self) -> bool:
        """Whether all have had their turn."""
        return self._turn == len(self._turns)

    def next(self) -> ReplicationRecord:
        """Return the next piece; one that there was no memory for comes again (`MemoryError`)."""
        turn, step = self._turns[self._turn], self._shard.version
        self._tell()
        if isinstance(turn, SliceState):
            record = state_of(turn, step, self._shard.memory)
        else:
            record, self._start = filling(turn, self._start, step)
        self._turn += not self._start
        return record
