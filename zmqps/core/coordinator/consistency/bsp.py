"""Synchronous: a step is the mean of its contributors' gradients, applied once, for everybody."""

from __future__ import annotations

from collections.abc import Iterable, KeysView, Sequence
from itertools import islice
from typing import Any

from zmqps.core.coordinator.consistency.base import Arrival, Commitment, Decision, Grant, Policy
from zmqps.core.coordinator.consistency.deadline import ArrivalClock
from zmqps.core.job.spec import MAX_COUNT
from zmqps.errors import counted


class Synchronous(Policy):
    """A barrier a step; ``staleness=0``.

    Step t is complete when the quorum has arrived: all live workers, or ``aggregate`` gradients
    (the first complete ones count, the rest are dropped, counted, and their workers told).
    With more ``aggregate`` than workers, a worker that arrives goes on in the same step while more
    gradients are needed than are on their way (Chen et al., Revisiting Distributed Synchronous SGD,
    2016).

    What a worker has brought completely counts even if it dies before the step is complete; what
    it has brought in part never does. One that skips a step brings no gradient, and is not awaited. With
    ``aggregate`` it is asked for another one while too few are on their way.

    One that arrives with ``leaves_out`` makes nobody's gradient of the step count, once that is complete; a step that
    is committed by then is not undone.

    Parameters
    ----------
    aggregate
        How many gradients make a step; None: one of every live worker.
    on_straggler
        What happens when the step's deadline (`ArrivalClock`) passes: ``wait`` on, ``continue``
        without those who are late, or ``fail`` those who wait.
    """

    mode = "sync"

    def __init__(self, aggregate: int | None = None, on_straggler: str = "wait") -> None:
        self.aggregate = aggregate
        self.on_straggler = on_straggler
        self.step = 0
        self.clock = ArrivalClock()
        self.dropped = 0
        self._left_out: int | None = None  # the last step of which nobody's gradient was applied
        self._live: dict[bytes, None] = {}
        self._paused: set[bytes] = set()
        self._absent: dict[bytes, None] = {}  # live workers that have brought nothing to this step
        self._arrivals: dict[bytes, Arrival] = {}
        self._waiting: dict[bytes, None] = {}  # those of them who wait for their answer
        self._ready: dict[bytes, None] = {}  # and of these the live ones, the one that has waited longest first
        self._count = 0  # gradients brought to this step
        self._late: list[Grant] = []
        self._first_at: float | None = None
        self._patient_from = 0.0  # when those who wait began to, as far as the deadline is concerned

    def begin_at(self, clock: int) -> None:
        """The first step is this one."""
        self.step = clock

    def go_back(self, clock: int) -> None:
        """The next step is this one, and nobody has brought anything to it."""
        self.step, self._left_out = clock, None
        self._late.clear()
        self._begin_step()

    def join(self, worker: bytes) -> int:
        """A worker begins to train, at the current step."""
        self._live[worker] = None
        if worker not in self._arrivals:
            self._absent[worker] = None
        elif worker in self._waiting:
            self._ready[worker] = None
        self._paused.discard(worker)
        return self.step

    @property
    def now(self) -> int:
        """The current step."""
        return self.step

    def pause(self, worker: bytes) -> None:
        """A worker brings nothing for a while; what it has brought stays, and its answer is still due."""
        self._live.pop(worker, None)
        self._absent.pop(worker, None)
        self._ready.pop(worker, None)
        self._paused.add(worker)

    def leave(self, worker: bytes) -> None:
        """A worker trains no more; its complete gradients stay in the step."""
        self._live.pop(worker, None)
        self._absent.pop(worker, None)
        self._paused.discard(worker)
        self._stop_waiting(worker)
        if worker in self._arrivals and not self._arrivals[worker].count:  # it has skipped the step
            self.retract(worker)

    def arrive(
        self, worker: bytes, step: int, attempts: tuple[int, ...], now: float, examples: int = 1, *,
        leaves_out: bool = False,
    ) -> None:  # fmt: skip
        """A worker brings a gradient, or none; of a step that is over it is dropped, and the worker told."""
        if step != self.step:
            # without any it has skipped the step, or waits once more for one to which it had brought its gradient
            self.dropped += bool(attempts)
            self._late.append(Grant(worker, self.step, not attempts, step == self._left_out))
            return
        if self._first_at is None:
            self._first_at = self._patient_from = now
        arrival = self._arrivals.setdefault(worker, Arrival())
        self._absent.pop(worker, None)
        if attempts and not set(attempts) <= set(arrival.attempts):  # else it is asked for the answer again
            self._count += 1
            arrival.count += 1
            arrival.attempts += attempts
            arrival.examples = min(arrival.examples + examples, MAX_COUNT)
            arrival.leaves_out |= leaves_out
        else:
            self._patient_from = now  # or its wait would fail again at once
        self._waiting[worker] = None
        if worker in self._live:
            self._ready[worker] = None

    def dump(self) -> list[Any]:
        """Return the step, how many it has dropped so far, what workers have brought to it, and which was left out."""
        arrivals = [
            [worker, list(a.attempts), a.count, a.examples, a.leaves_out] for worker, a in self._arrivals.items()
        ]
        return [self.step, self.dropped, arrivals, self._left_out]

    def restore(self, kept: Sequence[Any], now: float) -> None:
        """Go on with the step that was kept, and what was brought to it; who waits for its end arrives again."""
        self.step, self.dropped, arrivals, self._left_out = kept
        for worker, attempts, count, examples, leaves_out in arrivals:
            self._arrivals[worker] = Arrival(tuple(attempts), count, examples, leaves_out)
            self._count += count
            self._absent.pop(worker, None)
        if arrivals:
            self._first_at = self._patient_from = now

    def decide(self, missing: int, now: float) -> Decision:
        """Commit the step if the quorum is there, or the deadline has passed and the policy consents."""
        granted = list(self._late)
        self._late.clear()
        due = self.next_deadline()
        overdue = due is not None and now >= due
        if not self._complete(missing) and not (overdue and self.on_straggler == "continue" and self._count):
            if overdue and self.on_straggler == "fail":
                failed = tuple(worker for worker in self._arrivals if worker in self._waiting)
                self._waiting.clear()
                self._ready.clear()
                return Decision(tuple(granted), failed=failed)
            return Decision((*granted, *self._go_on()))
        brought = {worker: arrival for worker, arrival in self._arrivals.items() if arrival.attempts}
        contributors = tuple((worker, arrival.attempts) for worker, arrival in brought.items())
        left_out = any(arrival.leaves_out for arrival in brought.values())
        examples = min(sum(arrival.examples for arrival in brought.values()), MAX_COUNT)
        commitment = Commitment(self.step, contributors, examples, left_out)
        self._left_out = self.step if left_out else self._left_out
        self.clock.observe(now - (self._first_at if self._first_at is not None else now), late=overdue)
        self.step += 1
        granted += [Grant(worker, self.step, True, left_out) for worker in self._arrivals if worker in self._waiting]
        self._begin_step()
        return Decision(tuple(granted), commitment)

    def _begin_step(self) -> None:
        """Nobody has brought anything yet."""
        for known in (self._arrivals, self._waiting, self._ready):
            known.clear()
        self._absent = dict(self._live)
        self._count = 0
        self._first_at = None

    def _stop_waiting(self, worker: bytes) -> None:
        self._waiting.pop(worker, None)
        self._ready.pop(worker, None)

    def _complete(self, missing: int) -> bool:
        if self.aggregate is not None:
            # fewer workers than gradients needed and all of them waiting cannot happen: see _go_on
            return self._count >= self.aggregate
        return bool(self._arrivals) and not missing and not self._absent  # perhaps of nothing: all have skipped it

    def _go_on(self) -> list[Grant]:
        """Let arrived workers bring another gradient to this step while too few are on their way."""
        if self.aggregate is None:
            return []
        needed = self.aggregate - self._count - (len(self._live) - len(self._ready))
        granted = list(islice(self._ready, max(0, needed)))
        for worker in granted:
            self._stop_waiting(worker)
        return [Grant(worker, self.step, True) for worker in granted]

    def arrived(self) -> KeysView[bytes]:
        """Return who has brought something to the step."""
        return self._arrivals.keys()

    def retract(self, worker: bytes) -> None:
        """What a worker has brought counts no more."""
        if (arrival := self._arrivals.pop(worker, None)) is None:
            return
        self._stop_waiting(worker)
        self._count -= arrival.count
        if worker in self._live:
            self._absent[worker] = None
        if not self._arrivals:
            self._first_at = None

    def awaited(self) -> Iterable[bytes]:
        """Return the live workers that have not arrived, once somebody waits."""
        return [worker for worker in self._live if worker not in self._waiting] if self._waiting else ()

    def why(self, missing: int) -> str:
        """Say what is needed."""
        if self.aggregate is not None:
            return f"step {self.step} has {self._count} of the {counted(self.aggregate, 'gradient')} it aggregates"
        absent = len(self._absent)
        brought = sum(bool(arrival.count) for arrival in self._arrivals.values())
        text = f"step {self.step} has the gradients of {counted(brought, 'worker')}"
        text += f", {absent} live worker{' is' if absent == 1 else 's are'} awaited" if absent else ""
        return text + (", and waits for all" if missing else "")

    def next_deadline(self) -> float | None:
        """Return when those who have not arrived are late."""
        patience = self.clock.patience
        if patience is None or self._first_at is None or self.on_straggler == "wait":
            return None
        if self.on_straggler == "continue" and not self._count:
            return None  # there is nothing to go on with
        if not self._waiting:
            return None
        return self._patient_from + patience

    def status(self) -> dict[str, object]:
        """Return the step's state."""
        return {
            "step": self.step,
            "arrived": len(self._arrivals),
            "aggregate": self.aggregate,
            "dropped": self.dropped,
            "on_straggler": self.on_straggler,
            "patience_s": self.clock.patience,
        }

    def validate(self) -> None:
        """Assert that whoever waits is alive and has arrived, and whoever is absent lives and has not."""
        assert set(self._absent) == set(self._live) - set(self._arrivals)
        assert not self._paused & set(self._live)
        assert set(self._waiting) <= set(self._arrivals) & {*self._live, *self._paused}
        assert set(self._ready) == set(self._waiting) & set(self._live)
        assert (self._first_at is None) == (not self._arrivals)
        assert self._count == sum(arrival.count for arrival in self._arrivals.values())
