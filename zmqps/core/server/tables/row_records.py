"""What backups are told of tables: rows as they are, and ids whose rows have gone.

Not gradients: which rows make way, expire, or are admitted, the leader alone decides. So a record may come twice, and
one that says how rows are now may come before or after others that the backup has yet to be filled with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.messages import Replicate
from zmqps.core.protocol.messages.replication import NOBODY, ROWS
from zmqps.core.server.ledger import Result
from zmqps.core.server.replicas.records import ReplicationRecord
from zmqps.core.server.tables.rows import Rows, read_arrays
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import ProtocolError
from zmqps.rows.kept import Kept

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: What the payload of a record begins with: how many rows, and how many ids that have gone; the table's updates, and
#: those before which rows have expired by seconds; 1 in the last record of those that fill a backup with the table.
HEAD = ("rows", "gone", "steps", "expired_before", "is_last")
#: Bytes of a frame: some may carry no more than 64 MiB.
FRAME_NBYTES = 32 << 20
_HEAD_DTYPE, _ID_DTYPE = np.dtype("<u8"), np.dtype("<i8")
_NOTHING = np.empty(0, np.int64)


class RowsPush(NamedTuple):
    """By whose push rows have changed, and what the ledger remembers of it."""

    origin: bytes
    seq: int
    result: Result


class RowsNow(NamedTuple):
    """What a record says of a table."""

    kept: Kept
    gone: Array
    steps: int
    expired_before: int
    is_last: bool


def rows_now(
    table: RowTable, rows: Array, gone: Array = _NOTHING, pushed: RowsPush | None = None, *, step: int = 0,
    is_last: bool = False,
) -> ReplicationRecord:  # fmt: skip
    """Return the record of some rows of a table as they are, after so many synchronous steps of the shard."""
    kept = table.kept(rows)
    head = np.array([rows.size, gone.size, table.steps, table.expired_before, is_last], _HEAD_DTYPE)
    part = table.slice.index, table.version, ()
    origin, seq, (versions, staleness) = (NOBODY, 0, ((), ())) if pushed is None else pushed
    payload = [frame for array in (head, gone, *kept.arrays) for frame in _frames(array)]
    return ReplicationRecord(Replicate(0, 0, ROWS, origin, seq, step, RAW, versions, staleness, (), (part,), payload))


def _frames(array: Array) -> Iterator[Array]:
    most = FRAME_NBYTES // array.itemsize
    for start in range(0, array.size, most):
        yield array[start : start + most]


def read_rows(table: RowTable, payload: Sequence[Buffer]) -> RowsNow:
    """Return what a record says of a table.

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
    gone, *arrays = read_arrays(data, [(num_gone, _ID_DTYPE), *layout.runs(number)])
    return RowsNow(layout.kept(arrays), gone, steps, expired_before, bool(is_last))


class RowNews:
    """What has changed in the tables of a shard, and its backups have not been told.

    Parameters
    ----------
    rows
        The tables; they are watched until `stop`.
    """

    def __init__(self, rows: Rows) -> None:
        self._watched = [(table, list[Array]()) for table in rows.tables]
        self._watchers = []
        for table, ids in self._watched:

            def watch(changed: Array, table: RowTable = table, ids: list[Array] = ids) -> None:
                ids.append(table.store.ids[changed])

            table.watchers.append(watch)
            self._watchers.append(watch)
        self._pushed: RowsPush | None = None
        self._index = 0  # of the table that it was about

    @property
    def is_empty(self) -> bool:
        """Whether they have been told all."""
        return self._pushed is None and not any(ids for _, ids in self._watched)

    def note(self, index: int, pushed: RowsPush) -> None:
        """A push was applied, to the table of this number; those before have been told."""
        assert self._pushed is None
        self._index, self._pushed = index, pushed

    def tell(self) -> Iterator[ReplicationRecord]:
        """Yield a record of each table of which there is something to tell; what was not taken comes again."""
        for table, ids in self._watched:
            pushed = self._pushed if table.slice.index == self._index else None
            if not ids and pushed is None:
                continue
            changed = ids[0] if len(ids) == 1 else np.unique(np.concatenate([_NOTHING, *ids]))
            rows = table.store.find(changed)
            there = rows >= 0
            yield rows_now(table, rows[there], changed[~there], pushed)
            ids.clear()
            if pushed is not None:
                self._pushed = None

    def stop(self) -> None:
        """Watch no more."""
        for (table, ids), watcher in zip(self._watched, self._watchers, strict=True):
            if watcher in table.watchers:
                table.watchers.remove(watcher)
            ids.clear()
        self._pushed = None
