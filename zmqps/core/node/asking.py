"""A client that asks the coordinator without joining, and repeats its question until it is answered."""

from __future__ import annotations

from abc import ABC, abstractmethod

from zmqps.core.node.handshake import FIRST_RETRY_S, SLOWEST_RETRY_S
from zmqps.core.protocol.events import COORDINATOR, Action, Connect, Look, NetworkEvent, Send, Stop
from zmqps.core.protocol.messages import Message
from zmqps.errors import PSError

#: After this long without an answer, the reason is examined.
LOOK_S = 0.8


class RepeatedQuestion(ABC):
    """A pending question, repeated ever more rarely.

    `error` is the reason of a refusal, `why` says in words why there is no answer.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.error: PSError | None = None
        self.why = ""
        self._due: float | None = None  # when to ask again; None: no more
        self._look_due: float | None = None
        self._retry_s = FIRST_RETRY_S

    @property
    @abstractmethod
    def title(self) -> str:
        """This client's identity, for errors."""

    @property
    @abstractmethod
    def awaited(self) -> str:
        """What the coordinator has not done, for an error: to answer."""

    @abstractmethod
    def _next_question(self) -> Message:
        """Return the present question."""

    @abstractmethod
    def handle(self, event: NetworkEvent | Stop, now: float) -> list[Action]:
        """Process an answer; any other message is ignored."""

    def start(self, now: float) -> list[Action]:
        """Open the connection and ask."""
        self._look_due = now + LOOK_S
        return [Connect(COORDINATOR, self.endpoint), *self.on_deadline(now)]

    def next_deadline(self) -> float | None:
        """Return when to ask again."""
        return self._due

    def on_deadline(self, now: float) -> list[Action]:
        """Ask (again): the connection may not have been up, or the answer got lost."""
        self._due = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, SLOWEST_RETRY_S)
        actions: list[Action] = [Send(COORDINATOR, self._next_question())]
        if self._look_due is not None and now >= self._look_due:
            self._look_due = None
            actions.append(Look(COORDINATOR, self.endpoint))
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        assert FIRST_RETRY_S <= self._retry_s <= SLOWEST_RETRY_S
