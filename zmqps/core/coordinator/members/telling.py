"""Sends members the job they requested, at intervals if that would delay others.

The description of a large model takes milliseconds to send, and is requested by a hundred bytes. A worker that has
named the job has sent as much itself, and gets it at once. Others get it a few at a time; those that have had it before
come last.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable

from zmqps.core.coordinator.members.membership import MAX_ANSWERED, MemberInfo
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Peer, Send
from zmqps.core.protocol.messages import Job

#: The time to send a job, and each of its parameters.
TELL_S = 50e-6
PARAMETER_S = 1e-6
#: Sending takes at most half of the time; resending a tenth, but for as much as fits into `BURST_S`.
FIRST_SHARE = 2.0
AGAIN_SHARE = 10.0
BURST_S = 0.1
#: A waiting member may repeat its request this often, except for a few times: others need time, too.
REPEAT_S = 0.5
REPEAT_BURST_S = 1.0


class Line:
    """Members waiting for a job, in turns; each has a few requests."""

    def __init__(self, share: float) -> None:
        self._share = share  # the pause after a job, in multiples of its sending time
        self._members: OrderedDict[bytes, tuple[MemberInfo, deque[int]]] = OrderedDict()
        self._due = -math.inf  # when the next one may be sent

    def add(self, member: MemberInfo, request: int) -> None:
        """Queue a member; of many requests the newest count, as for remembered answers."""
        _, requests = self._members.setdefault(member.incarnation, (member, deque(maxlen=MAX_ANSWERED)))
        if request not in requests:
            requests.append(request)

    def next_deadline(self) -> float | None:
        """Return when the next one can be sent; None if none waits."""
        return self._due if self._members else None

    def due(self, now: float) -> list[Action]:
        """Send the next ones; forgotten answers are not sent."""
        told: list[Action] = []
        while self._members and now >= self._due:
            incarnation, (member, requests) = self._members.popitem(last=False)
            answer = member.answers.by_request.get(requests.popleft())
            if requests:
                self._members[incarnation] = member, requests
            if isinstance(answer, Job):
                told.append(Send(member.peer, answer))
                self._due = max(self._due, now - BURST_S) + self._share * cost(answer)
        return told

    def validate(self) -> None:
        """Assert that each queued member waits for something."""
        for _, requests in self._members.values():
            assert requests


class Telling:
    """The pending answers to `Init` of the members of all jobs."""

    def __init__(self, find: Callable[[Peer], MemberInfo | None], wheel: Wheel) -> None:
        self._timer = wheel.timer("telling jobs", self.next_deadline, self.on_deadline)
        self._find = find
        self._first = Line(FIRST_SHARE)
        self._again = Line(AGAIN_SHARE)

    def space(self, actions: list[Action], now: float) -> list[Action]:
        """Return actions, with the jobs among them as far as it is their turn."""
        spaced: list[Action] = []
        for action in actions:
            message = action.message if isinstance(action, Send) else None
            member = self._find(action.peer) if isinstance(action, Send) else None
            if member is None or not isinstance(message, Job) or message.load:
                spaced.append(action)
                continue
            if member.telling.told:
                self._again.add(member, message.request)
            elif member.telling.named:
                spaced.append(action)
            else:
                self._first.add(member, message.request)
            member.telling.told = True
        self._timer.touch()
        return [*spaced, *self.on_deadline(now)]

    def too_soon(self, member: MemberInfo, now: float) -> bool:
        """Whether a member has repeated a pending request too often."""
        due = max(member.telling.again_at, now)
        if due > now + REPEAT_BURST_S:
            return True
        member.telling.again_at = due + REPEAT_S
        return False

    def next_deadline(self) -> float | None:
        dues = (self._first.next_deadline(), self._again.next_deadline())
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Send the jobs whose turn it is."""
        return [*self._first.due(now), *self._again.due(now)]

    def validate(self) -> None:
        self._first.validate()
        self._again.validate()


def cost(job: Job) -> float:
    """Return about how many seconds it takes to send a job."""
    return TELL_S + PARAMETER_S * len(job.job["parameters"])
