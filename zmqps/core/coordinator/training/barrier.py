"""Named barriers: the workers that have entered, and those awaited. By identity, never by counting messages.

An event costs only what it concerns: the barriers of its member, never all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.members.places import Attendance
from zmqps.core.coordinator.training.waits import Waiter, not_joined
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Enter, Released, Waiting
from zmqps.core.protocol.messages.hello import check_name
from zmqps.errors import LimitError, PSError, counted, listed

#: A worker waits at one, or at a few from several threads; the bound keeps it from using up what others need.
MAX_BARRIERS = 16
#: The most awaited members that an error names.
MOST_NAMED = 8
#: Up to this many a worker that enters gets names at once; thousands may enter one after the other.
MOST_LOOKED_AT = 32


@dataclass(slots=True)
class Barrier:
    """One barrier with waiting workers."""

    name: str
    waiters: dict[bytes, int] = field(default_factory=dict)  # incarnation -> request


class Barriers:
    """All barriers with waiting workers.

    A waiting worker is *paused*: no step may wait for it meanwhile, or it and those it waits for would wait for each
    other. All that enter are among the awaited ones; idle members need not be.
    """

    def __init__(
        self,
        members: Mapping[bytes, MemberInfo],
        awaited: Callable[[], Roster | Attendance],
        pause: Callable[[MemberInfo, str], None],
        resume: Callable[[MemberInfo, str], int],
    ) -> None:
        self.by_name: dict[str, Barrier] = {}
        self._members = members
        self._awaited = awaited
        self._of: dict[bytes, dict[str, Barrier]] = {}  # the barriers of each member
        self._pause = pause
        self._resume = resume

    def enter(self, member: MemberInfo, message: Enter, missing: int) -> list[Action]:
        """A worker enters; ``missing`` are expected and have not joined yet. `release` follows.

        Raises `LimitError`: it waits at too many barriers, or the name is too long; `ProtocolError`: the name has
        unprintable characters.
        """
        name = check_name("a barrier's name", message.barrier)
        entered = self._of.get(member.incarnation, {})
        if name not in entered and len(entered) >= MAX_BARRIERS:
            raise LimitError(what="number of barriers of a worker", got=len(entered) + 1, limit=MAX_BARRIERS)
        barrier = self.by_name.setdefault(name, Barrier(name))
        barrier.waiters[member.incarnation] = message.request
        self._of.setdefault(member.incarnation, {})[name] = barrier
        self._pause(member, _reason(barrier))
        if self._complete(barrier, missing):
            return []  # `release` follows, after the steps that need not wait for workers in barriers
        return [Send(member.peer, Waiting(message.request, self.waiting_for(barrier, missing, MOST_LOOKED_AT)))]

    def release(self, missing: int) -> list[Action]:
        """Release the barriers that all have entered; called after an entry, or the departure of an awaited member."""
        anybody = next(iter(self._awaited()), None) if self.by_name else None
        entered = self._of.get(anybody.incarnation, {}) if anybody else {}  # no other barrier can be complete
        complete = [barrier for barrier in entered.values() if self._complete(barrier, missing)]
        return [action for barrier in complete for action in self._release(barrier)]

    def _complete(self, barrier: Barrier, missing: int) -> bool:
        return not missing and len(barrier.waiters) == len(self._awaited())  # all waiting ones are awaited

    def _release(self, barrier: Barrier) -> list[Action]:
        return [
            member.answer(request, Released(request, self._resume(member, _reason(barrier))))
            for member, request in self._close(barrier)
        ]

    def lose(self, member: MemberInfo, error: PSError) -> list[Action]:
        """A worker was lost: those that wait for it fail."""
        entered = self._of.get(member.incarnation, {})
        broken = [barrier for name, barrier in self.by_name.items() if name not in entered]
        actions: list[Action] = []
        for barrier in broken:
            for waiter, request in self._close(barrier):
                self._resume(waiter, _reason(barrier))
                actions.append(waiter.fail(request, error))
        return actions

    def dismiss(self, member: MemberInfo, error: PSError) -> list[Action]:
        """A worker does not count any more: its waits fail."""
        requests = [barrier.waiters[member.incarnation] for barrier in self._of.get(member.incarnation, {}).values()]
        self.withdraw(member)
        return [member.fail(request, error) for request in requests]

    def _close(self, barrier: Barrier) -> list[tuple[MemberInfo, int]]:
        del self.by_name[barrier.name]
        for who in barrier.waiters:
            self._forget(who, barrier)
        return [(self._members[who], request) for who, request in barrier.waiters.items()]

    def _forget(self, who: bytes, barrier: Barrier) -> None:
        del self._of[who][barrier.name]
        if not self._of[who]:
            del self._of[who]

    def withdraw(self, member: MemberInfo, request: int | None = None) -> None:
        """A worker no longer waits (for one request, or for anything)."""
        for barrier in list(self._of.get(member.incarnation, {}).values()):
            if request in (None, barrier.waiters[member.incarnation]):
                del barrier.waiters[member.incarnation]
                self._forget(member.incarnation, barrier)
                self._resume(member, _reason(barrier))
                if not barrier.waiters:
                    del self.by_name[barrier.name]

    def waiting_for(self, barrier: Barrier, missing: int, looked_at: int | None = None) -> str:
        """Return the workers that a barrier waits for; none when all have entered."""
        everybody = self._awaited()
        workers = islice(everybody, looked_at)
        awaited = (worker.title for worker in workers if worker.incarnation not in barrier.waiters)
        number = len(everybody) - len(barrier.waiters)
        names = listed(list(islice(awaited, MOST_NAMED)), MOST_NAMED, number)
        texts = [names or counted(number, "worker")] if number else []
        texts += [not_joined(missing, len(everybody))] if missing else []
        return ", ".join(texts)

    def waiters(self, missing: int) -> Iterator[Waiter]:
        """Yield the waiting workers, with the request, and a function that says what it waits for."""
        for barrier in self.by_name.values():
            say = partial(self.waiting_for, barrier, missing)
            for incarnation, request in barrier.waiters.items():
                yield self._members[incarnation], request, say

    def validate(self) -> None:
        """Assert that every barrier has a waiting worker, and every waiting one is awaited itself."""
        if not self.by_name:
            assert not self._of
            return
        assert all(barrier.waiters for barrier in self.by_name.values())
        workers = {worker.incarnation for worker in self._awaited()}
        assert all(set(barrier.waiters) <= workers for barrier in self.by_name.values())
        of = {who: {name for name, b in self.by_name.items() if who in b.waiters} for who in workers}
        assert {who: set(entered) for who, entered in self._of.items()} == {
            who: names for who, names in of.items() if names
        }
        assert all(len(entered) <= MAX_BARRIERS for entered in self._of.values())


def _reason(barrier: Barrier) -> str:
    return f"barrier {barrier.name!r}"
