"""Bounded (stale synchronous parallel): the fastest worker is at most ``staleness`` clocks ahead of the slowest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from zmqps.core.coordinator.consistency.base import Decision, Grant, Policy


class Bounded(Policy):
    """A worker at clock c reads only when the slowest live worker has reached c − staleness.

    A clock is the number of steps a worker has completed. Updates are applied on arrival, and a worker completes a step
    only when all shards have acknowledged its push, so a read at clock c includes every update of every worker up to
    its clock c − staleness (Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server,
    2013).

    A worker that joins late begins at the slowest clock: no worker waits for it to catch up.
    """

    mode = "bounded"

    def __init__(self, staleness: int) -> None:
        assert staleness > 0
        self.staleness = staleness
        self.clocks: dict[bytes, int] = {}
        self._first = 0  # no worker begins at an earlier clock
        # decisions are by clock: there are few clocks at a time, and thousands of workers
        self._live: Counter[int] = Counter()  # the number of training workers at a clock
        self._waiting: dict[int, dict[bytes, None]] = {}  # waiting workers, by clock
        self._paused: set[bytes] = set()

    @property
    def slowest(self) -> int:
        """The clock of the slowest live worker; while all are paused, of the fastest: they have met."""
        return min(self._live) if self._live else max(self.clocks.values(), default=self._first)

    def begin_at(self, clock: int) -> None:
        self._first = clock

    def join(self, worker: bytes) -> int:
        """A worker begins to train at the slowest clock, or continues there if the others have passed it."""
        if worker not in self.clocks:
            self.clocks[worker] = max(self.slowest, self._first)
            self._live[self.clocks[worker]] += 1
        elif worker in self._paused:
            self._move(worker, max(self.clocks[worker], self.slowest))
            self._paused.remove(worker)
            self._live[self.clocks[worker]] += 1
        return self.clocks[worker]

    @property
    def clock(self) -> int:
        return self.slowest

    def pause(self, worker: bytes) -> None:
        """A worker's clock stops for a while and delays no other."""
        if worker in self.clocks and worker not in self._paused:
            self._paused.add(worker)
            self._uncount(self.clocks[worker])

    def leave(self, worker: bytes) -> None:
        """A worker has stopped training: another one may be the slowest now."""
        if worker in self.clocks:
            self._stop_waiting(worker)
            clock = self.clocks.pop(worker)
            if not self.clocks:  # what is saved now, and new workers, continue at the last one's clock
                self._first = max(self._first, clock)
            if worker not in self._paused:
                self._uncount(clock)
            self._paused.discard(worker)

    def arrive(
        self, worker: bytes, step: int, attempts: tuple[int, ...], now: float, examples: int = 1, *,
        leaves_out: bool = False,
    ) -> None:  # fmt: skip
        if worker in self.clocks:
            self._move(worker, max(self.clocks[worker], step + 1))
            self._waiting.setdefault(self.clocks[worker], {})[worker] = None

    def decide(self, missing: int, now: float) -> Decision:
        """Let workers proceed that are close enough to the slowest."""
        slowest = 0 if missing else self.slowest
        clocks = [clock for clock in self._waiting if clock - self.staleness <= slowest]
        ready = [worker for clock in clocks for worker in self._waiting.pop(clock)]
        return Decision(tuple(Grant(worker, slowest, True) for worker in ready))

    def dump(self) -> list[Any]:
        """Return the slowest clock, and each worker's, or an earlier one of it."""
        return [max(self._first, self.slowest), [[worker, clock] for worker, clock in self.clocks.items()]]

    def restore(self, kept: Sequence[Any], now: float) -> None:
        """Continue at the journaled clocks; if a worker is ahead of its own, no other waits too short for it."""
        self._first, clocks = kept
        for worker, clock in clocks:
            if worker in self.clocks:
                self._move(worker, clock)

    def catch_up(self, worker: bytes, clock: int) -> None:
        """A worker is at a clock, or was beyond it."""
        if worker in self.clocks:
            self._move(worker, max(self.clocks[worker], clock))

    def _move(self, worker: bytes, clock: int) -> None:
        """Set a worker's clock, in all counts."""
        was = self.clocks[worker]
        if clock != was:
            waited = self._stop_waiting(worker)
            self.clocks[worker] = clock
            if waited:
                self._waiting.setdefault(clock, {})[worker] = None
            if worker not in self._paused:
                self._uncount(was)
                self._live[clock] += 1

    def _uncount(self, clock: int) -> None:
        self._live[clock] -= 1
        if not self._live[clock]:
            del self._live[clock]

    def _stop_waiting(self, worker: bytes) -> bool:
        clock = self.clocks[worker]
        waiting = self._waiting.get(clock, {})
        if worker not in waiting:
            return False
        del waiting[worker]
        if not waiting:
            del self._waiting[clock]
        return True

    def awaited(self) -> Iterable[bytes]:
        """Return the slowest workers, if any worker waits."""
        if not self._waiting:
            return ()
        return [w for w, clock in self.clocks.items() if clock == self.slowest and w not in self._paused]

    def why(self, missing: int) -> str:
        if missing:
            return f"clock {self.slowest} waits for all"
        return f"the slowest worker is at clock {self.slowest}, at most {self.staleness} behind is allowed"

    def status(self) -> dict[str, object]:
        return {"slowest": self.slowest, "fastest": max(self.clocks.values(), default=0), "bound": self.staleness}

    def validate(self) -> None:
        """Assert that the counts by clock fit the clocks."""
        assert self._paused <= set(self.clocks)
        assert self._live == Counter(clock for worker, clock in self.clocks.items() if worker not in self._paused)
        assert all(self._waiting.values())
        assert all(self.clocks[worker] == clock for clock, waiting in self._waiting.items() for worker in waiting)
