"""The rows of a table as they are at one moment, kept while updates go on, until they are written.

Nothing is copied when a snapshot is taken. Rows are copied when their turn has come, or before they change, whichever
is first; of no row that is done twice. So what it takes beside the table are the rows that were updated before their
turn, and a byte a row that tells which were copied.
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

#: Rows are handed out so many bytes at a time: copying them must not keep others waiting for long.
PIECE_NBYTES = 16 << 20
_NOTHING = np.empty(0, np.int64)


class RowPiece(NamedTuple):
    """Some rows of a snapshot; the arrays are nobody else's.

    ``gone`` are ids of rows that may be in what is built upon, and have made way for others since.
    """

    number: int  # the first one is that of the first table's first piece; they go on from there
    table: str  # its name
    kept: Kept
    gone: Array

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.kept.nbytes + self.gone.nbytes


class RowSnapshot:
    """A table as it was when this was made."""

    def __init__(
        self,
        table: RowTable,
        since: int | None = None,  # only rows that may have changed since then, by the table's updates; None: all
    ) -> None:
        self.table = table
        self.times = table.times
        self.failed: MemoryError | None = None  # there was no memory for what an update would have changed
        self._since = since
        store = table.store
        self._end, self._hand = store.end, 0  # rows up to the hand have had their turn
        self._copied = reserve(self._end, dtype=np.uint8)
        self._copied[store.free] = 1  # what they will have is no part of it
        self._aside: deque[Kept] = deque()
        self._aside_nbytes = 0
        table.watchers.changing.append(self._before)

    def _before(self, rows: Array) -> None:
        """Copy rows that are about to change; where there is no memory for it, give up: training goes on."""
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
        """Return those of some rows that have changed since what is built upon.

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
        """Assert that it watches the table as long as there is something left."""
        assert (self._before in self.table.watchers.changing) or (self._hand >= self._end and not self._aside)
        assert self._aside_nbytes == sum([kept.nbytes for kept in self._aside])


class RowSnapshots:
    """The tables of a shard as they were when this was made."""

    def __init__(
        self,
        tables: Sequence[RowTable],  # of the shard, in order
        # for each what was saved before and is built upon: its updates then, and which ids have made way for others
        # since; None: nothing is built upon
        since: Sequence[tuple[int, Array] | None] = (),
        first: int = 0,  # the number of the first piece
    ) -> None:
        bases = tuple(since) or (None,) * len(tables)
        #: What is kept of each table beside its rows, and whether what is built upon counts for nothing: plain data.
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
