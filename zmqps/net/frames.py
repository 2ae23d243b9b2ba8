"""Messages of ZeroMQ as frames: sent without copying what is large, and counted until they have left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import zmq

from zmqps.core.protocol.wire import MAX_FRAMES

#: Frames below this are copied into the message: cheaper than telling when they are free again.
COPY_NBYTES = 64 << 10
#: Frames thrown away at a time, of a message that is none.
PORTION = 2048
#: Bytes sent to a peer from one message that tells when it has left to the next.
MARK_NBYTES = 1 << 20

# plain integers: to combine the members of an enumeration costs more than the call that they are for
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


class Backlog:
    """How many bytes wait in ZeroMQ for a peer to read them: no less, and until it is asked more."""

    __slots__ = ("_marks", "fresh", "nbytes", "stuck_since")

    def __init__(self) -> None:
        self.nbytes = 0
        self.fresh = 0  # of these since the last mark
        self.stuck_since: float | None = None
        self._marks: list[tuple[zmq.MessageTracker, int]] = []

    def add(self, nbytes: int, mark: zmq.MessageTracker | None) -> None:
        """A message was queued; with a mark it tells when it has left, and all before it with it."""
        self.nbytes += nbytes
        self.fresh += nbytes
        if mark is not None:
            self._marks.append((mark, self.fresh))
            self.fresh = 0

    def is_full(self, now: float, limit_nbytes: int) -> bool:
        """Whether there is more than a limit even without what has left meanwhile."""
        waiting = [mark for mark in self._marks if not mark[0].done]
        if len(waiting) < len(self._marks):
            self.stuck_since = None
        self._marks = waiting
        self.nbytes = self.fresh + sum(nbytes for _, nbytes in waiting)
        if self.nbytes <= limit_nbytes:
            self.stuck_since = None
            return False
        if self.stuck_since is None:
            self.stuck_since = now
        return True


def send_frames(
    socket: zmq.Socket[bytes], frames: Sequence[Any], *, track: bool, backlog: Backlog | None = None
) -> list[zmq.Frame]:
    """Queue a message; return the frames that ZeroMQ goes on to read, if they are to be tracked.

    pyzmq's own `send_multipart` tracks the last frame only, and calls it done at once if it is a small one.
    """
    tracked = []
    last, total = len(frames) - 1, 0
    mark = backlog is not None and backlog.fresh > MARK_NBYTES
    for i, frame in enumerate(frames):
        flags = _MORE if i < last else _DONTWAIT
        nbytes = memoryview(frame).nbytes
        total += nbytes
        if nbytes < COPY_NBYTES and not (mark and i == last):
            socket.send(frame, flags)
            continue
        aliased = zmq.Frame(frame if nbytes >= COPY_NBYTES else bytes(frame), track=track or mark, copy=False)
        socket.send(aliased, flags, copy=False)
        if track or mark:
            tracked.append(aliased)
    if backlog is not None:
        backlog.add(total, zmq.MessageTracker(*tracked) if mark else None)
    return tracked


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message is there; as a call of ZeroMQ it also lets the next one be announced."""
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def receive_frames(socket: zmq.Socket[bytes]) -> list[memoryview] | None:
    """Return the frames of a message that is there, or of its rest; None if there are more than any message has."""
    frames = []
    for _ in range(1 + MAX_FRAMES):
        frame = socket.recv(_DONTWAIT, copy=False)
        frames.append(frame.buffer)
        if not frame.more:
            return frames
    return None


def discard_frames(socket: zmq.Socket[bytes]) -> bool:
    """Throw away frames of the message that is there; return whether that was the last one."""
    for _ in range(PORTION):
        if not socket.recv(_DONTWAIT, copy=False).more:
            return True
    return False
