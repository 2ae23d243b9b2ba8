"""Informs members that wait at the coordinator what they wait for: a message each, however often that changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Waiting
from zmqps.errors import counted

#: Seconds between two such messages to a waiting member, however often the answer changes.
TELL_S = 0.1
#: With many waiting members this many are informed at a time, and the next ones so much later, after others' requests.
MOST_TOLD = 64
PIECE_S = 0.02

Waiter = tuple[MemberInfo, int, Callable[[], str]]  # member, request, what says why it waits


def not_joined(missing: int, there: int) -> str:
    """Return how many of the expected workers are missing, and what to do; ``there``: how many have joined."""
    them, have = ("it", "has") if missing == 1 else ("them", "have")
    begin = f", or begin with {'the one' if there == 1 else 'those'} here: init(workers={there})" if there else ""
    return f"{missing} of {counted(missing + there, 'worker')} that {have} not joined the job (start {them}{begin})"


class Waiters:
    """A job's waiting members: for its start, at named barriers, for a step, for a range of data."""

    def __init__(self, waiters: Callable[[], Iterator[Waiter]], explain: Callable[[str], str] = str) -> None:
        self.due: float | None = None  # when to inform them; None: nothing has changed since the last time
        self._waiters = waiters
        self._explain = explain  # adds the reason
        self._to_tell: deque[Waiter] = deque()
        self._changed = False  # since the first of them was informed

    def tell_soon(self, now: float) -> None:
        """A member waits, and the reason may just have changed."""
        if self._to_tell:
            self._changed = True
        elif self.due is None:
            self.due = now + TELL_S

    def on_deadline(self, now: float) -> list[Action]:
        """Inform some of the waiting members, if it is time."""
        if self.due is None or now < self.due:
            return []
        if not self._to_tell:
            self._to_tell.extend(self._waiters())
            self._changed = False
        texts: dict[Callable[[], str], str] = {}
        actions: list[Action] = []
        for _ in range(min(MOST_TOLD, len(self._to_tell))):
            member, request, say = self._to_tell.popleft()
            if say not in texts:
                texts[say] = self._explain(say())
            actions.append(Send(member.peer, Waiting(request, texts[say])))
        self.due = now + PIECE_S if self._to_tell else None
        if self._changed:
            self.tell_soon(now)
        return actions
