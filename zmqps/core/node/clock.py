"""The difference between two nodes' clocks, from questions and answers, as in NTP.

After Mills, "Internet time synchronization: the Network Time Protocol", IEEE Trans. Communications 39 (1991): the
answer with the shortest round trip counts, because its two ways can differ by its round trip at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

#: The fastest of this many last answers counts; older ones are less useful, because clocks drift.
WINDOW = 64
#: The error of rounding, and of drift within the window.
ROUNDING_S = 0.001


class ClockSample(NamedTuple):
    """A question ``sent`` and the answer ``back`` by the own clock, answered ``at`` a time of the other clock."""

    sent: float
    at: float
    back: float


class Offset(NamedTuple):
    """Seconds to add to the own clock to get the other's; the error is ``error_s`` at most."""

    offset_s: float
    error_s: float


def estimate(samples: Iterable[ClockSample]) -> Offset | None:
    """Return the difference of the other clock; None without any answer yet.

    The answer is assumed to be given half way, with an error of at most half of the round trip; of all samples the one
    with the shortest is used.
    """
    best = min(samples, key=lambda sample: sample.back - sample.sent, default=None)
    if best is None:
        return None
    return Offset(best.at - (best.sent + best.back) / 2, max(0.0, best.back - best.sent) / 2)


class Samples:
    """The last answers, since one of the clocks was apparently last set or stopped."""

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=WINDOW)

    def add(self, sent: float, at: float, back: float) -> None:
        """Add an answer; one that arrived before its question is ignored."""
        known, now = self.offset, estimate([ClockSample(sent, at, back)])
        if back < sent or now is None:
            return
        if known is not None and abs(now.offset_s - known.offset_s) > now.error_s + known.error_s + ROUNDING_S:
            self._samples.clear()  # they contradict: the clocks have changed, and the older ones are useless
        self._samples.append(ClockSample(sent, at, back))

    @property
    def offset(self) -> Offset | None:
        """The difference of the other clock."""
        return estimate(self._samples)
