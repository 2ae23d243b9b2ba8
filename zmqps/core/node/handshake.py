"""The first words on a connection: said again until they are answered, and why, when they are not."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.protocol.events import Action, Connect, Look, Peer, Send
from zmqps.core.protocol.messages import Hello, Welcome
from zmqps.errors import printable

#: A Hello is repeated quickly at first, because the connection comes up in milliseconds, then
#: slowly, because the other side may take minutes to be started.
FIRST_RETRY_S = 0.02
SLOWEST_RETRY_S = 1.0
#: A Hello that is not answered for so long makes the node look why, and then again so often.
LOOK_S = 2.0
LOOK_AGAIN_S = 5.0
#: A connection that has ended is back by then, if it can be at all; its end may have taken seconds to be noticed.
BROKEN_LOOK_S = 0.5
MAX_WHY_CHARS = 300


class Handshake:
    """Repeats `Hello` on a connection until `Welcome` comes; where it does not come, finds out why.

    A connection that has ended comes back by itself. Until then nothing is said, for it would go nowhere; but the
    silence counts, and why it lasts is found out, too.

    Attributes
    ----------
    since
        When the silence began: with the first `Hello` that is not answered yet, or the end of the connection; None if
        there is none.
    said_at
        When `Hello` was said first; once the connection is there, over that.
    why
        Why there is no answer, in words; empty if that is not known.
    is_down
        Whether the connection has ended and is not back.
    is_over
        Whether nobody is waited for any more.
    """

    def __init__(self, hello: Hello, peer: Peer, endpoint: str) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.welcome: Welcome | None = None
        self.hello = hello
        self.due: float | None = None  # when the next Hello is, or the next look at what has ended
        self.since: float | None = None
        self.why = ""
        self.is_down = self.is_over = False
        self._retry_s = FIRST_RETRY_S
        self._look_due = 0.0
        self.said_at = 0.0

    def start(self, now: float) -> list[Action]:
        """Open the connection and say hello."""
        self.said_at = now
        return [Connect(self.peer, self.endpoint), *self.on_deadline(now)]

    def beside(self, others: Iterable[Handshake], now: float) -> list[Action]:
        """Say hello over a connection that others have opened; if it has ended, know that as they do."""
        self.said_at = now
        for other in others:
            if other.is_down:
                self.is_down, self.since, self.why, self._look_due = True, other.since, other.why, other._look_due
        return self.on_deadline(now)

    def again(self, now: float) -> list[Action]:
        """Say hello over a connection that is there (again), as often as it takes."""
        if self.is_over:
            return []
        self.is_down = False
        self.said_at = now
        self._retry_s = FIRST_RETRY_S
        return self.on_deadline(now)

    def ended(self, now: float) -> None:
        """The connection has ended: be silent until it is back, and look why if that takes long."""
        if not self.is_over:
            self.is_down = True
            self._count(now, BROKEN_LOOK_S)
            self.due = self._look_due

    def on_welcome(self, welcome: Welcome) -> None:
        """The other side knows us."""
        self.welcome = welcome
        self.due = self.since = None
        self.why = ""

    def stop(self) -> None:
        """Say nothing any more, and wait for nobody."""
        self.is_over = True
        self.due = self.since = None

    def on_deadline(self, now: float) -> list[Action]:
        """Say hello (again) if there is a connection, and look why nobody answers."""
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
        """Take the answer to a `Look`; return whether it says something new."""
        why = printable(why[:MAX_WHY_CHARS])
        if self.since is None or why == self.why:  # it has been welcomed meanwhile, or was given up
            return False
        self.why = why
        return True

    def silence(self, now: float) -> float:
        """Return for how many seconds nobody has answered; 0 if somebody has."""
        return 0.0 if self.since is None else now - self.since

    @property
    def because(self) -> str:
        """Why it is not answered, to be put behind who is waited for."""
        return f" ({self.why})" if self.why else ""
