"""A client that speaks ZeroMQ's wire protocol (ZMTP 3.1, NULL mechanism) by itself, so that it need not keep to it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Self

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
PATIENCE = 20.0


def frame(body: bytes, *, more: bool = False) -> bytes:
    """Return a frame."""
    return header(len(body), more=more) + body


def header(nbytes: int, *, more: bool = False) -> bytes:
    """Return what stands before a frame's bytes."""
    return struct.pack("BB", int(more), nbytes) if nbytes < 256 else struct.pack(">BQ", 2 | int(more), nbytes)


class RawClient:
    """A connection to a ROUTER that listens at ``tcp://127.0.0.1:PORT`` or ``ipc://@NAME``."""

    def __init__(self, endpoint: str) -> None:
        scheme, _, rest = endpoint.partition("://")
        if scheme == "tcp":
            self.socket = socket.create_connection(("127.0.0.1", int(rest.rpartition(":")[2])), PATIENCE)
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect("\0" + rest[1:])
        self.socket.settimeout(PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def shake_hands(self, identity: bytes) -> Self:
        """Greet, and say what socket this is."""
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
        ready += b"\x08Identity" + struct.pack(">I", len(identity)) + identity
        self.socket.sendall(GREETING)
        self.read(64)
        self.socket.sendall(b"\x04" + struct.pack("B", len(ready)) + ready)
        self.read(self.read(2)[1])
        return self

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message."""
        *first, last = frames
        self.socket.sendall(b"".join([*(frame(body, more=True) for body in first), frame(last)]))

    def receive(self) -> list[bytes]:
        """Return the next message."""
        frames, more = [], True
        while more:
            flags = self.read(1)[0]
            more = bool(flags & 1)
            frames.append(self.read(int.from_bytes(self.read(8 if flags & 2 else 1), "big")))
        return frames

    def read(self, nbytes: int) -> bytes:
        """Return exactly so many bytes."""
        got = b""
        while len(got) < nbytes:
            piece = self.socket.recv(nbytes - len(got))
            if not piece:
                raise EOFError
            got += piece
        return got

    def is_shut(self) -> bool:
        """Wait for the other side to end the connection, and throw away what it says before."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True
