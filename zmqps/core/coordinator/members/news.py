"""What the coordinator logs of members, strangers and waits: bounded, so that no line silences others."""

from __future__ import annotations

from collections.abc import Sequence

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol.events import Action, Log, Received, Undecodable
from zmqps.core.protocol.messages import EndJob, Hello
from zmqps.errors import PSError

#: Lines about members and jobs that an address may cause in some seconds: enough for 64 workers that join and leave at
#: once.
MOST_NEWS = 256
#: Seconds until the same wait is logged again; each time twice as long as before, up to `LONGEST_S`.
SHORTEST_S, LONGEST_S = 10.0, 60.0


class News:
    """Passes a number of lines of each origin, and the same wait less and less often.

    An origin is an address known to the transport, because the host in a `Hello` can be anything. All nodes on the
    coordinator's host are one origin, and of this and of others each connection has half of the lines. Strangers
    unknown to the transport are one more.
    """

    def __init__(self) -> None:
        self._came = Throttle("members and jobs that came and went", MOST_NEWS)
        self._refused = Throttle()
        self._waits: dict[str, tuple[float, float]] = {}  # by text: when it is due again, and after how long

    def of_event(self, actions: list[Action], event: Received, member: MemberInfo | None, now: float) -> list[Action]:
        """Return the actions about an event, without excess log lines."""
        return self._came.spare(actions, now, _origin(event, member), event.peer)

    def of_member(self, actions: list[Action], member: MemberInfo, now: float) -> list[Action]:
        """Return the actions about a member, without excess log lines."""
        return self._came.spare(actions, now, member.origin.address, member.peer)

    def of_job(self, actions: list[Action], job: str, now: float) -> list[Action]:
        """Return a job's due actions, without excess log lines."""
        return self._came.spare(actions, now, ("job", job))

    def refusal(
        self, who: str, error: PSError, event: Received | Undecodable, member: MemberInfo | None, now: float
    ) -> list[Action]:
        """Return the line about a refused request, unless it is in excess."""
        peer = member.hello.name if member is not None else ""
        said = Log("warning", f"refused a request of {who}: {error}", peer=peer, error=error.number)
        origin = member is None, _origin(event, member)  # a stranger takes no lines from the members at its address
        return self._refused.spare([said], now, origin, event.peer)

    def waits(self, texts: Sequence[str], now: float) -> list[str]:
        """Return the waits to log: new ones, and at growing intervals those that continue."""
        self._waits = {text: self._waits.get(text, (now, SHORTEST_S)) for text in texts}
        due = [text for text, (at, _) in self._waits.items() if now >= at]
        for text in due:
            interval = self._waits[text][1]
            self._waits[text] = now + interval, min(2 * interval, LONGEST_S)
        return due

    def summaries(self, now: float) -> list[Action]:
        """Return lines that say how many were left out."""
        texts = [throttle.summary(now) for throttle in (self._refused, self._came)]
        return [Log("warning", text) for text in texts if text]


def _origin(event: Received | Undecodable, member: MemberInfo | None) -> str | None:
    """Return the address that a line is counted for; None if the transport does not know it."""
    if member is not None:
        return member.origin.address
    if isinstance(event, Received) and isinstance(event.message, Hello | EndJob):
        return event.origin
    return None
