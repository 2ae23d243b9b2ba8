"""Sockets of ZeroMQ before and beside messages: their limits, where they are bound, which connection a frame is of."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import zmq

from zmqps.core.protocol.wire import MAX_FRAME_NBYTES, MAX_HEADER_NBYTES
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.net.system.addresses import places, split, usable_addresses
from zmqps.net.system.ports import owner_of

#: The connection of a host that has confirmed nothing for so many seconds ends; who has opened it comes back sooner.
DEAD_S = 60.0
#: When so much is freed at once glibc looks whether a thread's memory can shrink (FASTBIN_CONSOLIDATION_THRESHOLD).
_LOOK_NBYTES = 64 << 10
#: How long the message to an I/O thread may take, in milliseconds.
_VISIT_MS = 100


def limit_frames(socket: zmq.Socket[bytes], arrays: bool = True) -> None:
    # libzmq closes a connection that announces more, before it allocates
    socket.setsockopt(zmq.MAXMSGSIZE, max(MAX_FRAME_NBYTES if arrays else 0, MAX_HEADER_NBYTES))
    socket.setsockopt(zmq.LINGER, 0)


def keep_alive(socket: zmq.Socket[bytes], *, idle_s: int, interval_s: int, times: int) -> None:
    """Let the kernel ask the other host over a quiet connection; without an answer to so many questions it ends."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, idle_s)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, interval_s)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, times)


def speak_to(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Let a socket speak what the next endpoint it binds or connects to takes: IPv6, where that is an address of it."""
    socket.setsockopt(zmq.IPV6, int(endpoint.startswith("tcp://[")))


def bind_socket(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind and return the endpoint, in which a port is not 0 any more, and a host no name.

    ``tcp://[::]:5570`` takes IPv4, too.

    Raises
    ------
    AddressInUseError
        Somebody has the port.
    ConfigurationError
        The endpoint is none, or not of this host.
    """
    reason = ""
    try:
        found = places(endpoint)
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot bind {endpoint!r:.200}: {error}") from None
    for place in found:
        speak_to(socket, place)
        try:
            socket.bind(place)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                port = split(place)[1] if place.startswith("tcp:") else 0
                raise AddressInUseError(endpoint=endpoint, port=port, owner=owner_of(port)) from None
            reason = reason or f"{error}{_instead(place, error.errno)}"
        else:
            return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
    raise ConfigurationError(f"cannot bind {endpoint!r}: {reason}")


def _instead(place: str, number: int | None) -> str:
    """Say which addresses this host has, where somebody has asked for another one."""
    if number != zmq.EADDRNOTAVAIL:
        return ""
    ours = ", ".join(usable_addresses()) or "none but loopback"
    return f"; {split(place)[0]} is no address of this host, which has {ours}"


def descriptor_of(frame: zmq.Frame) -> int:
    """Return which connection a frame came from; -1 for peers of ZMTP 1 and 2, whose frames do not tell."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def new_router(context: zmq.Context[zmq.Socket[bytes]], *, patience_s: float, arrays: bool) -> zmq.Socket[bytes]:
    """Return a socket that others may connect to, before it is bound.

    Parameters
    ----------
    context
        Of the socket.
    patience_s
        Seconds for a handshake.
    arrays
        Whether those who connect send arrays; else frames are limited to a header's size.
    """
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else what cannot be routed vanishes uncounted
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a reconnecting peer takes its old id over
    router.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * patience_s))
    keep_alive(router, idle_s=10, interval_s=10, times=5)
    router.setsockopt(zmq.TCP_MAXRT, int(1000 * DEAD_S))
    limit_frames(router, arrays)
    return router


class SideDoor:
    """An endpoint over ipc, shut while descriptors run short: libzmq ends the process if it has none for who comes.

    Parameters
    ----------
    router
        The socket that is bound there.
    endpoint
        Where.
    """

    def __init__(self, router: zmq.Socket[bytes], endpoint: str) -> None:
        self._router, self._endpoint = router, endpoint
        self._is_shut = False

    def shut(self) -> None:
        """Let nobody in."""
        if not self._is_shut:
            self._router.unbind(self._endpoint)
            self._is_shut = True

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let them in again, as soon as ZeroMQ's thread has let go of the endpoint."""
        if self._is_shut and not self._router.closed:
            try:
                bind_socket(self._router, self._endpoint)
                self._is_shut = False
            except AddressInUseError:
                loop.call_later(0.1, self.open, loop)


def free_in_io_threads(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Free a message in the memory of each of ZeroMQ's I/O threads, so that it shrinks.

    These threads allocate what is received. Malloc looks at the end of a thread's memory only when something large is
    freed there, and where nobody sends any more nothing is. Call `memory.let_freed_memory_go` before.
    """
    for number in range(int(context.get(zmq.IO_THREADS))):  # 64 at most, as many as an affinity has bits
        with contextlib.suppress(zmq.ZMQError), context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
            for socket in (pull, push):
                socket.setsockopt(zmq.AFFINITY, 1 << number)
                socket.setsockopt(zmq.LINGER, 0)
            pull.setsockopt(zmq.MAXMSGSIZE, _LOOK_NBYTES)
            place = f"ipc://@zmqps-{secrets.token_hex(16)}"
            pull.bind(place)
            push.connect(place)
            push.send(bytes(_LOOK_NBYTES), zmq.DONTWAIT)
            if pull.poll(_VISIT_MS):
                pull.recv(zmq.DONTWAIT, copy=False)
