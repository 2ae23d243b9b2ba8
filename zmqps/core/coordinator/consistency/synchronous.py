"""Synchronous: a step is the mean of its contributors' gradients, applied once, for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any

from zmqps.core.coordinator.consistency.base import Arrival, Commitment, Decision, Grant, Policy
from zmqps.core.job.spec import MAX_COUNT
from zmqps.errors import counted

#: A step is never called late below this: scheduling noise alone takes that long.
FLOOR_S = 1.0
#: Steps seen before the rule is used; until then no worker is late.
WARM_UP = 5


class Presence(StrEnum):
    """Whether a worker is awaited: it trains; it waits for something else; it has departed and left gradients."""

    TRAINS, PAUSED, GONE = "trains", "paused", "gone"


@dataclass(slots=True)
class StepWorker:
    """A worker's state in the open step."""

    presence: Presence = Presence.GONE
    waits: bool = False  # for the answer to its arrival
    arrival: Arrival | None = None  # None: it has contributed nothing


@dataclass(slots=True, kw_only=True)
class OpenStep:
    """Counts of the contributions to the incomplete step: an arrival costs the same with many workers."""

    num_absent: int  # workers that train and have not contributed
    num_arrived: int = 0
    num_waiting: int = 0
    num_gradients: int = 0
    ready: dict[bytes, None] = field(default_factory=dict)  # training workers that wait, the longest waiting first
    first_at: float | None = None  # when the first one arrived
    patient_from: float = 0.0  # when the present waits began, for the deadline


class ArrivalClock:
    """Smooths the time between the first and the last arrival of a step.

    The rule is TCP's retransmission timer (Jacobson, Congestion Avoidance and Control, 1988): with smoothed mean m and
    mean deviation d of that spread, a straggler is late after m + 4 d, doubled by each step that ended by the deadline,
    and never sooner than `FLOOR_S`.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self.deviation = 0.0
        self.seen = 0
        self._backoff = 1

    def observe(self, spread: float, *, late: bool) -> None:
        """A step took ``spread`` seconds from its first to its last arrival, or was cut short."""
        if late:
            self._backoff = min(2 * self._backoff, 64)
            return
        self._backoff = 1
        self.seen += 1
        if self.seen == 1:
            self.mean, self.deviation = spread, spread / 2
        else:
            error = spread - self.mean
            self.mean += error / 8
            self.deviation += (abs(error) - self.deviation) / 4

    @property
    def patience(self) -> float | None:
        """Seconds after the first arrival when the others are late; None while too little was seen."""
        if self.seen < WARM_UP:
            return None
        return max(FLOOR_S, (self.mean + 4 * self.deviation) * self._backoff)


class Synchronous(Policy):
    """A barrier per step; ``mode="sync"``.

    Step t is complete when the quorum has arrived: all live workers, or ``aggregate`` gradients (the first complete
    ones count, the others are dropped, counted, and their workers informed). With more ``aggregate`` than workers, a
    worker that arrives continues in the same step while more gradients are needed than are in flight (Chen et al.,
    Revisiting Distributed Synchronous SGD, 2016).

    A complete contribution counts even if its worker dies before the step is complete; a partial one never does. A
    worker that skips a step contributes no gradient, and is not awaited. With ``aggregate`` it is asked for another one
    while too few are in flight.

    If one arrives with ``leaves_out``, no gradient of the step counts once it is complete; a step that is committed by
    then is not undone.

    ``aggregate`` is how many gradients make a step; None: one of every live worker. ``on_straggler`` says what happens
    at the step's deadline (`ArrivalClock`): ``wait`` longer, ``continue`` without the late workers, or ``fail`` the
    waits.
    """

    mode = "sync"
    clock: int = 0  # the open step

    def __init__(self, aggregate: int | None = None, on_straggler: str = "wait") -> None:
        self.aggregate = aggregate
        self.on_straggler = on_straggler
        self.pending = False
        self.lateness = ArrivalClock()
        self.dropped = 0
        self._left_out: int | None = None  # the last step whose gradients were left out
        self._workers: dict[bytes, StepWorker] = {}
        self._num_live = 0
        self._open = OpenStep(num_absent=0)
        self._late: list[Grant] = []

    def begin_at(self, clock: int) -> None:
        self.clock = clock

    def go_back(self, clock: int) -> None:
        """The next step is this one, without any contribution."""
        self.clock, self._left_out, self.pending = clock, None, False
        self._late.clear()
        self._begin_step()

    def join(self, worker: bytes) -> int:
        """A worker begins to train, at the current step."""
        one = self._workers.setdefault(worker, StepWorker())
        if one.presence is not Presence.TRAINS:
            one.presence = Presence.TRAINS
            self._num_live += 1
            self._open.num_absent += one.arrival is None
            if one.waits:
                self._open.ready[worker] = None
        return self.clock

    def pause(self, worker: bytes) -> None:
        """A worker contributes nothing for a while; its contribution stays, and its answer is still due."""
        self._withdraw(worker, Presence.PAUSED)

    def leave(self, worker: bytes) -> None:
        """A worker has stopped training; its complete gradients stay in the step."""
        if (one := self._workers.get(worker)) is not None:
            self._withdraw(worker, Presence.GONE)
            self._stop_waiting(worker, one)
            if one.arrival is None or not one.arrival.count:  # it has skipped the step
                self.retract(worker)
                self._workers.pop(worker, None)

    def _withdraw(self, worker: bytes, presence: Presence) -> None:
        """A worker is not awaited any more."""
        one = self._workers.setdefault(worker, StepWorker())
        if one.presence is Presence.TRAINS:
            self._num_live -= 1
            self._open.num_absent -= one.arrival is None
            self._open.ready.pop(worker, None)
        one.presence = presence

    def arrive(
        self, worker: bytes, step: int, attempts: tuple[int, ...], now: float, examples: int = 1, *,
        leaves_out: bool = False,
    ) -> None:  # fmt: skip
        """A worker contributes a gradient, or none; for a past step it is dropped, and the worker informed."""
        self.pending = True
        if step != self.clock:
            # without any it has skipped the step, or waits again in one to which it has contributed
            self.dropped += bool(attempts)
            self._late.append(Grant(worker, self.clock, not attempts, step == self._left_out))
            return
        opened, one = self._open, self._workers.setdefault(worker, StepWorker())
        if opened.first_at is None:
            opened.first_at = opened.patient_from = now
        if one.arrival is None:
            one.arrival = Arrival()
            opened.num_arrived += 1
            opened.num_absent -= one.presence is Presence.TRAINS
        if attempts and not set(attempts) <= set(one.arrival.attempts):  # else it repeats its request for the answer
            opened.num_gradients += 1
            one.arrival.count += 1
            one.arrival.attempts += attempts
            one.arrival.examples = min(one.arrival.examples + examples, MAX_COUNT)
            one.arrival.leaves_out |= leaves_out
        else:
            opened.patient_from = now  # or its wait would fail again at once
        opened.num_waiting += not one.waits
        one.waits = True
        if one.presence is Presence.TRAINS:
            opened.ready.setdefault(worker)

    def dump(self) -> list[Any]:
        """Return the step, the number of dropped gradients, the contributions to it, and the step that was left out."""
        arrivals = [[who, list(a.attempts), a.count, a.examples, a.leaves_out] for who, a in self._arrivals()]
        return [self.clock, self.dropped, arrivals, self._left_out]

    def restore(self, kept: Sequence[Any], now: float) -> None:
        """Continue with the journaled step and contributions; workers that wait for its end arrive again."""
        self.clock, self.dropped, arrivals, self._left_out = kept
        for worker, attempts, count, examples, leaves_out in arrivals:
            one = self._workers.setdefault(worker, StepWorker())
            one.arrival = Arrival(tuple(attempts), count, examples, leaves_out)
            self._open.num_arrived += 1
            self._open.num_gradients += count
            self._open.num_absent -= one.presence is Presence.TRAINS
        if arrivals:
            self._open.first_at = self._open.patient_from = now
            self.pending = True

    def decide(self, missing: int, now: float) -> Decision:
        """Commit the step if the quorum is there, or the deadline has passed and the policy allows it."""
        late, self._late = tuple(self._late), []
        due = None if self.on_straggler == "wait" else self.next_deadline()
        overdue = due is not None and now >= due
        if self._complete(missing) or (overdue and self.on_straggler == "continue" and self._open.num_gradients):
            decision = self._commit(late, now, overdue=overdue)
        elif overdue and self.on_straggler == "fail":
            failed, awaited = tuple(who for who, one in self._workers.items() if one.waits), tuple(self.awaited())
            for worker in failed:
                self._stop_waiting(worker, self._workers[worker])
            decision = Decision(late, failed=failed, awaited=awaited)
        else:
            decision = Decision((*late, *self._go_on()) if self.aggregate is not None else late)
        self.pending = self._open.num_arrived > 0
        return decision

    def _commit(self, late: tuple[Grant, ...], now: float, *, overdue: bool) -> Decision:
        """Complete the step; ``late``: other workers to inform that they may proceed."""
        contributors, left_out, examples = list[tuple[bytes, tuple[int, ...]]](), False, 0
        for worker, one in self._workers.items():  # inline, because this runs at every step
            if one.arrival is not None and one.arrival.attempts:
                contributors.append((worker, one.arrival.attempts))
                left_out |= one.arrival.leaves_out
                examples = min(examples + one.arrival.examples, MAX_COUNT)
        commitment = Commitment(self.clock, tuple(contributors), examples, left_out)
        self._left_out = self.clock if left_out else self._left_out
        if self.on_straggler != "wait" and self._open.first_at is not None:
            self.lateness.observe(now - self._open.first_at, late=overdue)
        self.clock += 1
        granted = [Grant(who, self.clock, True, left_out) for who, one in self._workers.items() if one.waits]
        self._begin_step()
        return Decision((*late, *granted), commitment)

    def _begin_step(self) -> None:
        """There is no contribution yet."""
        for worker, one in list(self._workers.items()):
            if one.presence is Presence.GONE:
                del self._workers[worker]
            one.arrival, one.waits = None, False
        self._open = OpenStep(num_absent=self._num_live)

    def _stop_waiting(self, worker: bytes, one: StepWorker) -> None:
        self._open.num_waiting -= one.waits
        self._open.ready.pop(worker, None)
        one.waits = False

    def _complete(self, missing: int) -> bool:
        if self.aggregate is not None:
            # fewer workers than needed gradients, with all of them waiting, cannot happen: see _go_on
            return self._open.num_gradients >= self.aggregate
        # perhaps of nothing: all have skipped it
        return self._open.num_arrived > 0 and not missing and not self._open.num_absent

    def _go_on(self) -> list[Grant]:
        """Let arrived workers contribute another gradient to this step while too few are in flight."""
        assert self.aggregate is not None
        needed = self.aggregate - self._open.num_gradients - (self._num_live - len(self._open.ready))
        granted = list(islice(self._open.ready, max(0, needed)))
        for worker in granted:
            self._stop_waiting(worker, self._workers[worker])
        return [Grant(worker, self.clock, True) for worker in granted]

    def _arrivals(self) -> list[tuple[bytes, Arrival]]:
        return [(worker, one.arrival) for worker, one in self._workers.items() if one.arrival is not None]

    def arrived(self) -> set[bytes]:
        return {worker for worker, _ in self._arrivals()}

    def retract(self, worker: bytes) -> None:
        """A worker's contribution does not count any more."""
        one = self._workers.get(worker)
        if one is None or one.arrival is None:
            return
        self._stop_waiting(worker, one)
        self._open.num_arrived -= 1
        self._open.num_gradients -= one.arrival.count
        self._open.num_absent += one.presence is Presence.TRAINS
        one.arrival = None
        if one.presence is Presence.GONE:
            del self._workers[worker]
        if not self._open.num_arrived:
            self._open.first_at = None

    def awaited(self) -> Iterable[bytes]:
        """Return the live workers that have not arrived, once one waits."""
        if not self._open.num_waiting:
            return ()
        return [who for who, one in self._workers.items() if one.presence is Presence.TRAINS and not one.waits]

    def why(self, missing: int) -> str:
        opened = self._open
        if self.aggregate is not None:
            needed = counted(self.aggregate, "gradient")
            return f"step {self.clock} has {opened.num_gradients} of the {needed} it aggregates"
        absent, brought = opened.num_absent, sum(bool(arrival.count) for _, arrival in self._arrivals())
        text = f"step {self.clock} has the gradients of {counted(brought, 'worker')}"
        text += f", {absent} live worker{' is' if absent == 1 else 's are'} awaited" if absent else ""
        return text + (", and waits for all" if missing else "")

    def next_deadline(self) -> float | None:
        """Return when absent workers are late."""
        if self.on_straggler == "wait" or not self._open.num_waiting:
            return None
        if self.on_straggler == "continue" and not self._open.num_gradients:
            return None  # there is nothing to continue with
        patience = self.lateness.patience
        return None if patience is None else self._open.patient_from + patience

    def status(self) -> dict[str, object]:
        return {
            "step": self.clock,
            "arrived": self._open.num_arrived,
            "aggregate": self.aggregate,
            "dropped": self.dropped,
            "on_straggler": self.on_straggler,
            "patience_s": self.lateness.patience,
        }

    def validate(self) -> None:
        """Assert that the counts fit the workers, and that departed workers have left gradients."""
        workers, opened = self._workers, self._open
        live = {who for who, one in workers.items() if one.presence is Presence.TRAINS}
        waiting, arrivals = {who for who, one in workers.items() if one.waits}, dict(self._arrivals())
        assert len(live) == self._num_live
        assert (opened.num_absent, opened.num_arrived) == (len(live - arrivals.keys()), len(arrivals))
        assert opened.num_waiting == len(waiting)
        assert waiting <= arrivals.keys()
        assert set(opened.ready) == waiting & live
        assert (opened.first_at is None) == (not arrivals)
        assert opened.num_gradients == sum(arrival.count for arrival in arrivals.values())
        assert self.pending or not (arrivals or self._late)
        gone = {who for who, one in workers.items() if one.presence is Presence.GONE}
        assert gone <= arrivals.keys() - waiting
