"""Jobs that have ended and that some servers have not confirmed to have freed."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.coordinator.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Discard

#: A server answers within milliseconds; one that did not may not have received it.
RETRY_S = 1.0


class Discards:
    """Asks servers to free what they keep of a job, until they have."""

    def __init__(self) -> None:
        self._awaited: dict[int, dict[bytes, MemberInfo]] = {}  # epoch -> servers
        self._due: float | None = None

    def add(self, epoch: int, servers: Iterable[MemberInfo], now: float) -> list[Action]:
        """A job has ended, or was given up."""
        awaited = {server.incarnation: server for server in servers}
        if awaited:
            self._awaited[epoch] = awaited
            self._due = now + RETRY_S if self._due is None else self._due
        return [Send(server.peer, Discard(epoch)) for server in awaited.values()]

    def confirmed(self, server: MemberInfo, epoch: int) -> None:
        """A server keeps nothing of a job any more."""
        self._awaited.get(epoch, {}).pop(server.incarnation, None)
        self._tidy()

    def leave(self, server: MemberInfo) -> None:
        """A server has gone, and what it kept with it."""
        for awaited in self._awaited.values():
            awaited.pop(server.incarnation, None)
        self._tidy()

    def _tidy(self) -> None:
        self._awaited = {epoch: awaited for epoch, awaited in self._awaited.items() if awaited}
        if not self._awaited:
            self._due = None

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        return self._due

    def on_deadline(self, now: float) -> list[Action]:
        """Ask again, if it is time."""
        if self._due is None or now < self._due:
            return []
        self._due = now + RETRY_S
        return [Send(server.peer, Discard(epoch)) for epoch, of in self._awaited.items() for server in of.values()]

    def validate(self) -> None:
        """Assert that there is a deadline as long as an answer is awaited."""
        assert all(self._awaited.values())
        assert (self._due is None) == (not self._awaited)
