"""Records of tables for backups: rows in their present state, and ids of removed rows.

Not gradients: only the leader decides which rows are evicted, expire, or are admitted. So a record may be repeated, and
one with the present state of rows may come before or after others that fill the backup.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import PushRows
from zmqps.core.protocol.messages.replication import NOBODY, ROWS
from zmqps.core.server.ledger import Result
from zmqps.core.server.parts import Noted
from zmqps.core.server.replicas.records import Listener, ReplicationRecord, nbytes_beside, record
from zmqps.core.server.tables.arrays import ID_DTYPE, read_arrays
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import ProtocolError
from zmqps.rows.kept import Kept

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: The start of a record's payload: the number of rows, and of removed ids; the table's updates, and those before which
#: rows have expired by seconds; 1 in the last of the records that fill a backup with the table.
HEAD = ("rows", "gone", "steps", "expired_before", "is_last")
#: The most bytes of a frame: some transports carry no more than 64 MiB.
FRAME_NBYTES = 32 << 20
#: Bytes of rows in a piece that fills a backup, about: as in a slice of dense parameters.
PIECE_NBYTES = 4 << 20
_HEAD_DTYPE = np.dtype("<u8")
_NOTHING = np.empty(0, np.int64)


class RowsPush(NamedTuple):
    """The push that changed rows, and its ledger entry."""

    origin: bytes
    seq: int
    result: Result


class RowsNow(NamedTuple):
    """The content of a record about a table."""

    kept: Kept
    gone: Array
    steps: int
    expired_before: int
    is_last: bool


def rows_now(
    table: RowTable, rows: Array, gone: Array = _NOTHING, pushed: RowsPush | None = None, *, step: int = 0,
    is_last: bool = False,
) -> ReplicationRecord:  # fmt: skip
    """Return the record of some rows of a table in their present state, after this many steps of the shard."""
    kept = table.kept(rows)
    head = np.array([rows.size, gone.size, table.steps, table.expired_before, is_last], _HEAD_DTYPE)
    part = table.slice.index, table.version, ()
    origin, seq, (versions, staleness) = (NOBODY, 0, ((), ())) if pushed is None else pushed
    payload = [frame for array in (head, gone, *kept.arrays) for frame in _frames(array)]
    return record(
        ROWS, origin=origin, seq=seq, step=step, versions=versions, staleness=staleness, parts=(part,), payload=payload
    )


def _frames(array: Array) -> Iterator[Array]:
    most = FRAME_NBYTES // array.itemsize
    for start in range(0, array.size, most):
        yield array[start : start + most]


def read_rows(table: RowTable, payload: Sequence[Buffer]) -> RowsNow:
    """Return the content of a record about a table.

    Raises
    ------
    ProtocolError
        The payload is not of that form.
    """
    data = [memoryview(buffer).cast("B") for buffer in payload]
    if not data or data[0].nbytes < 8 * len(HEAD):
        raise ProtocolError(f"a record of rows begins with {len(HEAD)} numbers")
    head = np.frombuffer(data[0][: 8 * len(HEAD)], _HEAD_DTYPE).tolist()
    data[0] = data[0][8 * len(HEAD) :]
    number, num_gone, steps, expired_before, is_last = head
    layout = table.store.layout
    gone, *arrays = read_arrays(data, [(num_gone, ID_DTYPE), *layout.runs(number)])
    return RowsNow(layout.kept(arrays), gone, steps, expired_before, bool(is_last))


def adopt(table: RowTable, version: int, payload: Sequence[Buffer]) -> bool:
    """Set rows from a record; return whether the table is complete with them; raises as `RowTable.follow` does."""
    found = read_rows(table, payload)
    table.follow(found.kept, found.gone, version, found.steps, found.expired_before)
    return found.is_last


def filling(table: RowTable, start: int, step: int) -> tuple[ReplicationRecord, int]:
    """Return the record of rows from a place on, after this many synchronous steps, and the next place; 0: the end.

    Later rows are sent as they change.
    """
    store = table.store
    stop = min(store.end, start + max(1, PIECE_NBYTES // store.row_nbytes))
    rows = np.arange(start, stop)
    is_last = stop == store.end
    return rows_now(table, rows[store.live[rows] != 0], step=step, is_last=is_last), 0 if is_last else stop


class _Watched:
    """A table, and the ids of its changed rows."""

    def __init__(self, table: RowTable) -> None:
        self.table = table
        self.ids: list[Array] = []
        table.watchers.changing.append(self.note)

    def note(self, changed: Array) -> None:
        self.ids.append(self.table.store.ids[changed])

    def stop(self) -> None:
        if self.note in self.table.watchers.changing:
            self.table.watchers.changing.remove(self.note)
        self.ids.clear()


class RowNews:
    """Sends the changes of a shard's tables."""

    def __init__(
        self,
        tables: Sequence[RowTable],  # they are watched until `stop`
        listener: Listener,  # takes the records
    ) -> None:
        self._watched = {table.slice.index: _Watched(table) for table in tables}
        self._listener = listener
        self._pushed: RowsPush | None = None
        self._index = 0  # of the last table

    @property
    def is_empty(self) -> bool:
        return self._pushed is None and not any(watched.ids for watched in self._watched.values())

    def entrust(self, message: PushRows, origin: bytes, note: Noted) -> tuple[Sequence[Buffer], Noted]:
        """Prepare to send the rows that a push is about to change, as `SliceNews`; earlier changes are sent first."""
        self.tell()
        nbytes = sum([memoryview(buffer).nbytes for buffer in message.payload])
        if (watched := self._watched.get(message.index)) is not None:  # else the push is refused
            nbytes = max(nbytes, message.count * watched.table.store.row_nbytes)
        self._listener.check(nbytes + 2 * nbytes_beside(message.parts))

        def noted(result: Result) -> None:
            note(result)
            self.note(message.index, RowsPush(origin, message.seq, result))
            self.tell()

        return message.payload, noted

    def note(self, index: int, pushed: RowsPush) -> None:
        """A push was applied, to the table of this number; earlier ones have been sent."""
        assert self._pushed is None
        self._index, self._pushed = index, pushed

    def tell(self) -> None:
        """Queue a record of each table with changes; one that was not taken is repeated."""
        for index, watched in self._watched.items():
            pushed = self._pushed if index == self._index else None
            table, ids = watched.table, watched.ids
            if not ids and pushed is None:
                continue
            changed = ids[0] if len(ids) == 1 else np.unique(np.concatenate([_NOTHING, *ids]))
            rows = table.store.find(changed)
            there = rows >= 0
            self._listener.queue(rows_now(table, rows[there], changed[~there], pushed))
            ids.clear()
            if pushed is not None:
                self._pushed = None

    def stop(self) -> None:
        for watched in self._watched.values():
            watched.stop()
        self._pushed = None
