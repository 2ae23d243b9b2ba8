"""A wire as a program, ``LEFT RIGHT SECONDS``: hand frames from one interface to the other, so much later.

For kernels without ``netem``. Frames of segmentation offload stay in one piece, with what says how to cut them
(``PACKET_VNET_HDR``), so that an interpreter can carry a gigabit a second each way.

With a fourth word, ``told``, commands come on standard input, a line each: ``delay SECONDS`` one way, ``loss SHARE``.
Each is answered with ``done``; where it ends, so does the wire. So that each frame is lost or not by itself, both
interfaces are to be without offloads.
"""

from __future__ import annotations

import collections
import random
import select
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
BUFFER_NBYTES, FRAME_NBYTES, BATCH = 64 << 20, (64 << 10) + 128, 64
#: Frames on their way in one direction: more than any wire here has.
MAX_FRAMES = 20_000
#: The kernel wakes a sleeper a little late: the rest of a short wait is spent looking.
LOOK_S = 60e-6


class Direction:
    """Frames from one interface to another, in the order in which they came."""

    def __init__(self, source: socket.socket, target: socket.socket, seed: int) -> None:
        self.source, self.target = source, target
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._chance = random.Random(seed)

    def take(self, delay_s: float, loss: float) -> None:
        """Take what has come, but for what is lost."""
        for _ in range(BATCH):
            try:
                frame = self.source.recv(FRAME_NBYTES)
            except BlockingIOError:
                return
            if (not loss or self._chance.random() >= loss) and len(self.waiting) < MAX_FRAMES:
                self.waiting.append((time.monotonic() + delay_s, frame))

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


def main(left: str, right: str, delay_s: float, *, told: bool) -> None:
    """Hand on frames until this process is ended, or has been told all there is to say."""
    one, other = opened(left), opened(right)
    ways, loss = (Direction(one, other, 1), Direction(other, one, 2)), 0.0
    while True:
        due = min((way.waiting[0][0] for way in ways if way.waiting), default=None)
        patience = None if due is None else max(0.0, due - time.monotonic() - LOOK_S)
        ready, _, _ = select.select([one, other, *[sys.stdin] * told], [], [], patience)
        if sys.stdin in ready:
            words = sys.stdin.readline().split()
            if not words:
                return
            value = float(words[1])
            delay_s, loss = (value, loss) if words[0] == "delay" else (delay_s, value)
            print("done", flush=True)
        for way in ways:
            if way.source in ready:
                way.take(delay_s, loss)
            way.give()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), told="told" in sys.argv[4:])
