"""How what a script logs comes to the coordinator: some at a time, until that has confirmed it."""

from __future__ import annotations

from zmqps.core.node.member import Member, MemberPart
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.protocol.messages import Note, Noted
from zmqps.core.worker.notebook import Notebook

#: After an answer the next message leaves so much later: two a second show all that anybody can look at.
PAUSE_S = 0.5
#: … and where more is kept than one takes.
SHORT_PAUSE_S = 0.1
#: What is not answered is sent again after so long: a coordinator may have been too busy to take it.
RETRY_S = 3.0
#: A worker that finishes waits so long at most until the coordinator has what it has logged.
LAST_S = 2.0


class NoteSender(MemberPart):
    """One life's way to the coordinator for what its script logs.

    There is one message on its way at a time. Nothing rings while nothing is logged: the first look after a pause is
    with a heartbeat.
    """

    def __init__(self, notebook: Notebook, member: Member) -> None:
        self.notebook = notebook
        self._member = member
        self._is_out = False  # a message is on its way
        self._not_before = 0.0
        self._gives_up_at: float | None = None  # what is kept, because the worker has finished
        notebook.begin()

    @property
    def _reachable(self) -> bool:
        return self._member.joined and not self._member.unsure

    def on_deadline(self, now: float) -> list[Action]:
        """See what the script has logged, and send it if it is time."""
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
        """Send nothing any more."""
        self.due = None

    def noted(self, message: Noted, now: float) -> list[Action]:
        """The coordinator has what was sent."""
        before = len(self.notebook)
        self.notebook.confirm(message.upto)
        if not self._is_out or len(self.notebook) == before:
            return []  # said before, and once more
        self._is_out = False
        if self._gives_up_at is not None:
            self._not_before = now
            return self.on_deadline(now)
        self.due = self._not_before = now + (SHORT_PAUSE_S if self.notebook else PAUSE_S)
        self._member.set_due()
        return []

    def again(self, now: float) -> list[Action]:
        """Send again what may be lost with a connection, or with what the coordinator was."""
        if self._is_out:
            self._not_before = now
        return self.on_deadline(now)

    def finish(self, now: float) -> list[Action]:
        """Nothing more is logged: send all, without pauses."""
        self._gives_up_at = now + LAST_S
        if not self._is_out:
            self._not_before = now
        return self.on_deadline(now)

    def waits(self, now: float) -> bool:
        """Whether a worker that has finished waits for an answer to what it has logged."""
        return bool(self.notebook) and self._reachable and self._gives_up_at is not None and now < self._gives_up_at

    def last(self, now: float) -> list[Action]:
        """Send all there is without waiting for an answer, ahead of a goodbye."""
        self.notebook.take()
        if not self._reachable:
            return []
        return [Send(COORDINATOR, Note(*some)) for some in self.notebook.rest(now)]

    def validate(self) -> None:
        """Assert the invariants."""
        self.notebook.validate()
