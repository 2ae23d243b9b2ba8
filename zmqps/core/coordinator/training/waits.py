"""Tells those that wait at the coordinator for whom: a message each, however often that changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Waiting
from zmqps.errors import counted

#: Seconds between two such messages to a member that waits, however often the answer changes.
TELL_S = 0.1
#: Of many who wait so many are told at a time, and the next ones so much later: what others ask goes before.
MOST_TOLD = 64
PIECE_S = 0.02

Waiter = tuple[MemberInfo, int, Callable[[], str]]  # who waits, with which request, and what says for whom


def not_joined(missing: int, there: int) -> str:
    """Say how many workers have not come, of how many that are expected, and what to do; ``there``: how many have."""
    them, have = ("it", "has") if missing == 1 else ("them", "have")
    begin = f", or begin with {'the one' if there == 1 else 'those'} here: init(workers={there})" if there else ""
    return f"{missing} of {counted(missing + there, 'worker')} that {have} not joined the job (start {them}{begin})"


class Waiters:
    """Those of a job who wait: for its start, at named barriers, for a step, for a range of data."""

    def __init__(self, waiters: Callable[[], Iterator[Waiter]], explain: Callable[[str], str] = str) -> None:
        self.due: float | None = None  # when they want to be told; None: nothing has changed since they were
        self._waiters = waiters
        self._explain = explain  # adds why
        self._to_tell: deque[Waiter] = deque()
        self._changed = False  # since the first of them was told

    def tell_soon(self, now: float) -> None:
        """Somebody waits, and for whom may just have changed."""
        if self._to_tell:
            self._changed = True
        elif self.due is None:
            self.due = now + TELL_S

    def on_deadline(self, now: float) -> list[Action]:
        """Tell some of those who wait for whom, if it is time."""
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
