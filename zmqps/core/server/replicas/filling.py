"""All that a shard has, piece by piece, for a backup that has nothing."""

from __future__ import annotations

from collections.abc import Callable

from zmqps.core.server.replicas.record import ReplicationRecord
from zmqps.core.server.shard import Shard


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
        self._turns = [(part, member) for part in shard.parts for member in range(len(part.members))]
        self._turn = self._start = 0

    @property
    def is_over(self) -> bool:
        """Whether all have had their turn."""
        return self._turn == len(self._turns)

    def next(self) -> ReplicationRecord:
        """Return the next piece; one that there was no memory for comes again (`MemoryError`)."""
        part, member = self._turns[self._turn]
        self._tell()
        record, self._start = part.record(member, self._start, self._shard.version)
        self._turn += not self._start
        return record
