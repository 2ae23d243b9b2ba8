"""Asks the coordinator something, without joining, until the answer is satisfactory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from zmqps.core.node.asking import RepeatedQuestion
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import (
    Action,
    Connected,
    Disconnected,
    Exit,
    Looked,
    NetworkEvent,
    Received,
    Stop,
    Unreachable,
)
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import LimitError, from_wire, presented, printable

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
