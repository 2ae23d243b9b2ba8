"""Named barriers: who has entered, who is awaited. By identity, never by counting messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from zmqps.errors import LimitError

#: Barriers with a name of their own that can be waited at at the same time.
MAX_BARRIERS = 1024

Waiter = tuple[bytes, int]  # incarnation, request


@dataclass(slots=True)
class Barrier:
    """One barrier that somebody waits at."""

    name: str
    since: float
    waiters: dict[bytes, int] = field(default_factory=dict)  # incarnation -> request

    def awaited(self, workers: Iterable[bytes]) -> list[bytes]:
        """Return those of ``workers`` who have not entered."""
        return [worker for worker in workers if worker not in self.waiters]


class Barriers:
    """All barriers that somebody waits at."""

    def __init__(self) -> None:
        self.by_name: dict[str, Barrier] = {}

    def enter(self, name: str, incarnation: bytes, request: int, now: float) -> Barrier:
        """A worker enters."""
        if name not in self.by_name and len(self.by_name) >= MAX_BARRIERS:
            raise LimitError(what="number of barriers", got=len(self.by_name) + 1, limit=MAX_BARRIERS)
        barrier = self.by_name.setdefault(name, Barrier(name, now))
        barrier.waiters[incarnation] = request
        return barrier

    def close(self, barrier: Barrier) -> list[Waiter]:
        """End a barrier and return who waited at it."""
        del self.by_name[barrier.name]
        return list(barrier.waiters.items())

    def withdraw(self, incarnation: bytes, request: int | None = None) -> None:
        """A worker no longer waits (for one request, or for anything)."""
        for barrier in list(self.by_name.values()):
            if request is None or barrier.waiters.get(incarnation) == request:
                barrier.waiters.pop(incarnation, None)
                if not barrier.waiters:
                    del self.by_name[barrier.name]

    def validate(self) -> None:
        """Assert that every barrier has a waiter."""
        assert all(barrier.waiters for barrier in self.by_name.values())
