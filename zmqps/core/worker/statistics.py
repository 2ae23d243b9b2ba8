"""A worker's statistics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.node.measured import Histogram, tallied
from zmqps.core.protocol.figures import BOUNDS
from zmqps.core.treatments import Treatment, make_treatment
from zmqps.core.worker.connections.wire import WireSpeed
from zmqps.core.worker.operations import Attached, Operation
from zmqps.core.worker.transfer import PushTransfer

#: Larger staleness is counted by the next power of two: that of a worker that never pulls grows with each push.
MAX_EXACT = int(BOUNDS["staleness"][-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """A worker's statistics so far; a frozen copy.

    Attributes
    ----------
    pushes, pulls
        Operations completed; a push_pull counts as both.
    bytes_sent, bytes_received
        Payload bytes, resent ones included.
    in_flight_bytes
        Payload bytes sent or requested and not yet answered, at this moment.
    retries
        Requests resent because no answer came.
    nonfinite
        Pushes refused because of NaN or infinity.
    dropped
        Synchronous: steps whose gradients arrived after the step was over. Otherwise: pushes with a slice that was too
        stale for the job's treatment.
    left_out
        Synchronous: steps in which no gradient was applied, because a worker had called ``skip(for_all=True)``.
    clock
        Steps completed (bounded), or the step the next gradients belong to (synchronous).
    staleness_mean, staleness_max, staleness_last
        Updates that others (and earlier pushes of this worker) had made to what a push changed, between this worker's
        pull and the push's arrival; for each push the largest over its slices.
    staleness_histogram
        Staleness -> number of pushes; beyond 1,024 the next power of two.
    mode
        The mode in force.
    pinned_bytes
        Memory of this host that is page-locked for arrays on GPUs, in use or kept for the next.
    shared_bytes
        Memory of this worker that servers on its host may read in place: ``gradient_buffers``, and staged pushes.
    borrowed_bytes
        Memory of servers on this host that they do not change, because arrays of this worker are views of it
        (``copy=False``).
    wires
        By the rank of the server: the measured wire to it (``WireSpeed``).
    logged, log_dropped
        How often the script has called `zmqps.Worker.log`, in all lives of the worker; and how many of these calls
        never reached the coordinator.
    """

    pushes: int = 0
    pulls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    in_flight_bytes: int = 0
    retries: int = 0
    nonfinite: int = 0
    dropped: int = 0
    left_out: int = 0
    clock: int = 0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    staleness_last: int = 0
    staleness_histogram: Mapping[int, int] = field(default_factory=dict)
    mode: str = ""
    pinned_bytes: int = 0
    shared_bytes: int = 0
    borrowed_bytes: int = 0
    wires: Mapping[int, WireSpeed] = field(default_factory=dict)
    logged: int = 0
    log_dropped: int = 0


class Tally:
    """Makes `Statistics`, in addition to the ``counts`` of transfers."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._steps_are_pushes = False
        self._treatment: Treatment | None = None  # of stale gradients
        self.staleness: Counter[int] = Counter()
        self.staleness_last = self._staleness_max = self._staleness_total = 0
        self._steps = Histogram(BOUNDS["step_seconds"])  # how many took how long
        self._stepped_at: float | None = None

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job has changed."""
        self._steps_are_pushes = attached.job.mode == "async"
        self._treatment = make_treatment(attached.job.treatment)

    def pushed(self, push: PushTransfer, operation: Operation, now: float) -> None:
        """All servers have a push."""
        self.staleness_last = stale = push.staleness
        self.staleness[stale if stale <= MAX_EXACT else 1 << stale.bit_length()] += 1
        self._staleness_total += stale
        self._staleness_max = max(self._staleness_max, stale)
        if self._treatment is not None:
            self._counts["dropped"] += self._treatment.drops(stale)
        if self._steps_are_pushes:
            self.stepped(now)

    def stepped(self, now: float) -> None:
        """A step is over: a synchronous or bounded one, or asynchronous a push."""
        if self._stepped_at is not None:
            self._steps.total += (took := now - self._stepped_at)  # observed inline, because this runs in each step
            self._steps.counts[bisect_left(self._steps.bounds, took)] += 1
        self._stepped_at = now

    @property
    def _mean(self) -> float:
        return self._staleness_total / max(1, sum(self.staleness.values()))

    def counters(self) -> dict[str, Any]:
        """Return counters for the status and metrics."""
        return {
            "staleness_mean": round(self._mean, 3),
            "staleness_max": self._staleness_max,
            "step_seconds": self._steps.to_plain(),
            "staleness": [float(self._staleness_total), *tallied(self.staleness, BOUNDS["staleness"])[1:]],
        }

    def statistics(self, **counted: Any) -> Statistics:
        """Return a frozen copy, with the counts of other parts."""
        return Statistics(
            staleness_mean=self._mean,
            staleness_max=self._staleness_max,
            staleness_last=self.staleness_last,
            staleness_histogram=dict(sorted(self.staleness.items())),
            **counted,
        )
