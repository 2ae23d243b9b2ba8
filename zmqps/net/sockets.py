"""Sockets of ZeroMQ before and beside messages: their limits, where they are bound, which connection a frame is of."""

from __future__ import annotations

import zmq

from zmqps.core.protocol.wire import MAX_FRAME_NBYTES, MAX_HEADER_NBYTES
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.net.ports import owner_of


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


def bind_socket(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Bind and return the endpoint, in which a port is not 0 any more."""
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            port = int(endpoint.rpartition(":")[2]) if endpoint.startswith("tcp:") else 0
            raise AddressInUseError(endpoint=endpoint, port=port, owner=owner_of(port)) from None
        raise ConfigurationError(f"cannot bind {endpoint!r}: {error}") from None
    return str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")


def descriptor_of(frame: zmq.Frame) -> int:
    """Return which connection a frame came from; -1 for peers of ZMTP 1 and 2, whose frames do not tell."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1
