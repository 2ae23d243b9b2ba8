"""The connections that this node opens: one DEALER for each, and their state.

A broken connection comes back by itself. But TCP notices a break late, and a healed network even later: after a cut of
a minute it retries once a minute. So a connection over which nothing is confirmed is closed here after `SILENCE_S`, and
a new one is tried every second, which succeeds as soon as the network is back. The criterion is what the other *host*
confirms: a slow connection or a busy process is not broken.
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
from zmqps.core.protocol.message import PUSH_WINDOW
from zmqps.errors import ConfigurationError
from zmqps.keys.curve import secure_dealer
from zmqps.keys.keyring import Keys
from zmqps.net.connections import Address, Credentials, address_of, borrowed, end_now, silence
from zmqps.net.refusals import FAILURES, Refusals
from zmqps.net.sockets import keep_alive, limit_frames, speak_to
from zmqps.net.system.names import Dialer, has_name
from zmqps.net.transport import Noticed

#: Random bytes of a routing id.
ROUTING_NBYTES = 16
#: Milliseconds between two attempts to connect: at first, and at most.
RECONNECT_MS, MAX_RECONNECT_MS = 50, 200
#: An attempt is given up after this time: TCP tries twice in it, then ever more rarely.
CONNECT_MS = 2000
#: A connection is closed when the other host has confirmed nothing for this time, whatever was retransmitted.
SILENCE_S = 3.0
MIN_REPEATS = 4
#: Seconds between two checks of the connections.
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
        The name of the connection.
    endpoint
        The other end. With a name instead of an address it is connected once `Dialer` has resolved it.
    role, keys
        The role whose key it shows; None: without a key.
    identity
        The routing id by which the other end already knows this one.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid, or the keys are for another role.
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
        self._address: Credentials | Address | None = None  # which identifies the descriptor's connection
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
        """Connect to the present address of the name, instead of the earlier one."""
        if before:
            with contextlib.suppress(zmq.ZMQError):
                self.socket.disconnect(before)
        speak_to(self.socket, endpoint)
        self.socket.connect(endpoint)

    def settle(self, noticed: Noticed) -> None:
        """Process an event of the monitor."""
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
                self.socket.getsockopt(_EVENTS)  # ZeroMQ may not have checked yet: nothing could be sent
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
        """End the connection if the other host does not confirm any more."""
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
    """Return an unconnected socket; with keys it shows a role's, and connects only to nodes of their cluster.

    Raises
    ------
    ConfigurationError
        The keys are for another role, or damaged.
    """
    dealer = context.socket(zmq.DEALER)
    # not guessable, so no peer can take over this connection; and unique, or two would starve each other
    dealer.setsockopt(zmq.IDENTITY, identity or b"z" + secrets.token_bytes(ROUTING_NBYTES))
    dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for an absent peer
    dealer.setsockopt(zmq.PROBE_ROUTER, 1)  # an empty message identifies a returning peer
    dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, MAX_RECONNECT_MS)
    dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    dealer.setsockopt(zmq.SNDHWM, 2 * PUSH_WINDOW)  # or a worker's messages in flight are dropped on a slow link
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
        The role whose key they show; None: without a key.
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
        """Start to report connections, and when an action may have swallowed an edge."""
        self._loop, self._noticed, self._touched = loop, noticed, touched
        for dealer in self._dealers.values():
            self._watch(dealer)

    def open(self, peer: Peer, endpoint: str, identity: Any = b"") -> None:
        """Open a connection in the background; an earlier one to this peer is closed. Raises as `Dealer` does."""
        self.hang_up(peer)
        dealer = self._dealers[peer] = Dealer(self._context, peer, endpoint, self._role, self._keys, identity)
        self.sockets[peer] = dealer.socket
        self._added(peer, dealer.socket)
        if self._loop is not None:
            self._watch(dealer)

    def _watch(self, dealer: Dealer) -> None:
        assert self._loop is not None
        self._loop.add_reader(dealer.monitor.FD, self._settle, dealer)
        self._loop.call_soon(self._settle, dealer)  # events before this are not announced
        if has_name(dealer.endpoint):
            dial = partial(self._dial, dealer)
            self._dialers[dealer.peer] = Dialer(dealer.endpoint, self._loop, lambda: dealer.is_up, dial)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _settle(self, dealer: Dealer) -> None:
        """Process an event of a monitor; a refused connection retries with newer keys, or is closed."""
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
            self._keys = renewed  # the keys were rotated
            self.open(dealer.peer, dealer.endpoint, dealer.socket.getsockopt(zmq.IDENTITY))
            return
        self.hang_up(dealer.peer)
        self._noticed(Unreachable(dealer.peer, error))

    def hang_up(self, peer: Peer) -> None:
        """Close a connection, if one has this name."""
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
