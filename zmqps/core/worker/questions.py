"""A worker's unanswered requests to the coordinator."""

from __future__ import annotations

from itertools import count
from typing import Any

from zmqps.core.node.timers import Alarm
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.protocol.messages import Message

#: An unanswered request is repeated after this long: it may be lost with a coordinator's memory, or on a busy one. Then
#: after twice as long each time, because its answer may take time, up to
RETRY_S = 3.0
SLOWEST_RETRY_S = 30.0


class Questions:
    """The unanswered requests; each is repeated as soon as a broken connection is back.

    While `held`, nothing is sent until `again`: the coordinator may not know the other end of the connection.
    """

    def __init__(self, alarm: Alarm) -> None:
        self.numbers = count(1)
        self.due: float | None = None
        self.held = False
        self._unanswered: dict[int, Message] = {}
        self._wait_s = RETRY_S
        self._alarm = alarm

    def ask(self, message: Any, now: float) -> list[Action]:
        """Send a request, and repeat it until it is answered."""
        self._unanswered[message.request] = message
        if self.due is None:
            self._wait_s, self.due = RETRY_S, now + RETRY_S
            self._alarm.due = min(self._alarm.due, self.due)
        return [] if self.held else [Send(COORDINATOR, message)]

    def answered(self, request: int) -> None:
        """A request was answered, or is obsolete."""
        self._unanswered.pop(request, None)
        if not self._unanswered:
            self.due = None

    def again(self, now: float) -> list[Action]:
        """Repeat all requests: the connection is a new one."""
        self.held = False
        self._wait_s = RETRY_S
        self.due = now + RETRY_S if self._unanswered else None
        return [Send(COORDINATOR, message) for message in self._unanswered.values()]

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat unanswered requests, if it is time."""
        if self.due is None or now < self.due:
            return []
        self._wait_s = min(2 * self._wait_s, SLOWEST_RETRY_S)
        self.due = now + self._wait_s if self._unanswered else None
        return [] if self.held else [Send(COORDINATOR, message) for message in self._unanswered.values()]
