"""The connections that a node has opened to servers, and the first message on each, repeated until it is answered."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import count

from zmqps.core.protocol.events import Action, Connect, Disconnect, Look, Peer, Send, server_peer
from zmqps.core.protocol.messages import Hello, Welcome
from zmqps.errors import printable


class Connections:
    """The connections of one node to servers, by their endpoints.

    They reconnect by themselves as long as they exist, and use memory. So unneeded ones are closed: servers are added
    and removed while a node lives.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self._numbers = count()

    def open(self, endpoint: str) -> tuple[Peer, bool]:
        """Return the connection to an endpoint, and whether it existed: a second one would replace it."""
        was_open = endpoint in self._peers
        if not was_open:
            self._peers[endpoint] = server_peer(next(self._numbers))
        return self._peers[endpoint], was_open

    def close_others(self, needed: Container[Peer]) -> list[Action]:
        """Close all but those that are needed."""
        others = {endpoint: peer for endpoint, peer in self._peers.items() if peer not in needed}
        for endpoint in others:
            del self._peers[endpoint]
        return [Disconnect(peer) for peer in others.values()]

    def validate(self, needed: Container[Peer]) -> None:
        """Assert that all are needed."""
        assert all([peer in needed for peer in self._peers.values()])


#: Hello is repeated fast at first, because the connection opens in milliseconds, then slowly, because the other side
#: may take minutes to start.
FIRST_RETRY_S = 0.02
SLOWEST_RETRY_S = 1.0
#: After this long without an answer to Hello the node examines why, and then again this often.
LOOK_S = 2.0
LOOK_AGAIN_S = 5.0
#: An ended connection is back by then, if at all possible; its end may have been noticed seconds late.
BROKEN_LOOK_S = 0.5
MAX_WHY_CHARS = 300


class Handshake:
    """Repeats `Hello` on a connection until `Welcome` arrives, and finds out why it does not.

    An ended connection comes back by itself. Until then nothing is sent, because it would be lost; but the silence
    counts, and its reason is examined, too.

    Attributes
    ----------
    since
        When the silence began: with the first unanswered `Hello`, or the end of the connection; None if there is
        none.
    said_at
        When `Hello` was first sent; since the connection is open, over that one.
    why
        Why there is no answer, in words; empty if unknown.
    is_down
        Whether the connection has ended and is not back.
    is_over
        Whether waiting has ended for good.
    """

    def __init__(self, hello: Hello, peer: Peer, endpoint: str) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.welcome: Welcome | None = None
        self.hello = hello
        self.due: float | None = None  # when to repeat Hello, or to examine an ended connection again
        self.since: float | None = None
        self.why = ""
        self.is_down = self.is_over = False
        self._retry_s = FIRST_RETRY_S
        self._look_due = 0.0
        self.said_at = 0.0

    def start(self, now: float) -> list[Action]:
        """Open the connection and send Hello."""
        self.said_at = now
        return [Connect(self.peer, self.endpoint), *self.on_deadline(now)]

    def beside(self, others: Iterable[Handshake], now: float) -> list[Action]:
        """Send Hello over a connection that others have opened; if it has ended, share their state."""
        self.said_at = now
        for other in others:
            if other.is_down:
                self.is_down, self.since, self.why, self._look_due = True, other.since, other.why, other._look_due
        return self.on_deadline(now)

    def again(self, now: float) -> list[Action]:
        """Send Hello over an open connection, as often as needed."""
        if self.is_over:
            return []
        self.is_down = False
        self.said_at = now
        self._retry_s = FIRST_RETRY_S
        return self.on_deadline(now)

    def ended(self, now: float) -> None:
        """The connection has ended: send nothing until it is back, and examine why if that takes long."""
        if not self.is_over:
            self.is_down = True
            self._count(now, BROKEN_LOOK_S)
            self.due = self._look_due

    def on_welcome(self, welcome: Welcome) -> None:
        """The other side has welcomed us."""
        self.welcome = welcome
        self.due = self.since = None
        self.why = ""

    def stop(self) -> None:
        """Send nothing any more, and stop waiting."""
        self.is_over = True
        self.due = self.since = None

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat Hello if there is a connection, and examine why there is no answer."""
        self._count(now, LOOK_S)
        actions: list[Action] = []
        if not self.is_down:
            self.due = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, SLOWEST_RETRY_S)
            actions.append(Send(self.peer, self.hello))
        if now >= self._look_due:
            self._look_due = now + LOOK_AGAIN_S
            actions.append(Look(self.peer, self.endpoint))
        if self.is_down:
            self.due = self._look_due
        return actions

    def _count(self, now: float, look_after: float) -> None:
        if self.since is None:
            self.since, self._look_due = now, now + look_after

    def looked(self, why: str) -> bool:
        """Process the answer to a `Look`; return whether it is new."""
        why = printable(why[:MAX_WHY_CHARS])
        if self.since is None or why == self.why:  # it has been welcomed meanwhile, or was given up
            return False
        self.why = why
        return True

    def silence(self, now: float) -> float:
        """Return the seconds without an answer; 0 if there was one."""
        return 0.0 if self.since is None else now - self.since

    @property
    def because(self) -> str:
        """The reason for the silence, as an addition to a text."""
        return f" ({self.why})" if self.why else ""
