"""What accumulates at a socket: bytes that a peer has not read yet, and frames of an oversized message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import zmq

from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.message import MAX_ALL_BACKLOGS_NBYTES, WINDOW_NBYTES

#: Frames of an oversized message discarded at a time.
PORTION = 2048
#: Bytes sent to a peer between two messages whose sending is tracked.
MARK_NBYTES = 1 << 20
#: When memory is short, a peer with this much to read is shut.
MUCH_NBYTES = 2 << 20

#: A peer that has too much to read and has read nothing for this many seconds is shut.
STUCK_S = 10.0
#: Bytes queued between two checks of what waits for all peers.
LOOK_NBYTES = WINDOW_NBYTES
#: A peer within its window has no more to read, unless it has requested one larger message.
FAIR_NBYTES = 2 * WINDOW_NBYTES
TOO_MUCH_IN_ALL = "more waits here to be read than there is room for, and it has most of it"

_DONTWAIT = int(zmq.DONTWAIT)


class Queued(Protocol):
    """Counts the bytes queued for all peers."""

    queued_nbytes: int


class Alone:
    """The total for a single backlog."""

    queued_nbytes = 0


class Backlog:
    """How many bytes wait in ZeroMQ for a peer to read them: never too few, but too many until it is checked."""

    __slots__ = ("_confirmed", "_marks", "all", "fresh", "nbytes", "shut", "stuck_since")

    def __init__(self, of_all: Queued | None = None) -> None:
        self.all = of_all or Alone()
        self.shut = False  # its connection is being closed, and its queue is dropped with it
        self.nbytes = 0
        self.fresh = 0  # of these since the last mark
        self.stuck_since: float | None = None
        self._confirmed = 0  # confirmed bytes of the connection, at the last check
        self._marks: list[tuple[zmq.MessageTracker, int]] = []

    def note(self, confirmed: int, now: float) -> None:
        """Note the bytes of the connection that have arrived: one large message leaves no mark on its way."""
        if confirmed >= self._confirmed + MARK_NBYTES:
            self._confirmed, self.stuck_since = confirmed, now

    def mark(self, mark: zmq.MessageTracker) -> None:
        """Track the last queued message: when it has been sent, so have all before it."""
        self._marks.append((mark, self.fresh))
        self.fresh = 0

    def waits(self) -> int:
        """Return how many bytes wait, without those sent meanwhile."""
        waiting = [mark for mark in self._marks if not mark[0].done]
        if len(waiting) < len(self._marks):
            self.stuck_since = None
        self._marks = waiting
        self.nbytes = self.fresh + sum(nbytes for _, nbytes in waiting)
        return self.nbytes

    def is_unread(self, confirmed: int, now: float) -> bool:
        """Whether less than `MARK_NBYTES` was read for `STUCK_S`, as of the last check."""
        self.note(confirmed, now)
        if self.stuck_since is None:
            self.stuck_since = now
        return now >= self.stuck_since + STUCK_S

    def is_full(self, now: float, limit_nbytes: int) -> bool:
        """Whether more than a limit waits, even without what was sent meanwhile."""
        if self.waits() <= limit_nbytes:
            self.stuck_since = None
            return False
        if self.stuck_since is None:
            self.stuck_since = now
        return True


class Door(Protocol):
    """What this module requires of `zmqps.net.door.Door`."""

    def confirmed(self, peer: Peer) -> int:
        """Return how many bytes the host of a peer has confirmed."""

    def expel(self, peer: Peer, why: str) -> None:
        """End the connection of a peer."""


class Backlogs(dict[Peer, Backlog]):
    """The backlogs of all known peers, and of ``b""`` for all others; bounded in sum."""

    def __init__(self) -> None:
        super().__init__()
        self.queued_nbytes = 0  # since the last check
        self.add(b"")

    def add(self, peer: Peer) -> None:
        """Reset the backlog of a peer whose connection is new."""
        self[peer] = Backlog(self)

    def relieve(self, door: Door, now: float) -> None:
        """If too much waits in total, shut the largest backlogs until it fits; a peer within its window stays.

        Every peer may have its window of answers, which are mostly views of the values and take no memory. Many
        honest peers on a slow network may exceed the total together; they read.
        """
        self.queued_nbytes = 0
        waiting = {peer: b.waits() for peer, b in self.items() if peer and not b.shut}
        excess = sum(waiting.values()) - (MAX_ALL_BACKLOGS_NBYTES - LOOK_NBYTES)
        if excess <= 0:
            return
        for peer in sorted(waiting, key=waiting.__getitem__, reverse=True):
            backlog, nbytes = self[peer], waiting[peer]
            if excess <= 0:
                return
            unread = nbytes >= MUCH_NBYTES and backlog.is_unread(door.confirmed(peer), now)
            if unread or nbytes > FAIR_NBYTES:
                backlog.shut = True
                door.expel(peer, TOO_MUCH_IN_ALL)
                excess -= nbytes


def most_waits_for(backlogs: Mapping[Peer, Backlog]) -> Peer | None:
    """Return the peer with the most to read, if that is much."""
    nbytes, peer = max(((backlog.waits(), peer) for peer, backlog in backlogs.items() if peer), default=(0, b""))
    return peer if nbytes >= MUCH_NBYTES else None


def discard_frames(socket: zmq.Socket[bytes]) -> bool:
    """Discard frames of the current message; return whether that was the last one."""
    for _ in range(PORTION):
        if not socket.recv(_DONTWAIT, copy=False).more:
            return True
    return False
