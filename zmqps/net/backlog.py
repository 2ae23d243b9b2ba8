"""What gathers at a socket: bytes that a peer has yet to read, frames of a message that is none."""

from __future__ import annotations

from collections.abc import Mapping

import zmq

from zmqps.core.protocol.events import Peer

#: Frames thrown away at a time, of a message that is none.
PORTION = 2048
#: Bytes sent to a peer from one message that tells when it has left to the next.
MARK_NBYTES = 1 << 20
#: Where memory is short, who has so much to read is shut.
MUCH_NBYTES = 2 << 20

_DONTWAIT = int(zmq.DONTWAIT)


class Backlog:
    """How many bytes wait in ZeroMQ for a peer to read them: no less, and until it is asked more."""

    __slots__ = ("_confirmed", "_marks", "fresh", "nbytes", "stuck_since")

    def __init__(self) -> None:
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

    def is_full(self, now: float, limit_nbytes: int) -> bool:
        """Whether there is more than a limit even without what has left meanwhile."""
        if self.waits() <= limit_nbytes:
            self.stuck_since = None
            return False
        if self.stuck_since is None:
            self.stuck_since = now
        return True


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
