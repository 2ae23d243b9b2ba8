"""The changes of a shard's tables since a save: rows with a later stamp, and removed ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.tables.table import RowTable

#: If more ids were removed since a save, a table is written completely: by then much of it is new.
MAX_GONE = 1 << 20


class _Mark:
    """A table at a save, and the ids removed since."""

    def __init__(self, table: RowTable) -> None:
        self.table = table
        self.steps = table.steps
        self.gone: list[Array] | None = []  # None: too many
        self._num_gone = 0
        table.watchers.removed.append(self._told)

    def _told(self, ids: Array) -> None:
        if self.gone is not None:
            self._num_gone += ids.size
            self.gone.append(ids)
            if self._num_gone > MAX_GONE:
                self.gone = None

    def drop(self) -> None:
        if self._told in self.table.watchers.removed:
            self.table.watchers.removed.remove(self._told)


class RowMarks:
    """The tables of a shard at a save, and what was removed since."""

    def __init__(self, tables: Sequence[RowTable]) -> None:
        self._marks = [_Mark(table) for table in tables]

    def since(self, tables: Sequence[RowTable]) -> list[tuple[int, Array] | None]:
        """Return for each table its number of updates then, and the ids removed since.

        None: it is another one, or too many were removed; write it completely.
        """
        if [mark.table for mark in self._marks] != list(tables):
            return [None] * len(tables)
        nothing = np.empty(0, np.int64)
        return [
            None if mark.gone is None else (mark.steps, np.unique(np.concatenate([nothing, *mark.gone])))
            for mark in self._marks
        ]

    def drop(self) -> None:
        for mark in self._marks:
            mark.drop()

    def validate(self) -> None:
        """Assert that only saves that may be built upon are kept."""
        for mark in self._marks:
            assert mark.gone is None or sum(ids.size for ids in mark.gone) <= MAX_GONE


class Marks:
    """The tables of a server's shards at saves, for saves that build upon those.

    Two saves of each shard are kept: the one that is built upon, and the one that may be built upon next.
    """

    def __init__(self) -> None:
        self._of: dict[int, dict[int, RowMarks]] = {}  # by epoch, by number of the save

    def base(self, epoch: int, number: int) -> RowMarks | None:
        """Return the marks of a save; None: it is unknown."""
        return self._of.get(epoch, {}).get(number)

    def note(self, epoch: int, number: int, base: int, marks: RowMarks) -> None:
        """A save of a shard has begun: it may be built upon once the coordinator says so; until then ``base``."""
        kept = self._of.pop(epoch, {})
        for old in [old for old in kept if old != base]:
            kept.pop(old).drop()
        self._of[epoch] = {**kept, number: marks}

    def drop(self, epoch: int) -> None:
        """A shard has left this server."""
        for marks in self._of.pop(epoch, {}).values():
            marks.drop()

    def validate(self) -> None:
        """Assert that only saves that may be built upon are kept."""
        for saves in self._of.values():
            assert len(saves) <= 2
            for marks in saves.values():
                marks.validate()
