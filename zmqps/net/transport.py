"""What the driver asks of a transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from zmqps.core.protocol.events import Connected, Disconnected, Peer, Reader, Unreachable
from zmqps.core.protocol.security.roles import KeyHolder

#: Peers that connected here are named by this and their routing id, so that nobody can choose an
#: identity that is the name of a connection we opened.
INBOUND = b"@"

#: Takes the frames that a peer sent. Array frames alias the transport's buffers, which live as
#: long as somebody refers to them.
Deliver = Callable[[Peer, Sequence[Any]], None]
#: Is told of connections: of those that we open, and of the end of those over which a peer was welcomed; and of peers
#: with whom there will be none any more.
Noticed = Callable[[Connected | Disconnected | Unreachable], None]


class Transport(Protocol):
    """Carries frames; all calls come from the thread of the loop it was started in.

    Messages between two peers arrive whole and in order, or not at all.
    """

    def start(self, deliver: Deliver, delivered: Callable[[], None], noticed: Noticed) -> None:
        """Begin to deliver; ``delivered`` is called after each batch, ``noticed`` when a connection comes or goes."""

    def bind(self, endpoint: str) -> str:
        """Accept connections; return the endpoint with its port filled in."""

    def connect(self, peer: Peer, endpoint: str) -> None:
        """Open a connection in the background to one of the ``endpoint``'s and call it ``peer``."""

    def disconnect(self, peer: Peer) -> None:
        """Close a connection that was opened here; what has not left yet is dropped, and nothing is delivered."""

    def send(self, peer: Peer, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> bool:
        """Queue a message; False if it was dropped because the peer is not connected or not reading.

        ``readers``: a list for each frame but the first; if there are others, each is of all frames.
        """

    def greeting(self, peer: Peer) -> tuple[str, ...]:
        """Return the capabilities to add to the Hello or Welcome that is about to be sent.

        A peer that connected here is known from its Welcome on; before, little is taken from it.
        """

    def greeted(self, peer: Peer, capabilities: Sequence[str]) -> None:
        """Take the capabilities of a Hello or Welcome before the machine sees it.

        Raises
        ------
        PSError
            The connection cannot be what was asked for.
        """

    def make_room(self) -> None:
        """Give back what can be given back: this process has no memory for something."""

    def origin(self, peer: Peer) -> str | None:
        """Return the address of the other host that a peer's `Hello` came from; empty: from this one, or unknown.

        None: its connection has ended.
        """

    def holder(self, peer: Peer) -> KeyHolder | None:
        """Return whose key the peer has shown whose message is being delivered; None where there are no keys."""

    def facts(self) -> Mapping[str, Any]:
        """Return what to show in the status."""

    def close(self, linger: float) -> None:
        """Close everything, giving queued messages ``linger`` seconds to leave."""
