"""How work of no haste leaves the processors of a host to others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Work that can wait rests while fewer processors than this are idle; but no longer than this at once, in seconds.
IDLE, LONGEST_REST_S = 0.5, 2.0


class Rests:
    """Lets others have the processors of this host between the parts of some work, where none is idle.

    Parameters
    ----------
    times
        It rests that many times as long as the part before has taken.
    """

    def __init__(self, times: float) -> None:
        self._times = times
        self._last = time.monotonic(), _idle_s()

    def after(self, began: float, *, wanted: bool = True) -> None:
        """Rest, if that is wanted and needed, after a part of the work that began then, as `time.monotonic` says."""
        if self.idle() < IDLE and wanted:
            time.sleep(min(self._times * (time.monotonic() - began), LONGEST_REST_S))

    def idle(self) -> float:
        """Return how many processors were idle on average since this was asked last."""
        (asked, before), self._last = self._last, (time.monotonic(), _idle_s())
        return (self._last[1] - before) / max(self._last[0] - asked, 1e-9)

    def paced(self, parts: Iterable[T]) -> Iterator[T]:
        """Yield the parts of some work, with rests behind them."""
        for part in parts:
            began = time.monotonic()
            yield part
            self.after(began)


def _idle_s() -> float:
    """Return how many seconds all processors together were idle."""
    import psutil

    times = psutil.cpu_times()
    return float(times.idle) + float(getattr(times, "iowait", 0.0))
