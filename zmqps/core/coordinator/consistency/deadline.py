"""How long a step waits for stragglers: a bound learnt from the arrivals seen, not a guess."""

from __future__ import annotations

#: Below this a step is never called late: scheduling noise alone takes so long.
FLOOR_S = 1.0
#: Steps seen before the rule is trusted; until then nobody is late.
WARM_UP = 5


class ArrivalClock:
    """Smooths how long after the first arrival of a step the last one comes.

    The rule is TCP's retransmission timer (Jacobson, Congestion Avoidance and Control, 1988): with
    smoothed mean m and mean deviation d of that spread, a straggler is late after m + 4 d, doubled
    by each step that ended by the deadline, and never sooner than `FLOOR_S`.
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
        """Seconds after the first arrival when the rest is late; None while too little was seen."""
        if self.seen < WARM_UP:
            return None
        return max(FLOOR_S, (self.mean + 4 * self.deviation) * self._backoff)
