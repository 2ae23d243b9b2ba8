"""The log lines that members and strangers cause: counted by where they come from, so that nobody silences others."""

from __future__ import annotations

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol.events import Action, Log, Received, Undecodable
from zmqps.core.protocol.messages import EndJob, Hello
from zmqps.errors import PSError

#: Lines about members and jobs that an address may cause in some seconds: 64 workers that come and go at once keep
#: theirs.
MOST_NEWS = 256


class News:
    """Lets so many lines of each origin through.

    An origin is an address, as the transport knows it: what a `Hello` says of its host is anybody's choice. All on the
    coordinator's host are one, and of these and of others each connection has half of the lines. Strangers of whom the
    transport says nothing are one more.
    """

    def __init__(self) -> None:
        self._came = Throttle("members and jobs that came and went", MOST_NEWS)
        self._refused = Throttle()

    def of_event(self, actions: list[Action], event: Received, member: MemberInfo | None, now: float) -> list[Action]:
        """Return what is done about an event, less the lines that are too many."""
        return self._came.spare(actions, now, _origin(event, member), event.peer)

    def of_member(self, actions: list[Action], member: MemberInfo, now: float) -> list[Action]:
        """Return what is done about a member, less the lines that are too many."""
        return self._came.spare(actions, now, member.origin.address, member.peer)

    def of_job(self, actions: list[Action], job: str, now: float) -> list[Action]:
        """Return what is due in a job, less the lines that are too many."""
        return self._came.spare(actions, now, ("job", job))

    def refusal(
        self, who: str, error: PSError, event: Received | Undecodable, member: MemberInfo | None, now: float
    ) -> list[Action]:
        """Return the line about a refused request, unless it is one too many."""
        peer = member.hello.name if member is not None else ""
        said = Log("warning", f"refused a request of {who}: {error}", peer=peer, error=error.number)
        origin = member is None, _origin(event, member)  # a stranger takes no lines from the members at its address
        return self._refused.spare([said], now, origin, event.peer)

    def summaries(self, now: float) -> list[Action]:
        """Return lines that say how many were left out."""
        texts = [throttle.summary(now) for throttle in (self._refused, self._came)]
        return [Log("warning", text) for text in texts if text]


def _origin(event: Received | Undecodable, member: MemberInfo | None) -> str | None:
    """Return the address that a line is counted for; None where the transport does not say it."""
    if member is not None:
        return member.origin.address
    if isinstance(event, Received) and isinstance(event.message, Hello | EndJob):
        return event.origin
    return None
