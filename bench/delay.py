"""A wire as a program, ``LEFT RIGHT SECONDS``: hand frames from one interface to the other, so much later.

For kernels without ``netem``. Frames of segmentation offload stay in one piece, with what says how to cut them
(``PACKET_VNET_HDR``), so that an interpreter can carry a gigabit a second each way.
"""

from __future__ import annotations

import collections
import select
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
BUFFER_NBYTES, FRAME_NBYTES, BATCH = 64 << 20, (64 << 10) + 128, 64
#: The kernel wakes who sleeps a little late: the rest of a short wait is spent looking.
LOOK_S = 60e-6


class Direction:
    """Frames from one interface to another, in the order in which they came."""

    def __init__(self, source: socket.socket, target: socket.socket, delay_s: float) -> None:
        self.source, self.target, self.delay_s = source, target, delay_s
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self) -> None:
        """Take what has come."""
        for _ in range(BATCH):
            try:
                frame = self.source.recv(FRAME_NBYTES)
            except BlockingIOError:
                return
            self.waiting.append((time.monotonic() + self.delay_s, frame))

    def give(self) -> None:
        """Hand on what is due."""
        now = time.monotonic()
        while self.waiting and self.waiting[0][0] <= now:
            try:
                self.target.send(self.waiting[0][1])
            except BlockingIOError:
                return
            except OSError:
                pass  # the interface is down: the frame is lost, as on a wire
            self.waiting.popleft()


def opened(interface: str) -> socket.socket:
    """Return a socket for all frames of an interface."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    for option in (SO_RCVBUFFORCE, SO_SNDBUFFORCE):
        try:
            end.setsockopt(socket.SOL_SOCKET, option, BUFFER_NBYTES)
        except PermissionError:  # root of a user namespace only
            usual = socket.SO_RCVBUF if option == SO_RCVBUFFORCE else socket.SO_SNDBUF
            end.setsockopt(socket.SOL_SOCKET, usual, BUFFER_NBYTES)
    end.setblocking(False)
    end.bind((interface, ETH_P_ALL))
    return end


def main(left: str, right: str, delay_s: float) -> None:
    """Hand on frames until this process is ended."""
    one, other = opened(left), opened(right)
    ways = Direction(one, other, delay_s), Direction(other, one, delay_s)
    while True:
        due = min((way.waiting[0][0] for way in ways if way.waiting), default=None)
        patience = None if due is None else max(0.0, due - time.monotonic() - LOOK_S)
        ready, _, _ = select.select([one, other], [], [], patience)
        for way in ways:
            if way.source in ready:
                way.take()
            way.give()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
