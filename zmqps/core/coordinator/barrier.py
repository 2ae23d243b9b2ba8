"""Named barriers: who has entered, who is awaited. By identity, never by counting messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from zmqps.core.coordinator.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Enter, Released, Waiting
from zmqps.errors import LimitError, PSError, listed

#: Barriers with a name of their own that can be waited at at the same time.
MAX_BARRIERS = 1024
#: How many of the awaited members an error names.
MOST_NAMED = 8


@dataclass(slots=True)
class Barrier:
    """One barrier that somebody waits at."""

    name: str
    waiters: dict[bytes, int] = field(default_factory=dict)  # incarnation -> request


class Barriers:
    """All barriers that somebody waits at.

    Parameters
    ----------
    members
        The live members by incarnation; shared with the coordinator's membership.
    pause
        Called with a worker and a reason when it begins to wait at a barrier: no step may wait for
        it meanwhile, or it and those it waits for would wait for each other.
    resume
        Called when one waits no more; returns the clock it goes on with if it was paused, else 0.
    """

    def __init__(
        self,
        members: Mapping[bytes, MemberInfo],
        pause: Callable[[MemberInfo, str], None],
        resume: Callable[[MemberInfo, str], int],
    ) -> None:
        self.by_name: dict[str, Barrier] = {}
        self._members = members
        self._pause = pause
        self._resume = resume

    def enter(self, member: MemberInfo, message: Enter, missing: int) -> list[Action]:
        """A worker enters; ``missing`` are expected and have not joined yet.

        Raises
        ------
        LimitError
            Too many barriers are waited at.
        """
        name = message.barrier
        if name not in self.by_name and len(self.by_name) >= MAX_BARRIERS:
            raise LimitError(what="number of barriers", got=len(self.by_name) + 1, limit=MAX_BARRIERS)
        barrier = self.by_name.setdefault(name, Barrier(name))
        barrier.waiters[member.incarnation] = message.request
        self._pause(member, _reason(barrier))
        awaited = self.waiting_for(barrier, missing)
        return [Send(member.peer, Waiting(message.request, awaited))] if awaited else self._release(barrier)

    def release(self, missing: int) -> list[Action]:
        """Release the barriers that everybody has entered; called when an awaited member has gone."""
        complete = [barrier for barrier in self.by_name.values() if not self.waiting_for(barrier, missing)]
        return [action for barrier in complete for action in self._release(barrier)]

    def _release(self, barrier: Barrier) -> list[Action]:
        return [
            member.answer(request, Released(request, self._resume(member, _reason(barrier))))
            for member, request in self._close(barrier)
        ]

    def lose(self, member: MemberInfo, error: PSError) -> list[Action]:
        """A worker vanished: those who wait for it fail."""
        broken = [barrier for barrier in self.by_name.values() if member.incarnation not in barrier.waiters]
        actions: list[Action] = []
        for barrier in broken:
            for waiter, request in self._close(barrier):
                self._resume(waiter, _reason(barrier))
                actions.append(waiter.fail(request, error))
        return actions

    def _close(self, barrier: Barrier) -> list[tuple[MemberInfo, int]]:
        del self.by_name[barrier.name]
        return [(self._members[who], request) for who, request in barrier.waiters.items()]

    def withdraw(self, member: MemberInfo, request: int | None = None) -> None:
        """A worker no longer waits (for one request, or for anything)."""
        for barrier in list(self.by_name.values()):
            waits = barrier.waiters.get(member.incarnation)
            if waits is not None and request in (None, waits):
                del barrier.waiters[member.incarnation]
                self._resume(member, _reason(barrier))
                if not barrier.waiters:
                    del self.by_name[barrier.name]

    def waiting_for(self, barrier: Barrier, missing: int) -> str:
        """Say whom a barrier waits for; nothing when everybody has entered."""
        workers = sorted((m for m in self._members.values() if m.role == "worker"), key=lambda m: m.rank)
        awaited = [worker.title for worker in workers if worker.incarnation not in barrier.waiters]
        texts = [listed(awaited, MOST_NAMED)] if awaited else []
        texts += [f"{missing} workers to join"] if missing else []
        return ", ".join(texts)

    def waiters(self, missing: int) -> Iterator[tuple[MemberInfo, int, str]]:
        """Yield who waits, with the request, for whom."""
        for barrier in self.by_name.values():
            text = self.waiting_for(barrier, missing)
            for incarnation, request in barrier.waiters.items():
                yield self._members[incarnation], request, text

    def validate(self) -> None:
        """Assert that every barrier has a waiter, and every waiter is a member."""
        assert all(barrier.waiters for barrier in self.by_name.values())
        assert all(set(barrier.waiters) <= set(self._members) for barrier in self.by_name.values())


def _reason(barrier: Barrier) -> str:
    return f"barrier {barrier.name!r}"
