"""What the driver requires of a transport, and actions that transports put off until all arrivals are processed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from zmqps.core.protocol.events import Connected, Disconnected, Peer, Reader, Unreachable
from zmqps.core.protocol.security.roles import KeyHolder

#: Incoming peers are named by this and their routing id, so that no peer can choose the name of a connection that we
#: opened.
INBOUND = b"@"

#: Takes the frames of a peer's message. Array frames alias the transport's buffers, which live as long as they are
#: referred to.
Deliver = Callable[[Peer, Sequence[Any]], None]
#: Is informed of connections: of those that we open, of the end of those with a welcomed peer, and of peers that are
#: gone for good.
Noticed = Callable[[Connected | Disconnected | Unreachable], None]


class Transport(Protocol):
    """Carries frames; all calls come from the thread of the loop it was started in.

    Messages between two peers arrive complete and in order, or not at all.
    """

    def start(self, deliver: Deliver, delivered: Callable[[], None], noticed: Noticed) -> None:
        """Start to deliver; ``delivered`` is called after each batch, ``noticed`` when a connection opens or closes."""

    def bind(self, endpoint: str) -> str:
        """Accept connections; return the endpoint with its port filled in."""

    def connect(self, peer: Peer, endpoint: str) -> None:
        """Open a connection in the background to one of the ``endpoint``'s, named ``peer``."""

    def disconnect(self, peer: Peer) -> None:
        """Close a connection that was opened here; unsent messages are dropped, and nothing is delivered."""

    def send(self, peer: Peer, frames: Sequence[Any], readers: Sequence[list[Reader]]) -> bool:
        """Queue a message; False if it was dropped because the peer is not connected or not reading.

        ``readers``: a list for each frame but the first; if there are others, each is of all frames.
        """

    def greeting(self, peer: Peer) -> tuple[str, ...]:
        """Return the capabilities to add to the Hello or Welcome about to be sent.

        An incoming peer is known from its Welcome on; before, little is taken from it.
        """

    def greeted(self, peer: Peer, capabilities: Sequence[str]) -> None:
        """Process the capabilities of a Hello or Welcome before the machine sees it.

        Raises
        ------
        PSError
            The connection cannot be of the requested kind.
        """

    def make_room(self) -> None:
        """Free all memory that can be freed: an allocation has failed."""

    def origin(self, peer: Peer) -> str | None:
        """Return the other host's address for a peer's `Hello`; empty: this host, or unknown.

        None: its connection has ended.
        """

    def holder(self, peer: Peer) -> KeyHolder | None:
        """Return the key of the sender of the message being delivered; None without keys."""

    def facts(self) -> Mapping[str, Any]:
        """Return the counters for the status."""

    def close(self, linger: float) -> None:
        """Close everything, giving queued messages ``linger`` seconds to leave."""


#: The longest deferral, because others may send endlessly: ZeroMQ serves each in turn, so this peer has been heard.
HEARD_S = 1.0


class PutOff:
    """Peers with a deferred action; each once, however often it is requested."""

    def __init__(self) -> None:
        #: When each is due, the earliest first; checked after every drain without a call.
        self.due: dict[Peer, float] = {}

    def add(self, peer: Peer, now: float) -> None:
        """Defer an action on a peer."""
        self.due.setdefault(peer, now + HEARD_S)

    def take(self, now: float, *, all_taken: bool) -> list[Peer]:
        """Return, and forget, those that need not wait any more."""
        ready = []
        for peer, due in self.due.items():
            if not all_taken and now < due:
                break
            ready.append(peer)
        for peer in ready:
            del self.due[peer]
        return ready
