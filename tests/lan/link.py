"""A wire as a program: hand frames from one interface to another, later or not at all.

Kernels without ``netem`` can delay nothing; this can, at the rates that tests need (about 100 Mbit/s of full frames).
Commands come on standard input, a line each: ``delay SECONDS`` one way, ``loss SHARE``. Each is answered with ``done``.
"""

from __future__ import annotations

import collections
import random
import select
import socket
import sys
import time

ETH_P_ALL = 3
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
#: Frames on their way in one direction; more would be a wire of a hundred megabytes.
MAX_FRAMES = 20_000
BUFFER = 8 << 20
BATCH = 64


class Direction:
    """Frames from one interface to another, in the order in which they came."""

    def __init__(self, source: socket.socket, target: socket.socket, seed: int) -> None:
        self.source, self.target = source, target
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self.chance = random.Random(seed)

    def take(self, delay: float, loss: float) -> None:
        for _ in range(BATCH):
            try:
                frame = self.source.recv(65536)
            except BlockingIOError:
                return
            if self.chance.random() >= loss and len(self.waiting) < MAX_FRAMES:
                self.waiting.append((time.monotonic() + delay, frame))

    def give(self) -> None:
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
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        end.setsockopt(socket.SOL_SOCKET, option + 25 if option == socket.SO_RCVBUF else option, BUFFER)
    end.setblocking(False)
    end.bind((interface, ETH_P_ALL))
    return end


def main(left: str, right: str) -> None:
    one, other = opened(left), opened(right)
    there, back = Direction(one, other, 1), Direction(other, one, 2)
    delay = loss = 0.0
    while True:
        due = min((d.waiting[0][0] for d in (there, back) if d.waiting), default=None)
        patience = None if due is None else max(0.0, due - time.monotonic())
        ready, _, _ = select.select([one, other, sys.stdin], [], [], patience)
        if sys.stdin in ready:
            words = sys.stdin.readline().split()
            if not words:
                return
            value = float(words[1])
            delay, loss = (value, loss) if words[0] == "delay" else (delay, value)
            print("done", flush=True)
        for direction in (there, back):
            if direction.source in ready:
                direction.take(delay, loss)
            direction.give()


if __name__ == "__main__":
    main(*sys.argv[1:])
