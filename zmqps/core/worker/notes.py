"""How what a script logs reaches the coordinator: in portions, until it is confirmed."""

from __future__ import annotations

from zmqps.core.node.member import Member, MemberPart
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.protocol.messages import Note, Noted
from zmqps.core.worker.notebook import Notebook

#: The delay of the next message after an answer: two a second are enough to look at.
PAUSE_S = 0.5
#: … and if more is stored than fits into one.
SHORT_PAUSE_S = 0.1
#: An unanswered message is resent after this long: a coordinator may have been too busy to take it.
RETRY_S = 3.0
#: The longest a finishing worker waits until the coordinator has what it has logged.
LAST_S = 2.0


class NoteSender(MemberPart):
    """One life's path to the coordinator for what its script logs.

    One message is in flight at a time. No timer runs while nothing is logged: the first check after a pause is with a
    heartbeat.
    """

    def __init__(self, notebook: Notebook, member: Member) -> None:
        self.notebook = notebook
        self._member = member
        self._is_out = False  # a message is in flight
        self._not_before = 0.0
        self._gives_up_at: float | None = None  # the stored calls, because the worker has finished
        notebook.begin()

    @property
    def _reachable(self) -> bool:
        return self._member.joined and not self._member.unsure

    def on_deadline(self, now: float) -> list[Action]:
        """Check what the script has logged, and send it if it is time."""
        self.notebook.take()
        actions: list[Action] = []
        if not self.notebook or not self._reachable:
            self.due = None
        else:
            if now >= self._not_before:
                self._is_out, self._not_before = True, now + RETRY_S
                actions = [Send(COORDINATOR, Note(*self.notebook.send(now)))]
            self.due = self._not_before
            if self._gives_up_at is not None and now < self._gives_up_at:
                self.due = min(self.due, self._gives_up_at)
        self._member.set_due()
        return actions

    def end(self) -> None:
        """Stop sending."""
        self.due = None

    def noted(self, message: Noted, now: float) -> list[Action]:
        """The coordinator has what was sent."""
        before = len(self.notebook)
        self.notebook.confirm(message.upto)
        if not self._is_out or len(self.notebook) == before:
            return []  # a repeated answer
        self._is_out = False
        if self._gives_up_at is not None:
            self._not_before = now
            return self.on_deadline(now)
        self.due = self._not_before = now + (SHORT_PAUSE_S if self.notebook else PAUSE_S)
        self._member.set_due()
        return []

    def again(self, now: float) -> list[Action]:
        """Resend what may be lost with a connection, or with the earlier coordinator."""
        if self._is_out:
            self._not_before = now
        return self.on_deadline(now)

    def finish(self, now: float) -> list[Action]:
        """No more is logged: send everything, without pauses."""
        self._gives_up_at = now + LAST_S
        if not self._is_out:
            self._not_before = now
        return self.on_deadline(now)

    def waits(self, now: float) -> bool:
        """Whether a finishing worker waits for an answer to what it has logged."""
        return bool(self.notebook) and self._reachable and self._gives_up_at is not None and now < self._gives_up_at

    def last(self, now: float) -> list[Action]:
        """Send everything without waiting for an answer, before a goodbye."""
        self.notebook.take()
        if not self._reachable:
            return []
        return [Send(COORDINATOR, Note(*some)) for some in self.notebook.rest(now)]

    def validate(self) -> None:
        """Assert the invariants."""
        self.notebook.validate()
