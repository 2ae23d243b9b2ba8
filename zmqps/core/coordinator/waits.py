"""Tells those that wait at the coordinator for whom: a message each, however often that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zmqps.core.coordinator.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Waiting

#: Seconds between two such messages to a member that waits, however often the answer changes.
TELL_S = 0.1

Waiter = tuple[MemberInfo, int, str]  # who waits, with which request, for whom


class Waits:
    """Those of a job who wait: for its start, at named barriers, for a step, for a range of data.

    Parameters
    ----------
    waiters
        Yields who waits now.
    """

    def __init__(self, waiters: Callable[[], Iterator[Waiter]]) -> None:
        self._waiters = waiters
        self._tell_due: float | None = None

    def tell_soon(self, now: float) -> None:
        """Whom somebody waits for may just have changed."""
        if self._tell_due is None and any(True for _ in self._waiters()):
            self._tell_due = now + TELL_S

    def next_deadline(self) -> float | None:
        """Return when those who wait want to be told."""
        return self._tell_due

    def on_deadline(self, now: float) -> list[Action]:
        """Tell everybody who waits for whom, if it is time."""
        if self._tell_due is None or now < self._tell_due:
            return []
        self._tell_due = None
        return [Send(member.peer, Waiting(request, text)) for member, request, text in self._waiters()]
