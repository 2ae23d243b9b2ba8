"""A ZMTP 3.x client on a plain socket: it says what no library would, frame by frame."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Self
from urllib.parse import urlsplit

GREETING = b"\xff" + bytes(8) + b"\x7f"
#: The greeting of version 3.0 with the mechanism that proves nothing.
NULL = GREETING + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND = 1, 2, 4


def ready(identity: bytes = b"") -> bytes:
    """Return the command that ends the handshake of a DEALER with a routing id."""
    properties = b"\x05READY"
    for name, value in ((b"Socket-Type", b"DEALER"), (b"Identity", identity)):
        properties += bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
    return bytes([COMMAND, len(properties)]) + properties


def frame(body: bytes, *, more: bool = False, size: int | None = None) -> bytes:
    """Return a frame as it travels; ``size`` is what it claims to hold where that is not the truth."""
    size = len(body) if size is None else size
    if size < 256:
        return bytes([MORE * more, size]) + body
    return bytes([LONG | MORE * more]) + size.to_bytes(8, "big") + body


def message(frames: Sequence[bytes]) -> bytes:
    """Return a whole message as it travels."""
    return b"".join(frame(body, more=i < len(frames) - 1) for i, body in enumerate(frames))


def connect(endpoint: str, timeout: float = 10.0) -> socket.socket:
    """Return a plain socket to an endpoint, ``tcp://`` or ``ipc://`` (``ipc://@`` is the abstract namespace)."""
    scheme, _, path = endpoint.partition("://")
    if scheme == "ipc":
        plain = socket.socket(socket.AF_UNIX)
        plain.settimeout(timeout)
        try:
            plain.connect("\0" + path[1:] if path.startswith("@") else path)
        except OSError:
            plain.close()
            raise
        return plain
    parts = urlsplit(endpoint)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port), timeout)


def receive(plain: socket.socket, size: int) -> bytes:
    """Return so many bytes, or what there was before the end."""
    received = b""
    while len(received) < size and (chunk := plain.recv(size - len(received))):
        received += chunk
    return received


class RawPeer:
    """A connection over which anything may be said, before and after a handshake; a context manager.

    Parameters
    ----------
    endpoint
        Where to.
    timeout
        Seconds that each send and receive may take.
    """

    def __init__(self, endpoint: str, timeout: float = 10.0) -> None:
        self._timeout = timeout
        self.socket = connect(endpoint, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shake_hands(self, identity: bytes = b"") -> Self:
        """Greet, and say what socket this is, and its routing id; frames may follow, of whatever kind and order."""
        try:
            self.socket.sendall(NULL)
            receive(self.socket, len(NULL))
            self.socket.sendall(ready(identity))
            kind, size = receive(self.socket, 2)
            assert kind == COMMAND
            receive(self.socket, size)
        except BaseException:
            self.socket.close()
            raise
        return self

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self) -> list[bytes]:
        """Return the frames of the next message."""
        frames = []
        while True:
            flags = receive(self.socket, 1)[0]
            size = int.from_bytes(receive(self.socket, 8 if flags & LONG else 1), "big")
            body = receive(self.socket, size)
            if flags & COMMAND:
                continue
            frames.append(body)
            if not flags & MORE:
                return frames

    def is_closed(self) -> bool:
        """Whether the other end has closed the connection; what it has said is skipped."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(self._timeout)

    def is_shut(self) -> bool:
        """Wait for the other end to close the connection; what it says before is skipped."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Vanish without a word."""
        self.socket.close()
