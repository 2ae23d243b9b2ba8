"""What pushes and pulls, of slices or of rows, ask of a shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.messages import Pull, PullRows, Push, PushRows, ScanRows
from zmqps.core.server.clients import Client
from zmqps.core.server.dense.shard import Shard
from zmqps.core.server.ledger import Result
from zmqps.core.server.tables.rows import Rows
from zmqps.errors import SliceRangeError

AnyPush: TypeAlias = Push | PushRows
AnyPull: TypeAlias = Pull | PullRows | ScanRows
PUSHES, PULLS = (Push, PushRows), (Pull, PullRows, ScanRows)

#: For each part its pieces, its version, and who still reads it.
Found: TypeAlias = tuple[list[list[Array]], tuple[int, ...], list[list[Reader]]]


def push_rows(
    shard: Shard, client: Client, message: PushRows, note: Callable[[Result], None] | None, now: float
) -> Result:
    """Apply what a push of rows brings, or keep it for its step; errors as those of `Rows.push` and `Rows.collect`."""
    rows = rows_of(shard)
    rows.tick(now)
    if shard.steps is None:
        return rows.push(message, client.name, note)
    staleness = shard.steps.staleness(message.step)
    return rows.collect(message, client.hello.incarnation, staleness, client.name, note)


def is_available(shard: Shard, message: AnyPull) -> bool:
    """Whether a pull can be answered now; raises as `Shard.available` does."""
    if isinstance(message, Pull):
        return shard.available(message.parts, message.version, exact=bool(message.exact))
    return rows_of(shard).table(message.index).version >= message.version


def find_rows(shard: Shard, message: PushRows | PullRows | ScanRows, now: float) -> Found:
    """Return the rows that a message asks for."""
    rows = rows_of(shard)
    rows.tick(now)
    if isinstance(message, ScanRows):
        return rows.scan(message, now)
    return rows.pull(message.index, rows.wanted(message))


def rows_of(shard: Shard) -> Rows:
    """Return a shard's tables.

    Raises
    ------
    SliceRangeError
        It has none.
    """
    if shard.rows is None:
        raise SliceRangeError(f"shard {shard.index} has no table")
    return shard.rows
