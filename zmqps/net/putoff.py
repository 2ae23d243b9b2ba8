"""What waits until all that has come was taken: whoever it is about may have said something before."""

from __future__ import annotations

from zmqps.core.protocol.events import Peer

#: Nothing waits longer, for others may send without an end: ZeroMQ lets each have its turn, so this one has been heard.
HEARD_S = 1.0


class PutOff:
    """Peers about whom there is something to do; each once, however often it is asked for."""

    def __init__(self) -> None:
        #: When each is due, the first first; looked at after every drain, so it costs no call.
        self.due: dict[Peer, float] = {}

    def add(self, peer: Peer, now: float) -> None:
        """Wait with something about a peer."""
        self.due.setdefault(peer, now + HEARD_S)

    def take(self, now: float, *, all_taken: bool) -> list[Peer]:
        """Return, and forget, those who need not wait any more."""
        ready = []
        for peer, due in self.due.items():
            if not all_taken and now < due:
                break
            ready.append(peer)
        for peer in ready:
            del self.due[peer]
        return ready
