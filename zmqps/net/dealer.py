"""The connections that this node opens: one DEALER for each, and what becomes of it.

A connection comes back by itself when it breaks. That it is broken TCP finds out late, and that the network has
healed even later: after a cut of a minute it tries again once in a minute. So a connection over which nothing is
confirmed any more is ended here after `SILENCE_S`, and a new one is asked for every second, which is there as soon as
the network is. What decides is what the other *host* confirms: a slow connection or a busy process is none that is
broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from zmqps.core.protocol.events import Connected, Disconnected, Peer, Unreachable
from zmqps.core.protocol.limits import PUSH_WINDOW
from zmqps.errors import ConfigurationError
from zmqps.net.connections import Address, Credentials, address_of, borrowed, end_now, silence
from zmqps.net.curve import secure_dealer
from zmqps.net.keyring import Keys
from zmqps.net.refusals import FAILURES, Refusals
from zmqps.net.sockets import keep_alive, limit_frames, speak_to
from zmqps.net.system.names import Dialer, has_name
from zmqps.net.transport import Noticed

#: Random bytes of a routing id.
ROUTING_NBYTES = 16
#: Between two attempts to connect, in milliseconds: at first, and at most.
RECONNECT_MS, MAX_RECONNECT_MS = 50, 200
#: An attempt is given up after so long: TCP asks twice in this time, then ever more rarely.
CONNECT_MS = 2000
#: A connection is ended when the other host has confirmed nothing for so long, however often it was sent.
SILENCE_S = 3.0
MIN_REPEATS = 4
#: Between two looks at the connections.
LOOK_S = 0.25

_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_OPEN, _UP, _GONE = int(zmq.EVENT_CONNECTED), int(zmq.EVENT_HANDSHAKE_SUCCEEDED), int(zmq.EVENT_DISCONNECTED)


class Dealer:
    """One connection.

    Parameters
    ----------
    context
        Of the socket.
    peer
        What the connection is called.
    endpoint
        Where to. With a name in the place of an address it is connected once `Dialer` has looked that up.
    role, keys
        Whose key it shows; None: it shows none.
    identity
        By which the other end knows this one already.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid, or the keys are for others.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        peer: Peer,
        endpoint: str,
        role: str,
        keys: Keys | None,
        identity: Any = b"",
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.socket = new_dealer(context, role, keys, identity)
        self.refusals = Refusals(endpoint, role, keys)
        address = f"inproc://zmqps-dealer-{id(self)}"
        self.socket.monitor(address, _OPEN | _UP | _GONE | FAILURES)
        self.monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.monitor.setsockopt(zmq.LINGER, 0)
        self.monitor.connect(address)
        self._up = False
        self._descriptor = -1
        self._address: Credentials | Address | None = None  # by which the connection of the descriptor is recognised
        try:
            if not has_name(endpoint):
                self.dial(endpoint)
        except zmq.ZMQError as error:
            self.close(0)
            raise ConfigurationError(f"cannot connect to {endpoint!r}: {error}") from None

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return self._up

    def dial(self, endpoint: str, before: str = "") -> None:
        """Connect, to what a name stands for now in the place of what it stood for before."""
        if before:
            with contextlib.suppress(zmq.ZMQError):
                self.socket.disconnect(before)
        speak_to(self.socket, endpoint)
        self.socket.connect(endpoint)

    def settle(self, noticed: Noticed) -> None:
        """Take what the monitor tells."""
        while not self.monitor.closed and int(self.monitor.getsockopt(_EVENTS)) & _POLLIN:
            event: Any = recv_monitor_message(self.monitor)
            kind = int(event["event"])
            if kind == _OPEN:
                self._open(int(event["value"]))
            elif kind & FAILURES:
                self.refusals.failed(kind, int(event["value"]))
            elif kind == _UP:
                self._up = True
                self.refusals.succeeded()
                self.socket.getsockopt(_EVENTS)  # ZeroMQ may not have looked yet: nothing could be sent
                noticed(Connected(self.peer))
            elif kind == _GONE:
                self._descriptor = -1
                if self._up:
                    self._up = False
                    noticed(Disconnected(self.peer))

    def _open(self, descriptor: int) -> None:
        try:
            with borrowed(descriptor) as connection:
                self._descriptor, self._address = descriptor, address_of(connection, ours=True)
        except OSError:
            self._descriptor = -1  # it has ended meanwhile

    def look(self) -> None:
        """End the connection if the other host does not confirm anything any more."""
        if self._descriptor < 0:
            return
        silent_s, repeats = silence(self._descriptor)
        if silent_s < SILENCE_S or repeats < MIN_REPEATS:
            return
        try:
            with borrowed(self._descriptor) as found, found.dup() as connection:  # the same one until the end
                if address_of(connection, ours=True) == self._address:
                    end_now(connection)
        except OSError:
            self._descriptor = -1

    def close(self, linger: float) -> None:
        """Close it, and its monitor."""
        self.socket.disable_monitor()
        self.socket.close(int(linger * 1000))
        self.monitor.close(0)


def new_dealer(
    context: zmq.Context[zmq.Socket[bytes]], role: str, keys: Keys | None = None, identity: Any = b""
) -> zmq.Socket[bytes]:
    """Return a socket that is not connected yet; with keys it shows a role's, and talks to nodes of their cluster only.

    Raises
    ------
    ConfigurationError
        The keys are for others, or damaged.
    """
    dealer = context.socket(zmq.DEALER)
    # nobody can know it, and so take this connection over; nor are two the same, which would starve each other
    dealer.setsockopt(zmq.IDENTITY, identity or b"z" + secrets.token_bytes(ROUTING_NBYTES))
    dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues up for a peer that is not there
    dealer.setsockopt(zmq.PROBE_ROUTER, 1)  # an empty message tells who has come back
    dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, MAX_RECONNECT_MS)
    dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    dealer.setsockopt(zmq.SNDHWM, 2 * PUSH_WINDOW)  # or what a worker may have in flight is dropped on a slow link
    keep_alive(dealer, idle_s=1, interval_s=1, times=3)
    limit_frames(dealer)
    if keys is not None:
        try:
            secure_dealer(dealer, keys, role)
        except ConfigurationError:
            dealer.close(0)
            raise
    return dealer


class Dealers:
    """The connections that a transport has opened, until a node refuses one for good.

    Parameters
    ----------
    context
        Of their sockets.
    role, keys
        Whose key they show; None: they show none.
    added, removed
        Called with the peer and its socket after that was made, and before it is closed.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        role: str,
        keys: Keys | None,
        added: Callable[[Peer, zmq.Socket[bytes]], None],
        removed: Callable[[Peer, zmq.Socket[bytes]], None],
    ) -> None:
        self.sockets: dict[Peer, zmq.Socket[bytes]] = {}
        self._context, self._role, self._keys = context, role, keys
        self._added, self._removed = added, removed
        self._dealers: dict[Peer, Dealer] = {}
        self._dialers: dict[Peer, Dialer] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._noticed: Noticed = lambda event: None
        self._touched: Callable[[], None] = lambda: None
        self._timer: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop, noticed: Noticed, touched: Callable[[], None]) -> None:
        """Begin to tell what becomes of connections, and when what was done to one may have swallowed an edge."""
        self._loop, self._noticed, self._touched = loop, noticed, touched
        for dealer in self._dealers.values():
            self._watch(dealer)

    def open(self, peer: Peer, endpoint: str, identity: Any = b"") -> None:
        """Open a connection in the background; one to the same peer is closed. Raises as `Dealer` does."""
        self.hang_up(peer)
        dealer = self._dealers[peer] = Dealer(self._context, peer, endpoint, self._role, self._keys, identity)
        self.sockets[peer] = dealer.socket
        self._added(peer, dealer.socket)
        if self._loop is not None:
            self._watch(dealer)

    def _watch(self, dealer: Dealer) -> None:
        assert self._loop is not None
        self._loop.add_reader(dealer.monitor.FD, self._settle, dealer)
        self._loop.call_soon(self._settle, dealer)  # what was told before is not announced
        if has_name(dealer.endpoint):
            dial = partial(self._dial, dealer)
            self._dialers[dealer.peer] = Dialer(dealer.endpoint, self._loop, lambda: dealer.is_up, dial)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _settle(self, dealer: Dealer) -> None:
        """Take what a monitor tells; one that was refused for good tries again with newer keys, or is closed."""
        if self._dealers.get(dealer.peer) is not dealer:
            return
        was_up = dealer.is_up
        dealer.settle(self._noticed)
        if dealer.is_up is not was_up:
            self._touched()
        error, keys = dealer.refusals.take(partial(self._settle, dealer)), dealer.refusals.keys
        if error is None:
            return
        if keys is not None and (renewed := keys.renewed()) != keys:
            self._keys = renewed  # somebody has rotated them
            self.open(dealer.peer, dealer.endpoint, dealer.socket.getsockopt(zmq.IDENTITY))
            return
        self.hang_up(dealer.peer)
        self._noticed(Unreachable(dealer.peer, error))

    def hang_up(self, peer: Peer) -> None:
        """Close a connection, if there is one of this name."""
        if (dealer := self._dealers.pop(peer, None)) is not None:
            del self.sockets[peer]
            self._removed(peer, dealer.socket)
            self._end(dealer, 0)

    def _dial(self, dealer: Dealer, endpoint: str, before: str) -> None:
        dealer.dial(endpoint, before)
        self._touched()

    def _look(self) -> None:
        assert self._loop is not None
        self._timer = self._loop.call_later(LOOK_S, self._look)
        for dealer in list(self._dealers.values()):
            self._settle(dealer)
            if not dealer.socket.closed:
                dealer.look()

    def _end(self, dealer: Dealer, linger: float) -> None:
        if (dialer := self._dialers.pop(dealer.peer, None)) is not None:
            dialer.close()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(dealer.monitor.FD)
        dealer.close(linger)

    def close(self, linger: float) -> None:
        """Close all of them; queued messages get ``linger`` seconds."""
        if self._timer is not None:
            self._timer.cancel()
        for dealer in self._dealers.values():
            self._end(dealer, linger)
        self._dealers.clear()
        self.sockets.clear()
