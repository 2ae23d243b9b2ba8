"""What the kernel knows of connections and descriptors, by ZeroMQ's descriptor number."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import socket
import struct
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from zmqps.core.protocol.endpoints import ip_of, is_loopback

#: Descriptors are scarce if fewer than this are left, or an eighth of the limit.
RESERVE = 32
#: ZeroMQ greets new connections in a thread that does nothing else.
HEAR_S = 0.1
#: An address of no family: "connecting" to it ends a connection at once (connect(2)).
_NOBODY = bytes(16)
#: The kernel also forgets a closed connection, and its unsent data.
_AT_ONCE = struct.pack("ii", 1, 0)
_libc = ctypes.CDLL(None)
# in Linux's `struct tcp_info`: retransmissions without success; milliseconds since the last confirmation
_REPEATS = struct.Struct("=2xBB52xI")
_BYTES_CONFIRMED = struct.Struct("=120xQ")
_BYTES_RECEIVED = struct.Struct("=128xQ")
_CREDENTIALS = struct.Struct("=3i")


class Credentials(NamedTuple):
    """The process at the other end of a connection inside this host."""

    pid: int
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"of process {self.pid}"


class Address(NamedTuple):
    """The other end of a connection over TCP."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"from {self.host} port {self.port}"


@dataclass(slots=True, eq=False)
class Account:
    """What has arrived over a welcomed peer's connection, and when a message of it was last seen."""

    address: Credentials | Address
    heard_at_nbytes: int = 0  # or when it was doubted
    doubted: bool = False  # it has sent as much as a message has, without being checked since


def address_of(connection: socket.socket, *, ours: bool = False) -> Credentials | Address:
    """Return the other end of a connection, or, over TCP, of this end."""
    if connection.family == socket.AF_UNIX:
        packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return Credentials(*_CREDENTIALS.unpack(packed))
    host, port = (connection.getsockname() if ours else connection.getpeername())[:2]
    return Address(_plain(host), port)


def origin_of(descriptor: int) -> str | None:
    """Return the address of the host at the other end; empty for this host, None if the connection has ended."""
    with contextlib.suppress(OSError, ValueError), borrowed(descriptor) as connection:
        if connection.family == socket.AF_UNIX:
            return ""
        ours, theirs = connection.getsockname()[0], connection.getpeername()[0]
        # a peer that reaches this host by one of its addresses is on it, and comes from that address
        return "" if ours == theirs or is_loopback(theirs) else _plain(theirs)
    return None


def _plain(host: str) -> str:
    """Return an address in its usual form: IPv4 without the mapping of IPv6 sockets."""
    return str(ip_of(host) or host)


def end_now(connection: socket.socket) -> None:
    """End a connection, and discard what the kernel has received and ZeroMQ has not read: up to megabytes."""
    if connection.family == socket.AF_UNIX or _libc.connect(connection.fileno(), _NOBODY, len(_NOBODY)):
        connection.shutdown(socket.SHUT_RDWR)


def received(descriptor: int) -> int:
    """Return the bytes received over a connection; 0 if the system does not count them."""
    return _told(descriptor, _BYTES_RECEIVED)[0]


def confirmed(descriptor: int) -> int:
    """Return the sent bytes of a connection that the other host has confirmed; 0 if the system does not count them."""
    return _told(descriptor, _BYTES_CONFIRMED)[0]


def silence(descriptor: int) -> tuple[float, int]:
    """Return the seconds since the other host's last confirmation, and the retransmissions since then.

    A host confirms data whether its processes read it or not. Zeros if the system does not know.
    """
    sent_again, asked_for_room, silent_ms = _told(descriptor, _REPEATS)
    return silent_ms / 1000, max(sent_again, asked_for_room)


def _told(descriptor: int, facts: struct.Struct) -> tuple[int, ...]:
    """Return Linux's facts of a TCP connection; zeros for any other, and for one that has ended meanwhile."""
    buffer = ctypes.create_string_buffer(facts.size)
    if sys.platform == "linux":  # not by a Python socket, which costs more: this runs for thousands
        size = ctypes.c_uint(facts.size)
        if _libc.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(size)):
            buffer = ctypes.create_string_buffer(facts.size)
    return facts.unpack(buffer)


def waiting(descriptor: int) -> int:
    """Return how many of these bytes are unread."""
    buffer = bytearray(4)
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, buffer)
    except OSError:
        return 0
    return int.from_bytes(buffer, sys.byteorder)


def hang_up(connection: socket.socket) -> None:
    """End a connection at once, with unsent data; waiting threads wake up. The descriptor stays open."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        connection.shutdown(socket.SHUT_RDWR)


def receive(connection: socket.socket, nbytes: int, ends_at: float) -> bytes:
    """Return exactly this many bytes, before ``ends_at`` of the monotonic clock.

    Raises
    ------
    TimeoutError
        They did not arrive in time.
    ConnectionResetError
        The other end has closed.
    """
    data = b""
    while len(data) < nbytes:
        left = ends_at - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{len(data)} of {nbytes} bytes came in time")
        connection.settimeout(left)
        more = connection.recv(nbytes - len(data))
        if not more:
            raise ConnectionResetError("closed")
        data += more
    return data


def leave_quietly(probe: socket.socket) -> None:
    """Read a node's first byte before closing a silent connection; blocks for `HEAR_S` at most.

    The rest stays unread, so its ZeroMQ finds the connection reset. After an ordinary end it might take this one for a
    peer without a key.
    """
    probe.settimeout(HEAR_S)
    with contextlib.suppress(OSError):
        probe.recv(1)


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Wrap a descriptor in a socket that does not close it."""
    connection = socket.socket(fileno=descriptor)
    try:
        yield connection
    finally:
        connection.detach()


def are_scarce(any_descriptor: int) -> bool | None:
    """Return whether few descriptors are left; None: neither few nor many."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return False
    try:
        lowest = os.dup(any_descriptor)  # all below are in use
    except OSError:
        return True
    os.close(lowest)
    reserve = min(RESERVE, limit // 8)
    return True if lowest >= limit - reserve else False if lowest < limit - 2 * reserve else None
