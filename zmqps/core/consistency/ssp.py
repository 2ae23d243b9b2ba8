"""Stale synchronous parallel: the fastest worker is at most ``staleness`` clocks ahead of the slowest."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.consistency.base import Decision, Policy, Released


class Bounded(Policy):
    """A worker at clock c reads only when the slowest live worker has reached c − staleness.

    A clock is the number of steps a worker has completed. Updates are applied on arrival, and a
    worker completes a step only when all shards have acknowledged its push, so a read at clock c
    sees every update of every worker up to its clock c − staleness (Ho et al., More Effective
    Distributed ML via a Stale Synchronous Parallel Parameter Server, 2013).

    A worker that joins late begins at the slowest clock: nobody waits for it to catch up.
    """

    mode = "ssp"

    def __init__(self, staleness: int) -> None:
        assert staleness > 0
        self.staleness = staleness
        self.clocks: dict[bytes, int] = {}
        self._waiting: dict[bytes, None] = {}
        self._paused: set[bytes] = set()

    @property
    def slowest(self) -> int:
        """The clock of the slowest live worker; while all are paused, of the slowest of them."""
        live = [clock for worker, clock in self.clocks.items() if worker not in self._paused]
        return min(live or self.clocks.values(), default=0)

    def join(self, worker: bytes) -> int:
        """A worker begins to train at the slowest clock, or goes on there if the others have passed it."""
        if worker in self._paused:
            self.clocks[worker] = max(self.clocks[worker], self.slowest)
            self._paused.remove(worker)
        return self.clocks.setdefault(worker, self.slowest)

    def pause(self, worker: bytes) -> None:
        """A worker's clock stands still for a while and holds up nobody."""
        if worker in self.clocks:
            self._paused.add(worker)

    def leave(self, worker: bytes) -> None:
        """A worker trains no more: the slowest may be another one now."""
        self.clocks.pop(worker, None)
        self._waiting.pop(worker, None)
        self._paused.discard(worker)

    def arrive(self, worker: bytes, step: int, attempts: tuple[int, ...], now: float) -> None:
        """A worker has completed its step."""
        if worker in self.clocks:
            self.clocks[worker] = max(self.clocks[worker], step + 1 if attempts else 0)
            self._waiting[worker] = None

    def decide(self, missing: int, now: float) -> Decision:
        """Let those go on who are near enough to the slowest."""
        slowest = 0 if missing else self.slowest
        ready = [worker for worker in self._waiting if self.clocks[worker] - self.staleness <= slowest]
        for worker in ready:
            del self._waiting[worker]
        return Decision(tuple(Released(worker, 0, True) for worker in ready))

    def awaited(self) -> Iterable[bytes]:
        """Return the slowest workers, if somebody waits."""
        if not self._waiting:
            return ()
        return [w for w, clock in self.clocks.items() if clock == self.slowest and w not in self._paused]

    def why(self, missing: int) -> str:
        """Say what is needed."""
        if missing:
            return f"{missing} workers have not joined yet"
        return f"the slowest worker is at clock {self.slowest}, at most {self.staleness} behind is allowed"

    def status(self) -> dict[str, object]:
        """Return the clocks."""
        return {"slowest": self.slowest, "fastest": max(self.clocks.values(), default=0), "bound": self.staleness}

    def validate(self) -> None:
        """Assert that nobody is further ahead than allowed, but for the step it has just completed."""
        assert set(self._waiting) <= set(self.clocks)
        assert self._paused <= set(self.clocks)
