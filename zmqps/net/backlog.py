"""What gathers at a socket: bytes that a peer has yet to read, frames of a message that is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import zmq

from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.limits import MAX_ALL_BACKLOGS_NBYTES, WINDOW_NBYTES

#: Frames thrown away at a time, of a message that is none.
PORTION = 2048
#: Bytes sent to a peer from one message that tells when it has left to the next.
MARK_NBYTES = 1 << 20
#: Where memory is short, who has so much to read is shut.
MUCH_NBYTES = 2 << 20

#: A peer that has too much to read and has read nothing for so many seconds is shut.
STUCK_S = 10.0
#: Bytes queued between two looks at what waits for all peers.
LOOK_NBYTES = WINDOW_NBYTES
#: Who keeps to its window has no more to read, unless it has asked for one message that is larger.
FAIR_NBYTES = 2 * WINDOW_NBYTES
TOO_MUCH_IN_ALL = "more waits here to be read than there is room for, and it has most of it"

_DONTWAIT = int(zmq.DONTWAIT)


class Queued(Protocol):
    """Counts the bytes that are queued for any peer."""

    queued_nbytes: int


class Alone:
    """The total of a backlog that is the only one."""

    queued_nbytes = 0


class Backlog:
    """How many bytes wait in ZeroMQ for a peer to read them: no less, and until it is asked more."""

    __slots__ = ("_confirmed", "_marks", "all", "fresh", "nbytes", "shut", "stuck_since")

    def __init__(self, of_all: Queued | None = None) -> None:
        self.all = of_all or Alone()
        self.shut = False  # its connection is being ended, and what waits goes with it
        self.nbytes = 0
        self.fresh = 0  # of these since the last mark
        self.stuck_since: float | None = None
        self._confirmed = 0  # bytes of the connection, when that was noted last
        self._marks: list[tuple[zmq.MessageTracker, int]] = []

    def note(self, confirmed: int, now: float) -> None:
        """Take note of the bytes of the connection that have arrived: one large message leaves no mark on its way."""
        if confirmed >= self._confirmed + MARK_NBYTES:
            self._confirmed, self.stuck_since = confirmed, now

    def mark(self, mark: zmq.MessageTracker) -> None:
        """The last message that was queued tells when it has left, and all before it with it."""
        self._marks.append((mark, self.fresh))
        self.fresh = 0

    def waits(self) -> int:
        """Return how many bytes wait, without those that have left meanwhile."""
        waiting = [mark for mark in self._marks if not mark[0].done]
        if len(waiting) < len(self._marks):
            self.stuck_since = None
        self._marks = waiting
        self.nbytes = self.fresh + sum(nbytes for _, nbytes in waiting)
        return self.nbytes

    def is_unread(self, confirmed: int, now: float) -> bool:
        """Whether less than `MARK_NBYTES` of it was read for `STUCK_S`, as far as somebody has looked."""
        self.note(confirmed, now)
        if self.stuck_since is None:
            self.stuck_since = now
        return now >= self.stuck_since + STUCK_S

    def is_full(self, now: float, limit_nbytes: int) -> bool:
        """Whether there is more than a limit even without what has left meanwhile."""
        if self.waits() <= limit_nbytes:
            self.stuck_since = None
            return False
        if self.stuck_since is None:
            self.stuck_since = now
        return True


class Door(Protocol):
    """What is needed of `zmqps.net.door.Door` here."""

    def confirmed(self, peer: Peer) -> int:
        """Return how many bytes the host of a peer has confirmed."""

    def expel(self, peer: Peer, why: str) -> None:
        """End the connection of a peer."""


class Backlogs(dict[Peer, Backlog]):
    """Those of all peers that are known, and of ``b""``, which is one of all others; bounded in sum."""

    def __init__(self) -> None:
        super().__init__()
        self.queued_nbytes = 0  # since the last look
        self.add(b"")

    def add(self, peer: Peer) -> None:
        """Nothing waits for a peer, whose connection is new."""
        self[peer] = Backlog(self)

    def relieve(self, door: Door, now: float) -> None:
        """Where too much waits in all, shut who has most, until it is not: who reads and keeps to its window may stay.

        Every peer may have its window of answers, which mostly lie in the values and take no memory of their own. So
        many honest ones over a slow network may have more in all; they read.
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
    """Return whoever has most to read, if that is much."""
    nbytes, peer = max(((backlog.waits(), peer) for peer, backlog in backlogs.items() if peer), default=(0, b""))
    return peer if nbytes >= MUCH_NBYTES else None


def discard_frames(socket: zmq.Socket[bytes]) -> bool:
    """Throw away frames of the message that is there; return whether that was the last one."""
    for _ in range(PORTION):
        if not socket.recv(_DONTWAIT, copy=False).more:
            return True
    return False
