"""Sockets of ZeroMQ apart from messages: their limits, their endpoints, and the connection of a frame."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import zmq

from zmqps.core.protocol.wire import MAX_FRAME_NBYTES, MAX_HEADER_NBYTES
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.net.system.addresses import owner_of, places, split, usable_addresses

#: A connection whose host has confirmed nothing for this many seconds ends; its opener reconnects sooner.
DEAD_S = 60.0
#: When this much is freed at once glibc checks whether a thread's memory can shrink (FASTBIN_CONSOLIDATION_THRESHOLD).
_LOOK_NBYTES = 64 << 10
#: How long the message to an I/O thread may take, in milliseconds.
_VISIT_MS = 100


def limit_frames(socket: zmq.Socket[bytes], arrays: bool = True) -> None:
    # libzmq closes a connection that announces more, before it allocates
    socket.setsockopt(zmq.MAXMSGSIZE, max(MAX_FRAME_NBYTES if arrays else 0, MAX_HEADER_NBYTES))
    socket.setsockopt(zmq.LINGER, 0)


def keep_alive(socket: zmq.Socket[bytes], *, idle_s: int, interval_s: int, times: int) -> None:
    """Make the kernel probe an idle connection's host; it ends after this many unanswered probes."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, idle_s)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, interval_s)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, times)


def speak_to(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Enable IPv6 on a socket if the next endpoint to bind or connect has an IPv6 address."""
    socket.setsockopt(zmq.IPV6, int(endpoint.startswith("tcp://[")))


def bind_socket(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind and return the endpoint, with the port instead of 0 and an address instead of a name.

    ``tcp://[::]:5570`` takes IPv4, too.

    Raises
    ------
    AddressInUseError
        The port is in use.
    ConfigurationError
        The endpoint is invalid, or not of this host.
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
    """Name this host's addresses, if another host's was requested."""
    if number != zmq.EADDRNOTAVAIL:
        return ""
    ours = ", ".join(usable_addresses()) or "none but loopback"
    return f"; {split(place)[0]} is not an address of this host, which has {ours}"


def descriptor_of(frame: zmq.Frame) -> int:
    """Return the connection of a frame; -1 for peers of ZMTP 1 and 2, whose frames do not have it."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1


def new_router(context: zmq.Context[zmq.Socket[bytes]], *, patience_s: float, arrays: bool) -> zmq.Socket[bytes]:
    """Return a socket for incoming connections, before it is bound.

    Parameters
    ----------
    context
        Of the socket.
    patience_s
        Seconds for a handshake.
    arrays
        Whether connecting peers send arrays; else frames are limited to a header's size.
    """
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else unroutable messages vanish uncounted
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a reconnecting peer takes its old id over
    router.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * patience_s))
    keep_alive(router, idle_s=10, interval_s=10, times=5)
    router.setsockopt(zmq.TCP_MAXRT, int(1000 * DEAD_S))
    limit_frames(router, arrays)
    return router


class SideDoor:
    """An endpoint over ipc, closed while descriptors are scarce: libzmq ends the process if it has none to accept with.

    Parameters
    ----------
    router
        The socket bound to it.
    endpoint
        The endpoint.
    """

    def __init__(self, router: zmq.Socket[bytes], endpoint: str) -> None:
        self._router, self._endpoint = router, endpoint
        self._is_shut = False

    def shut(self) -> None:
        """Accept no connections."""
        if not self._is_shut:
            self._router.unbind(self._endpoint)
            self._is_shut = True

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Accept connections again, as soon as ZeroMQ's thread has released the endpoint."""
        if self._is_shut and not self._router.closed:
            try:
                bind_socket(self._router, self._endpoint)
                self._is_shut = False
            except AddressInUseError:
                loop.call_later(0.1, self.open, loop)


def free_in_io_threads(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Free a message in the memory of each of ZeroMQ's I/O threads, so that it shrinks.

    These threads allocate received data. Malloc checks the end of a thread's memory only when something large is freed
    there, and without traffic nothing is. Call `memory.let_freed_memory_go` before.
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
