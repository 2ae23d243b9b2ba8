"""The ZeroMQ transport: one ROUTER for those who connect here, one DEALER a connection we open."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import zmq

from zmqps.core.protocol.events import Peer, Reader
from zmqps.core.protocol.wire import MAX_FRAME_NBYTES, MAX_HEADER_NBYTES
from zmqps.errors import AddressInUseError, ConfigurationError
from zmqps.net.memory import keep_freed_memory
from zmqps.net.ports import owner_of
from zmqps.net.transport import INBOUND, Deliver

#: Frames below this are copied into the message: cheaper than telling when they are free again.
COPY_NBYTES = 64 << 10
#: Random bytes of a routing id.
ROUTING_NBYTES = 16
#: Messages delivered before timers and other callbacks of the loop get their turn.
BATCH = 256

# plain integers: to combine the members of an enumeration costs more than the call that they are for
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_DONTWAIT, _MORE = int(zmq.DONTWAIT), int(zmq.DONTWAIT | zmq.SNDMORE)


def _send(socket: zmq.Socket[bytes], frames: Sequence[Any], *, track: bool) -> list[zmq.Frame]:
    """Queue a message; return the frames that ZeroMQ goes on to read, if they are to be tracked.

    pyzmq's own `send_multipart` tracks the last frame only, and calls it done at once if it is a small one.
    """
    tracked = []
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        flags = _MORE if i < last else _DONTWAIT
        if memoryview(frame).nbytes < COPY_NBYTES:
            socket.send(frame, flags)
            continue
        aliased = zmq.Frame(frame, track=track, copy=False)
        socket.send(aliased, flags, copy=False)
        if track:
            tracked.append(aliased)
    return tracked


def readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(_EVENTS)) & _POLLIN)


def _receive(socket: zmq.Socket[bytes]) -> list[memoryview]:
    """Return the frames of a message that is there."""
    frame = socket.recv(_DONTWAIT, copy=False)
    frames = [frame.buffer]
    while frame.more:
        frame = socket.recv(_DONTWAIT, copy=False)
        frames.append(frame.buffer)
    return frames


def _limit(socket: zmq.Socket[bytes]) -> None:
    # libzmq closes a connection that announces more, before it allocates
    socket.setsockopt(zmq.MAXMSGSIZE, max(MAX_FRAME_NBYTES, MAX_HEADER_NBYTES))
    socket.setsockopt(zmq.LINGER, 0)


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


class ZmqTransport:
    """Moves frames through ZeroMQ sockets inside an asyncio loop.

    ZeroMQ signals readiness on an edge-triggered descriptor: once it fires, the sockets are
    drained until they are empty, and again after every send, which may have swallowed the edge.

    Parameters
    ----------
    io_threads
        How many threads of ZeroMQ read and write sockets; connections are spread over them.
    """

    def __init__(self, io_threads: int = 1) -> None:
        keep_freed_memory()
        self.counters: Counter[str] = Counter()
        self._context = zmq.Context(io_threads=io_threads)
        self._router: zmq.Socket[bytes] | None = None
        self._dealers: dict[Peer, zmq.Socket[bytes]] = {}
        self._sockets: list[tuple[Peer, zmq.Socket[bytes]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver | None = None
        self._delivered: Callable[[], None] | None = None
        self._scheduled = False
        self._draining = False

    def start(self, deliver: Deliver, delivered: Callable[[], None]) -> None:
        """Begin to deliver in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._deliver, self._delivered = deliver, delivered
        for _, socket in self._sockets:
            self._watch(socket)

    def bind(self, endpoint: str) -> str:
        """Accept connections on an endpoint such as ``tcp://127.0.0.1:0``; may be called for several.

        Raises
        ------
        AddressInUseError
            Names the port and, where it can be known, who holds it.
        ConfigurationError
            The endpoint is invalid, or names an interface this host does not have.
        """
        return bind_socket(self._router or self._new_router(), endpoint)

    def _new_router(self) -> zmq.Socket[bytes]:
        self._router = router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else what cannot be routed vanishes uncounted
        router.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a reconnecting peer takes its old id over
        _limit(router)
        self._add(b"", router)
        return router

    def connect(self, peer: Peer, endpoint: str) -> None:
        """Open a connection in the background; it comes back by itself when it breaks.

        Raises
        ------
        ConfigurationError
            The endpoint is invalid.
        """
        dealer = self._context.socket(zmq.DEALER)
        # nobody can know it, and so take this connection over; nor are two the same, which would starve each other
        dealer.setsockopt(zmq.IDENTITY, b"z" + secrets.token_bytes(ROUTING_NBYTES))
        dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues up for a peer that is not there
        dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        _limit(dealer)
        try:
            dealer.connect(endpoint)
        except zmq.ZMQError as error:
            dealer.close(0)
            raise ConfigurationError(f"cannot connect to {endpoint!r}: {error}") from None
        self._dealers[peer] = dealer
        self._add(peer, dealer)

    def _add(self, peer: Peer, socket: zmq.Socket[bytes]) -> None:
        self._sockets.append((peer, socket))
        if self._loop is not None:
            self._watch(socket)

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        assert self._loop is not None
        self._loop.add_reader(socket.FD, self._drain)
        self._schedule()

    def send(self, peer: Peer, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> bool:
        """Queue a message; large frames are not copied and stay in use until their reader is done."""
        socket = self._dealers.get(peer)
        if socket is None and peer.startswith(INBOUND) and self._router is not None:
            socket, frames = self._router, [peer[len(INBOUND) :], *frames]
        if socket is None:
            self.counters["undeliverable"] += 1
            return False
        try:
            tracked = _send(socket, frames, track=bool(readers))
        except zmq.ZMQError:  # not connected, or its queue is full: the sender will try again
            self.counters["undeliverable"] += 1
            return False
        finally:
            if not self._draining and readable(socket):
                self._schedule()  # the send has swallowed the edge that announced a message
        if tracked:
            tracker = zmq.MessageTracker(*tracked)
            for watchers in readers:
                watchers.append(tracker)
        return True

    def _schedule(self) -> None:
        """Drain soon, whether an edge announces it or not."""
        if not self._scheduled and not self._draining and self._loop is not None:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        assert self._deliver is not None
        assert self._delivered is not None
        self._scheduled, self._draining = False, True
        budget, empty = BATCH, False
        try:
            while budget > 0 and not empty:
                empty = True
                for peer, socket in list(self._sockets):
                    for _ in range(16):
                        if socket.closed:
                            return
                        if not readable(socket):  # cheaper than the exception of a vain receive
                            break
                        frames = _receive(socket)
                        budget, empty = budget - 1, False
                        if peer:
                            self._deliver(peer, frames)
                        else:
                            self._deliver(INBOUND + bytes(frames[0]), frames[1:])
        finally:
            self._draining = False
        if not empty:
            self._schedule()
        self._delivered()

    def greeting(self, peer: Peer) -> tuple[str, ...]:
        """Nothing to negotiate."""
        return ()

    def greeted(self, peer: Peer, capabilities: Sequence[str]) -> None:
        """Nothing was negotiated."""

    def facts(self) -> Mapping[str, Any]:
        """Nothing but the counters."""
        return dict(self.counters)

    def close(self, linger: float) -> None:
        """Close the sockets and end the context; queued messages get ``linger`` seconds."""
        for _, socket in self._sockets:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(socket.FD)
            socket.close(int(linger * 1000))
        self._sockets.clear()
        self._dealers.clear()
        self._router = None
        self._context.term()
