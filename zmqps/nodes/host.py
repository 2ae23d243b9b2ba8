"""How much memory a server's host has left, and how work of no haste leaves its processors to others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from zmqps.files import read_kernel

T = TypeVar("T")

#: What a container may use, what it uses, and what of that are files it has read, whose memory can be had at once;
#: psutil tells of the whole host only.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
CGROUP_USES = Path("/sys/fs/cgroup/memory.stat")


def available_nbytes() -> int:
    """Return the bytes of memory that can be had without swapping, in a container those it may still use."""
    import psutil

    available = int(psutil.virtual_memory().available)
    try:
        uses = dict(line.split() for line in read_kernel(CGROUP_USES).splitlines())
        files = int(uses.get("inactive_file", 0)) + int(uses.get("slab_reclaimable", 0))
        return min(available, max(0, int(read_kernel(CGROUP_LIMIT)) - int(read_kernel(CGROUP_USED)) + files))
    except (OSError, ValueError):  # no container, or one without a limit
        return available


def total_nbytes() -> int:
    """Return the bytes of memory that this host has, or this container may use."""
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(read_kernel(CGROUP_LIMIT)))
    except (OSError, ValueError):
        return total


#: Work that can wait rests while fewer processors than this are idle; but no longer than this at once, in seconds.
IDLE, LONGEST_REST_S = 0.5, 2.0


class Rests:
    """Lets others have the processors of this host between the parts of some work, where none is idle.

    Parameters
    ----------
    times
        It rests so many times as long as the part before has taken.
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
