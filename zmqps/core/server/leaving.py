"""A server that is draining: the coordinator moves what it has to others first."""

from __future__ import annotations

from zmqps.core.node.member import Member
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import COORDINATOR, Action, Exit, Log, Send, Stop
from zmqps.core.protocol.messages import Drain, Draining
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.messages.resizing import DrainState

#: How often the coordinator is asked for the progress.
AGAIN_S = 1.0
REQUEST = 1


class Leaving:
    """What a server does after it is asked to end."""

    def __init__(self, member: Member) -> None:  # its membership
        self.due: float | None = None  # when to call `on_deadline`
        self._member = member
        self._reason = ""
        self._ends_at: float | None = None  # whatever has moved by then
        self._text = ""  # the last reported progress
        self._gone = False

    def stop(self, event: Stop, now: float) -> list[Action]:
        """The process must end: at once, when its shards are elsewhere, or after some time."""
        if event.drain_s <= 0 or not self._member.joined:
            return self._end(event.reason, now)
        if self._ends_at is not None:
            return []
        self._reason, self._ends_at = event.reason, now + event.drain_s
        text = f"{event.reason}: handing over what is here, for {event.drain_s:g} s at most; once more to end at once"
        return [Log("info", text), *self._ask(now)]

    def _ask(self, now: float) -> list[Action]:
        assert self._ends_at is not None
        self.due = min(now + AGAIN_S, self._ends_at)
        return [Send(COORDINATOR, Drain(REQUEST, "", 0))]

    def on_deadline(self, now: float) -> list[Action]:
        """Ask for the progress again, or end."""
        if self._ends_at is None:
            self.due = None
            return []
        if now < self._ends_at:  # a silent coordinator is lost before, and this server ends with it
            return self._ask(now)
        left = self._text or "the coordinator does not answer"
        return [Log("warning", f"not everything could be handed over in time ({left})"), *self._end(self._reason, now)]

    def told(self, message: Draining, now: float) -> list[Action]:
        """The coordinator reports the progress, whether this process or a client has asked for it."""
        if self._gone:
            return []
        if message.state == DrainState.GONE:
            self._gone, self.due = True, None
            text = f"drained: {message.text}"
            goodbye = self._member.leave(DepartureCause.DRAINED, now)
            return [Log("info", text), *goodbye, Exit(exits.OK, text, done=True)]
        if message.state == DrainState.GOING:
            news, self._text = message.text != self._text, message.text
            return [Log("info", message.text)] if news else []
        if self._ends_at is None:
            return [Log("warning", f"this server stays: {message.text}")]
        return [Log("warning", f"nothing can be handed over: {message.text}"), *self._end(self._reason, now)]

    def _end(self, reason: str, now: float) -> list[Action]:
        self._gone, self.due = True, None
        return [*self._member.leave(DepartureCause.CLOSED, now), Exit(exits.OK, reason)]
