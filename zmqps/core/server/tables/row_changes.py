"""What of a shard's tables has changed since a save: rows with a later stamp, and those that have made way since."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.tables.table import RowTable

#: Where more ids have made way for others since a save, a table is written as a whole: by then much of it is new.
MAX_GONE = 1 << 20


class _Mark:
    """A table when it was saved, and which ids have gone since."""

    def __init__(self, table: RowTable) -> None:
        self.table = table
        self.steps = table.steps
        self.gone: list[Array] | None = []  # None: too many
        self._num_gone = 0
        table.removed.append(self._told)

    def _told(self, ids: Array) -> None:
        if self.gone is not None:
            self._num_gone += ids.size
            self.gone.append(ids)
            if self._num_gone > MAX_GONE:
                self.gone = None

    def drop(self) -> None:
        if self._told in self.table.removed:
            self.table.removed.remove(self._told)


class RowChanges:
    """When the tables of a server's shards were saved, and what has gone since.

    Of each shard two saves are remembered: the one that is built upon, and the one that may be built upon next.
    """

    def __init__(self) -> None:
        self._marks: dict[int, dict[int, list[_Mark]]] = {}  # by epoch, by number of the save

    def since(self, epoch: int, base: int, tables: Sequence[RowTable]) -> list[tuple[int, Array] | None]:
        """Return for each table how many updates it had at the save ``base``, and which ids have gone since.

        None: nothing is known of it, or too many have gone; it is to be written as a whole.
        """
        marks = self._marks.get(epoch, {}).get(base, [])
        if [mark.table for mark in marks] != list(tables):
            return [None] * len(tables)
        nothing = np.empty(0, np.int64)
        return [
            None if mark.gone is None else (mark.steps, np.unique(np.concatenate([nothing, *mark.gone])))
            for mark in marks
        ]

    def note(self, epoch: int, number: int, base: int, tables: Sequence[RowTable]) -> None:
        """A save of a shard has begun: it may be built upon once the coordinator says so, until then ``base``."""
        kept = self._marks.pop(epoch, {})
        for old in [old for old in kept if old != base]:
            _drop(kept.pop(old))
        self._marks[epoch] = {**kept, number: [_Mark(table) for table in tables]}

    def drop(self, epoch: int) -> None:
        """A shard is not here any more."""
        for marks in self._marks.pop(epoch, {}).values():
            _drop(marks)

    def validate(self) -> None:
        """Assert that no more is kept than may be built upon."""
        for saves in self._marks.values():
            assert len(saves) <= 2


def _drop(marks: Sequence[_Mark]) -> None:
    for mark in marks:
        mark.drop()
