"""What spare workers ask for: kept until they count, for where a number of workers is expected no others take part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.training.waits import Waiter
from zmqps.core.job.data import DataSpec
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Arrive, Enter, Take
from zmqps.core.protocol.messages.hello import check_name
from zmqps.errors import LimitError, PSError, counted

#: A worker completes one step at a time, and waits at a few barriers and for ranges of a few data sets.
MAX_KEPT = 32

Kept = Arrive | Enter | Take


class Spares:
    """Requests of workers for which a job has no place yet."""

    def __init__(self, members: Mapping[bytes, MemberInfo]) -> None:
        self._members = members
        self._kept: dict[bytes, dict[int, Kept]] = {}  # by incarnation and request, in the order they came

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, member: MemberInfo, message: Kept) -> None:
        """Keep a request; of steps that are completed the last one counts.

        Raises `LimitError`: these are too many; `ProtocolError` or `ConfigurationError`: it would be refused of a
        worker that counts, too.
        """
        if isinstance(message, Enter):
            check_name("a barrier's name", message.barrier)
        elif isinstance(message, Take):
            DataSpec.of(message)
            message = replace(message, shuffle=tuple(message.shuffle[:1]), done=tuple(message.done[:3]))
        kept = self._kept.get(member.incarnation, {})
        others = {n: m for n, m in kept.items() if n != message.request and not (_arrives(m) and _arrives(message))}
        if len(others) >= MAX_KEPT:
            raise LimitError(what="number of requests of a spare worker", got=len(others) + 1, limit=MAX_KEPT)
        self._kept[member.incarnation] = {**others, message.request: message}

    def take(self, member: MemberInfo) -> list[Kept]:
        """Return what a worker has asked for that counts now, or has gone, and forget it."""
        return list(self._kept.pop(member.incarnation, {}).values())

    def withdraw(self, member: MemberInfo, request: int) -> None:
        """A worker no longer waits for a request."""
        kept = self._kept.get(member.incarnation, {})
        if kept.pop(request, None) is not None and not kept:
            del self._kept[member.incarnation]

    def fail(self, error: PSError, *, arrivals_only: bool = False) -> list[Action]:
        """Answer what is kept, or completed steps alone, by an error."""
        actions: list[Action] = []
        for who, kept in list(self._kept.items()):
            for request, message in list(kept.items()):
                if not arrivals_only or _arrives(message):
                    self.withdraw(self._members[who], request)
                    actions.append(self._members[who].fail(request, error))
        return actions

    def go_back(self) -> None:
        """Steps that were completed are gone; whoever had asked for the next one asks again."""
        for who, kept in list(self._kept.items()):
            for request in [request for request, message in kept.items() if _arrives(message)]:
                self.withdraw(self._members[who], request)

    def waiters(self, expected: int) -> Iterator[Waiter]:
        """Yield who waits, with the request, and what says for what."""
        text = waiting_for(expected)

        def say() -> str:
            return text

        for who, kept in self._kept.items():
            for request in kept:
                yield self._members[who], request, say

    def validate(self, spares: Mapping[bytes, MemberInfo]) -> None:
        """Assert that they are spares, and nothing is kept for nobody."""
        assert set(self._kept) <= set(spares) <= set(self._members)
        assert all(kept and len(kept) <= MAX_KEPT for kept in self._kept.values())


def waiting_for(expected: int) -> str:
    """Say what a spare waits for."""
    return f"a place among the {counted(expected, 'worker')} that the job expects: it is a spare"


def _arrives(message: Kept) -> bool:
    return isinstance(message, Arrive)
