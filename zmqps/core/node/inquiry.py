"""Asks the coordinator something, without joining, again until it is answered and the answer is satisfactory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from zmqps.core.node.handshake import FIRST_RETRY_S, SLOWEST_RETRY_S
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connect,
    Connected,
    Disconnected,
    Exit,
    Look,
    Looked,
    NetworkEvent,
    Received,
    Send,
    Stop,
    Unreachable,
)
from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import LimitError, PSError, from_wire, presented, printable

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


#: The allowed questions of an `Inquiry`.
Question: TypeAlias = m.StatusRequest | m.Watch | m.EndJob | m.Checkpoint | m.Drain | m.Scale | m.Examine | m.Exited
#: When to ask again after an unsatisfactory answer; and for the progress of a long operation.
AGAIN_S, PROGRESS_S = 0.05, 0.25


class Inquiry(RepeatedQuestion):
    """One question (by default for the status), repeated until its answer satisfies ``until``.

    Each answer is stored in `status`. ``progress`` is called with the progress of a long operation, when that has
    changed.
    """

    def __init__(
        self,
        endpoint: str,
        until: Callable[[Mapping[str, Any]], bool] = lambda status: True,
        question: Question = m.StatusRequest(1),  # noqa: B008
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(endpoint)
        self.status: Mapping[str, Any] | None = None
        self.text = ""  # the answer in words
        self.findings: Mapping[str, Any] | None = None  # the result of an examination
        self.made: m.Checkpointed | None = None  # the requested checkpoint
        self.lost: Sequence[str] = ()  # members lost with an ended process
        self._question = question
        self._until = until
        self._progress = progress

    @property
    def _ends_all(self) -> bool:
        return isinstance(self._question, m.EndJob) and not self._question.job

    @property
    def title(self) -> str:
        """This client's identity, for errors."""
        return f"an inquiry at {self.endpoint}"

    @property
    def awaited(self) -> str:
        """To answer, or to answer as hoped."""
        return "to answer" if self.status is None and not self.text else "to be ready"

    def _next_question(self) -> m.Message:
        return self._question

    def handle(self, event: NetworkEvent | Stop, now: float) -> list[Action]:
        """Process an answer; any other message is ignored."""
        if isinstance(event, Stop):
            return [Exit(exits.OK, event.reason)]
        if isinstance(event, Connected) and self._due is not None:
            return self.on_deadline(now)  # the earlier question could not be sent
        if isinstance(event, Disconnected) and self._ends_all:
            self._due = None
            return [Exit(exits.OK, "the connection has ended")]  # perhaps with the coordinator, before its answer
        if isinstance(event, Looked):
            self.why = printable(event.why)
            return []
        if isinstance(event, Unreachable):
            self.error, self._due = event.error, None
            return [Exit(exits.FAILED, str(event.error))]
        if not isinstance(event, Received) or self._due is None:
            return []  # it was answered: the answer to the repeated question may differ by now
        message, self._look_due = event.message, None
        if isinstance(message, m.Status):
            self.error = None
            self.status = presented(message.status)
            if not self._until(self.status):
                self._due = now + AGAIN_S
                return []
        elif isinstance(message, m.JobEnded):
            self.text = printable(message.text)
        elif isinstance(message, m.Examined):
            self.findings = presented(message.findings)
        elif isinstance(message, m.ExitNoted):
            self.text, self.lost = "noted", [printable(title) for title in message.lost]
        elif isinstance(message, m.Checkpointed):
            self.made = message
        elif isinstance(message, m.Draining):
            before, self.text = self.text, printable(message.text)
            if message.state == DrainState.GOING:
                if self.text != before:
                    self._progress(self.text)
                self._due = now + PROGRESS_S
                return []
        elif isinstance(message, m.Error) and message.request == self._question.request:
            self.error = from_wire(message.code, message.text, message.facts)
            if isinstance(self.error, LimitError):
                return []  # too many clients at the moment; it is repeated
        else:
            return []
        self._due = None
        return [Exit(exits.OK, "answered")]
