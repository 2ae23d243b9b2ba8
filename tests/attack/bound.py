"""The most that a server holds, from the limits in the code; docs/security.md says the same in words."""

from __future__ import annotations

from zmqps.core.coordinator.jobs import MAX_JOBS
from zmqps.core.protocol.message import MAX_ALL_BACKLOGS_NBYTES, MAX_BACKLOG_NBYTES, OPEN_STEPS, PUSH_WINDOW
from zmqps.core.protocol.wire import MAX_DATA_HEADER_NBYTES, MAX_FRAME_NBYTES, MAX_GROWTH, MAX_STRANGE_HEADER_NBYTES
from zmqps.core.server.clients import MAX_BARRED, MAX_CLIENTS
from zmqps.core.server.dense.aggregate import PARTS_NBYTES, SPARE_GRADIENTS
from zmqps.core.server.ledger import TABLE_NBYTES
from zmqps.core.server.parked import MAX_ALL_PARKED_NBYTES, MAX_PARKED_NBYTES
from zmqps.core.server.replicas.stream import MAX_UNCONFIRMED_NBYTES
from zmqps.net.backlog import MUCH_NBYTES
from zmqps.net.door import ALLOWANCE_NBYTES, ALLOWANCE_NBYTES_S, MAX_STRANGERS, MAX_UNREAD_NBYTES, PATIENCE_S
from zmqps.net.lane.shm import RING_NBYTES

#: Of a push that is remembered, and of a client or one that is barred.
RESULT_NBYTES, CLIENT_NBYTES = 400, 2 << 10
#: ZeroMQ's own buffers of a connection: batches and the ends of its pipes.
CONNECTION_NBYTES = 32 << 10


def member_nbytes() -> int:
    """Return the most that a server holds for one connection of a member.

    A frame that it is sending, its lane, its ledger; pulls that wait are in `constant_nbytes`, and what it has not read
    is in `unread_nbytes` but for so little that nobody is shut for it.
    """
    return MUCH_NBYTES + 2 * MAX_FRAME_NBYTES + RING_NBYTES + PUSH_WINDOW * RESULT_NBYTES + CONNECTION_NBYTES


def staged(aggregate: int = 1) -> tuple[int, int]:
    """Return the most gradients that one worker of a synchronous job may stage in a shard, and the bytes beside."""
    return OPEN_STEPS * (aggregate + SPARE_GRADIENTS), OPEN_STEPS * PARTS_NBYTES


def unread_nbytes(members: int = MAX_CLIENTS) -> int:
    """Return the most that it holds because so many members have not read it, of whom none reads in its window."""
    return min(members * (MAX_BACKLOG_NBYTES - MUCH_NBYTES), MAX_ALL_BACKLOGS_NBYTES)


def strangers_nbytes(number: int = MAX_STRANGERS) -> int:
    """Return the most that it holds for so many connections on which nobody was welcomed."""
    each = ALLOWANCE_NBYTES + int(PATIENCE_S * ALLOWANCE_NBYTES_S) + MAX_STRANGE_HEADER_NBYTES + CONNECTION_NBYTES
    return number * each + 2 * MAX_UNREAD_NBYTES


def unconfirmed_nbytes(largest_push: int) -> int:
    """Return the most that it holds because its backups have not confirmed it, where shards have any."""
    return MAX_UNCONFIRMED_NBYTES + largest_push


def constant_nbytes() -> int:
    """Return the most that it holds for all of them, and while it decodes the largest header of a request."""
    assert MAX_PARKED_NBYTES <= MAX_ALL_PARKED_NBYTES
    tables = (MAX_CLIENTS + MAX_BARRED) * CLIENT_NBYTES + MAX_JOBS * TABLE_NBYTES
    return MAX_ALL_PARKED_NBYTES + tables + MAX_GROWTH * MAX_DATA_HEADER_NBYTES


def bound(started: int, arenas: int, members: int, strangers: int) -> int:
    """Return the most that a server holds that took ``started`` bytes when it was idle."""
    of_members = members * member_nbytes() + unread_nbytes(members)
    return started + arenas + of_members + strangers_nbytes(strangers) + constant_nbytes()
