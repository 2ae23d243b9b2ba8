"""Actions deferred until all arrivals were processed: the peer may have sent something before."""

from __future__ import annotations

from zmqps.core.protocol.events import Peer

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
