"""What followers of a table are sent: rows changed since their last request, and ids of removed rows.

For followers only the ids of removed rows are kept (`GoneLog`). A follower sends its *cursor*: the shard's copy, and
the table's messages, updates, age of expiry and removed rows when its last scan began. A row belongs to the next scan
if its stamp is not older than that. So a change during a scan is in that scan or the next, perhaps in both, and is
never missed, although each answer examines only some places and updates continue between answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages.rows import CURSOR
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import ProtocolError

#: Places examined for one answer: about a millisecond, for which other messages wait.
LOOKED_AT = 1 << 20
_NOTHING = np.empty(0, np.int64)


class Told(NamedTuple):
    """The content of one answer."""

    places: Array
    gone: Array  # removed ids, or without a row before rows of this answer were made
    next: int  # where to continue; 0 at the end
    reset: bool = False  # whether the cursor is unknown: these are the first ones of all rows
    # the next cursor, in the first answer of a scan (`CURSOR`)
    cursor: tuple[int, ...] = (0,) * len(CURSOR)


def changes(table: RowTable, copy: int, start: int, most: int, since: Sequence[int], now: float) -> Told:
    """Return rows, from a place on, that may have changed since a cursor, and ids removed since.

    Parameters
    ----------
    table, copy
        The table, and the number of the shard's copy.
    start
        The place; at 0 a scan begins.
    most
        The most rows. 0: no row is examined, and the answer has only a cursor.
    since
        The cursor. One of another copy requests all rows; a scan of all continues with 0 updates and a lifetime of 0.
    now
        The time.

    Raises
    ------
    ProtocolError
        The cursor is malformed.
    """
    if len(since) != len(CURSOR):
        raise ProtocolError(f"a cursor has {len(CURSOR)} numbers, not {len(since)}")
    store, log = table.store, table.gone
    log.follow(now)
    cursor = (copy, table.version, table.steps, table.lifetime, log.end)
    of, version, steps, lifetime, number = since
    reset, gone = of != copy, _NOTHING
    if not reset and not start:
        known = log.since(number)
        reset, gone = known is None, _NOTHING if known is None else known
    everything = reset or (start > 0 and not steps and not lifetime)
    if reset:
        start = 0
    elif not start and (version, lifetime, number) == (table.version, table.lifetime, log.end):
        return Told(_NOTHING, _NOTHING, 0, cursor=cursor)
    if not most:
        return Told(_NOTHING, gone, 0, reset, cursor)
    start = min(start, store.end)
    stop = min(store.end, start + LOOKED_AT)
    ages = np.uint32(table.steps % (1 << 32)) - store.stamps[start:stop]
    live = store.live[start:stop] != 0
    has_expired = ages >= table.lifetime
    wanted = live & ~has_expired
    if not everything:
        wanted &= ages <= table.steps - steps
    places = start + np.flatnonzero(wanted)
    if places.size > most:
        places = places[:most]
        stop = int(places[-1]) + 1
    if not everything and has_expired.any():  # expired, although their memory was not needed yet; but soon
        late = live & has_expired & (ages < lifetime + table.steps - steps)
        gone = np.concatenate([gone, store.ids[start + np.flatnonzero(late[: stop - start])]])
    return Told(places, gone, stop if stop < store.end else 0, reset, cursor)
