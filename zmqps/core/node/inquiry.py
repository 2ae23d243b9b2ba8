"""Asks the coordinator for something, without joining, until the answer is satisfactory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zmqps.core.node.handshake import FIRST_RETRY_S, SLOWEST_RETRY_S
from zmqps.core.protocol import exits
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
from zmqps.core.protocol.messages import (
    Checkpoint,
    Checkpointed,
    Drain,
    Draining,
    EndJob,
    Error,
    Examine,
    Examined,
    JobEnded,
    Scale,
    Status,
    StatusRequest,
    Watch,
    Watched,
)
from zmqps.core.protocol.resizing import GOING
from zmqps.errors import LimitError, PSError, from_wire, printable

#: Without an answer for so long, it is looked why.
LOOK_S = 0.8
#: How soon to ask again after an answer that is not satisfactory yet; and how far something is that takes long.
AGAIN_S, PROGRESS_S = 0.05, 0.25


class Inquiry:
    """One question, repeated until it is answered as hoped.

    Parameters
    ----------
    endpoint
        The coordinator's endpoint.
    until
        Whether a status is satisfactory; each one is kept in `status` in any case.
    question
        What to ask; by default for the status.
    progress
        Called with how far it is, when that has changed, where what is asked for takes long.
    """

    def __init__(
        self,
        endpoint: str,
        until: Callable[[Mapping[str, Any]], bool] = lambda status: True,
        question: StatusRequest | Watch | EndJob | Checkpoint | Drain | Scale | Examine = StatusRequest(1),  # noqa: B008
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.endpoint = endpoint
        self.status: Mapping[str, Any] | None = None
        self.text = ""  # what was answered in words
        self.findings: Mapping[str, Any] | None = None  # what an examination has shown
        self.made: Checkpointed | None = None  # the checkpoint that was asked for
        self.error: PSError | None = None  # why it is refused
        self._question = question
        self._until = until
        self._progress = progress
        self.why = ""  # nobody answers, in words
        self._due: float | None = None
        self._look_due: float | None = None
        self._retry_s = FIRST_RETRY_S

    @property
    def _ends_all(self) -> bool:
        return isinstance(self._question, EndJob) and not self._question.job

    @property
    def title(self) -> str:
        """Who this is, for errors."""
        return f"an inquiry at {self.endpoint}"

    def start(self, now: float) -> list[Action]:
        """Open the connection and ask."""
        self._look_due = now + LOOK_S
        return [Connect(COORDINATOR, self.endpoint), *self.on_deadline(now)]

    def handle(self, event: NetworkEvent | Stop, now: float) -> list[Action]:
        """Take an answer; anything else is not for us."""
        if isinstance(event, Stop):
            return [Exit(exits.OK, event.reason)]
        if isinstance(event, Connected) and self._due is not None:
            return self.on_deadline(now)  # what was asked before had nowhere to go
        if isinstance(event, Disconnected) and self._ends_all:
            self._due = None
            return [Exit(exits.OK, "the connection has ended")]  # perhaps with the coordinator, before its answer came
        if isinstance(event, Looked):
            self.why = printable(event.why)
            return []
        if isinstance(event, Unreachable):
            self.error, self._due = event.error, None
            return [Exit(exits.FAILED, str(event.error))]
        message = event.message if isinstance(event, Received) else None
        if message is not None:
            self._look_due = None
        if isinstance(message, Status | Watched):
            self.error = None
            self.status = presented(message.status if isinstance(message, Status) else message.view)
            if not self._until(self.status):
                self._due = now + AGAIN_S
                return []
        elif isinstance(message, JobEnded):
            self.text = printable(message.text)
        elif isinstance(message, Examined):
            self.findings = presented(message.findings)
        elif isinstance(message, Checkpointed):
            self.made = message
        elif isinstance(message, Draining):
            before, self.text = self.text, printable(message.text)
            if message.state == GOING:
                if self.text != before:
                    self._progress(self.text)
                self._due = now + PROGRESS_S
                return []
        elif isinstance(message, Error) and message.request == self._question.request:
            self.error = from_wire(message.code, message.text, message.facts)
            if isinstance(self.error, LimitError):
                return []  # too many ask at the moment; it is asked again
        else:
            return []
        self._due = None
        return [Exit(exits.OK, "answered")]

    def next_deadline(self) -> float | None:
        """Return when to ask again."""
        return self._due

    def on_deadline(self, now: float) -> list[Action]:
        """Ask (again): the connection may not have been up, or the answer got lost."""
        self._due = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, SLOWEST_RETRY_S)
        actions: list[Action] = [Send(COORDINATOR, self._question)]
        if self._look_due is not None and now >= self._look_due:
            self._look_due = None
            actions.append(Look(COORDINATOR, self.endpoint))
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        assert FIRST_RETRY_S <= self._retry_s <= SLOWEST_RETRY_S


def presented(value: Any) -> Any:
    """Return a status whose texts, many of which others have chosen, can be shown."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): presented(item) for name, item in value.items()}
    return [presented(item) for item in value] if isinstance(value, list) else value
