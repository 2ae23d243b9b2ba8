"""A snapshot of a table's rows, kept while updates continue, until it is written.

Taking a snapshot copies nothing. Rows are copied at their turn, or before they change, whichever is first, and each
only once. So its memory is that of the rows updated before their turn, and a byte per row that marks the copied ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.server.tables.table import RowTable
from zmqps.rows.arena import reserve
from zmqps.rows.kept import Kept, joined

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


#: Rows are handed out in pieces of this many bytes: copying them must not delay others for long.
PIECE_NBYTES = 16 << 20
_NOTHING = np.empty(0, np.int64)


class RowPiece(NamedTuple):
    """Some rows of a snapshot; the arrays are not shared.

    ``gone`` are ids of rows that may be in the checkpoint it builds upon, and were removed since.
    """

    number: int  # the first one is that of the first table's first piece; they are consecutive
    table: str  # its name
    kept: Kept
    gone: Array

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.kept.nbytes + self.gone.nbytes


class RowSnapshot:
    """A table at the time this was made."""

    def __init__(
        self,
        table: RowTable,
        since: int | None = None,  # only rows that may have changed since then, by the table's updates; None: all
    ) -> None:
        self.table = table
        self.times = table.times
        self.failed: MemoryError | None = None  # there was no memory for rows that an update would have changed
        self._since = since
        store = table.store
        self._end, self._hand = store.end, 0  # rows up to the hand have had their turn
        self._copied = reserve(self._end, dtype=np.uint8)
        self._copied[store.free] = 1  # their future content is not a part of it
        self._aside: deque[Kept] = deque()
        self._aside_nbytes = 0
        table.watchers.changing.append(self._before)

    def _before(self, rows: Array) -> None:
        """Copy rows that are about to change; without memory for it, give up: training continues."""
        if self.failed is not None:
            return
        try:
            rows = rows[(rows >= self._hand) & (rows < self._end)]
            rows = rows[self._copied[rows] == 0]
            if rows.size:
                self._copied[rows] = 1
                rows = self._changed(rows)
                kept = self.table.kept(rows)
                self._aside.append(kept)
                self._aside_nbytes += kept.nbytes
        except MemoryError as error:
            self.failed = error
            self.release()

    def _changed(self, rows: Array) -> Array:
        """Return those of some rows that have changed since the save it builds upon.

        Several messages may belong to one update, so those with the number of the last one count as well.
        """
        if self._since is None:
            return rows
        return rows[self.table.store.ages(rows, self.times.steps) <= self.times.steps - self._since]

    def next(self, nbytes: int = PIECE_NBYTES) -> Kept | None:
        """Return rows that have not had their turn; None: all had, or it was given up.

        Raises
        ------
        MemoryError
            There is none to copy them; the snapshot is given up.
        """
        most = max(1, nbytes // self.table.store.row_nbytes)
        try:
            while self.failed is None and (self._hand < self._end or self._aside):
                if self._aside_nbytes >= nbytes or self._hand >= self._end:
                    return self._put_aside(nbytes)
                rows = np.arange(self._hand, min(self._end, self._hand + most))
                rows = rows[self._copied[rows] == 0]
                rows = self._changed(rows)
                kept = self.table.kept(rows) if rows.size else None
                self._hand = min(self._end, self._hand + most)
                if kept is not None:
                    return kept
        except MemoryError as error:
            self.failed = error
            self.release()
            raise
        self.release()
        return None

    def _put_aside(self, nbytes: int) -> Kept:
        """Return rows that were copied before they changed."""
        taken: list[Kept] = []
        while self._aside and nbytes > 0:
            taken.append(self._aside.popleft())
            nbytes -= taken[-1].nbytes
            self._aside_nbytes -= taken[-1].nbytes
        return joined(taken)

    def release(self) -> None:
        if self._before in self.table.watchers.changing:
            self.table.watchers.changing.remove(self._before)
        self._hand = self._end
        self._aside.clear()
        self._aside_nbytes = 0

    @property
    def nbytes(self) -> int:
        return self._aside_nbytes

    def validate(self) -> None:
        """Assert that it watches the table as long as rows are left."""
        assert (self._before in self.table.watchers.changing) or (self._hand >= self._end and not self._aside)
        assert self._aside_nbytes == sum([kept.nbytes for kept in self._aside])


class RowSnapshots:
    """The tables of a shard at the time this was made."""

    def __init__(
        self,
        tables: Sequence[RowTable],  # of the shard, in order
        # for each the save it builds upon: its updates then, and the ids removed since; None: it builds upon none
        since: Sequence[tuple[int, Array] | None] = (),
        first: int = 0,  # the number of the first piece
    ) -> None:
        bases = tuple(since) or (None,) * len(tables)
        #: Each table's state besides its rows, and whether the base is unusable: plain data.
        self.state: Mapping[str, Any] = {
            "tables": {
                table.spec.name: {**table.times._asdict(), "whole": base is None}
                for table, base in zip(tables, bases, strict=True)
            }
        }
        self._gone = [_NOTHING if base is None else base[1] for base in bases]
        self._snapshots = [
            RowSnapshot(table, None if base is None else base[0]) for table, base in zip(tables, bases, strict=True)
        ]
        self._turn = 0
        self._number = first
        self._in_hand: dict[int, int] = {}  # bytes, by the numbers of pieces

    @property
    def failed(self) -> MemoryError | None:
        return next((snapshot.failed for snapshot in self._snapshots if snapshot.failed is not None), None)

    @property
    def nbytes(self) -> int:
        return sum([snapshot.nbytes for snapshot in self._snapshots]) + sum(self._in_hand.values())

    def next(self) -> RowPiece | None:
        """Return rows that have not had their turn; None: all had, or it was given up.

        Raises
        ------
        MemoryError
            There is none to copy them; all is given up.
        """
        while self.failed is None and self._turn < len(self._snapshots):
            snapshot, gone = self._snapshots[self._turn], self._gone[self._turn]
            kept = snapshot.next()
            if kept is None and gone.size:
                kept = snapshot.table.kept(_NOTHING)
            if kept is None:
                self._turn += 1
                continue
            self._gone[self._turn] = _NOTHING
            piece = RowPiece(self._number, snapshot.table.spec.name, kept, gone)
            self._in_hand[piece.number] = piece.nbytes
            self._number += 1
            return piece
        return None

    def done(self, number: int) -> None:
        self._in_hand.pop(number, None)

    def release(self) -> None:
        for snapshot in self._snapshots:
            snapshot.release()
        self._turn = len(self._snapshots)
        self._in_hand.clear()

    def validate(self) -> None:
        for snapshot in self._snapshots:
            snapshot.validate()
