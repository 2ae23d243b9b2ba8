"""How another node's clock differs from one's own, from questions and answers, as NTP does it.

After Mills, "Internet time synchronization: the Network Time Protocol", IEEE Trans. Communications 39 (1991): the
answer that was back soonest says most, because the way there and the way back can differ by its round trip at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

#: Of so many of the last answers the quickest is believed; older ones say less and less, for clocks drift.
WINDOW = 64
#: Times are rounded, and clocks drift by as much within the window.
ROUNDING_S = 0.001


class ClockSample(NamedTuple):
    """A question ``sent`` and the answer ``back`` by one's own clock, answered ``at`` some time by the other one's."""

    sent: float
    at: float
    back: float


class Offset(NamedTuple):
    """Seconds to add to one's own clock to have the other one's; wrong by ``error_s`` at most."""

    offset_s: float
    error_s: float


def estimate(samples: Iterable[ClockSample]) -> Offset | None:
    """Return how the other clock differs; None where nothing was answered yet.

    The answer is taken to have been given half way. It was given some time between, so what is wrong about
    that is at most half of the round trip; of all samples the one with the shortest is taken.
    """
    best = min(samples, key=lambda sample: sample.back - sample.sent, default=None)
    if best is None:
        return None
    return Offset(best.at - (best.sent + best.back) / 2, max(0.0, best.back - best.sent) / 2)


class Samples:
    """The last answers, since one of the clocks was set or stood still last, as far as they show it."""

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=WINDOW)

    def add(self, sent: float, at: float, back: float) -> None:
        """Take an answer; one that was back before it was asked for says nothing."""
        known, now = self.offset, estimate([ClockSample(sent, at, back)])
        if back < sent or now is None:
            return
        if known is not None and abs(now.offset_s - known.offset_s) > now.error_s + known.error_s + ROUNDING_S:
            self._samples.clear()  # both cannot be: of clocks that differ otherwise now the older ones say nothing
        self._samples.append(ClockSample(sent, at, back))

    @property
    def offset(self) -> Offset | None:
        """How the other clock differs."""
        return estimate(self._samples)
