"""The connections that this node opens: one DEALER for each."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from zmqps.core.protocol.events import Peer
from zmqps.errors import ConfigurationError
from zmqps.net.curve import secure_dealer
from zmqps.net.keyring import Keys
from zmqps.net.refusals import Refusals
from zmqps.net.sockets import limit_frames
from zmqps.net.transport import Refused

#: Random bytes of a routing id.
ROUTING_NBYTES = 16


def new_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, role: str, keys: Keys | None = None, identity: Any = b""
) -> tuple[zmq.Socket[bytes], Refusals]:
    """Return a socket whose connection is made in the background, and comes back by itself when it breaks.

    Parameters
    ----------
    context
        Of the socket.
    endpoint
        Where it connects.
    role, keys
        Whose key it shows; None: it shows none.
    identity
        By which the other end knows this one already.

    Returns
    -------
    tuple
        The socket, and what tells of handshakes that fail for good; that is to be closed first.

    Raises
    ------
    ConfigurationError
        The endpoint is invalid, or the keys are for others.
    """
    dealer = context.socket(zmq.DEALER)
    # nobody can know it, and so take this connection over; nor are two the same, which would starve each other
    dealer.setsockopt(zmq.IDENTITY, identity or b"z" + secrets.token_bytes(ROUTING_NBYTES))
    dealer.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues up for a peer that is not there
    dealer.setsockopt(zmq.PROBE_ROUTER, 1)  # an empty message tells who has come back
    dealer.setsockopt(zmq.RECONNECT_IVL, 50)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
    limit_frames(dealer)
    refusals = Refusals(dealer, endpoint, role, keys)
    try:
        if keys is not None:
            secure_dealer(dealer, keys, role)
        dealer.connect(endpoint)
    except (zmq.ZMQError, ConfigurationError) as error:
        refusals.close()
        dealer.close(0)
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"cannot connect to {endpoint!r}: {error}") from None
    return dealer, refusals


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
        self._refusals: dict[Peer, Refusals] = {}
        self._endpoints: dict[Peer, str] = {}
        self._context, self._role, self._keys = context, role, keys
        self._added, self._removed = added, removed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refused: Refused = lambda peer, error: None

    def start(self, loop: asyncio.AbstractEventLoop, refused: Refused) -> None:
        """Begin to watch their handshakes, in a loop's thread; ``refused`` is told of those that fail for good."""
        self._loop, self._refused = loop, refused
        for peer in self.sockets:
            self._watch(peer)

    def connect(self, peer: Peer, endpoint: str, identity: Any = b"") -> None:
        """Open a connection; one to the same peer is closed. Raises as `new_dealer` does."""
        self._hang_up(peer)
        dealer, self._refusals[peer] = new_dealer(self._context, endpoint, self._role, self._keys, identity)
        self.sockets[peer], self._endpoints[peer] = dealer, endpoint
        self._added(peer, dealer)
        self._watch(peer)

    def _hang_up(self, peer: Peer) -> None:
        dealer = self.sockets.pop(peer, None)
        if dealer is not None:
            self._removed(peer, dealer)
            self._leave(self._refusals.pop(peer))
            dealer.close(0)

    def _watch(self, peer: Peer) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._refusals[peer].socket.FD, self._look, peer)
            self._loop.call_soon(self._look, peer)

    def _look(self, peer: Peer) -> None:
        refusals = self._refusals.get(peer)
        if refusals is None or (error := refusals.take(partial(self._look, peer))) is None:
            return
        if refusals.keys is not None and (renewed := refusals.keys.renewed()) != refusals.keys:
            self._keys = renewed  # somebody has rotated them
            self.connect(peer, self._endpoints[peer], self.sockets[peer].getsockopt(zmq.IDENTITY))
            return
        self._hang_up(peer)
        self._refused(peer, error)

    def _leave(self, refusals: Refusals) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(refusals.socket.FD)
        refusals.close()

    def close(self) -> None:
        """Stop watching; before the sockets are closed."""
        for refusals in self._refusals.values():
            self._leave(refusals)
        self._refusals.clear()
        self.sockets.clear()
