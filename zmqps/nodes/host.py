"""How much memory a server's host has left, and how many processors are idle."""

from __future__ import annotations

import time
from pathlib import Path

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
        uses = dict(line.split() for line in CGROUP_USES.read_text().splitlines())
        files = int(uses.get("inactive_file", 0)) + int(uses.get("slab_reclaimable", 0))
        return min(available, max(0, int(CGROUP_LIMIT.read_text()) - int(CGROUP_USED.read_text()) + files))
    except (OSError, ValueError):  # no container, or one without a limit
        return available


class Processors:
    """How many processors of this host are idle."""

    def __init__(self) -> None:
        self._last = time.monotonic(), _idle_s()

    def idle(self) -> float:
        """Return how many there were on average since this was asked last."""
        (began, before), self._last = self._last, (time.monotonic(), _idle_s())
        return (self._last[1] - before) / max(self._last[0] - began, 1e-9)


def _idle_s() -> float:
    """Return how many seconds all processors together were idle."""
    import psutil

    times = psutil.cpu_times()
    return float(times.idle) + float(getattr(times, "iowait", 0.0))
