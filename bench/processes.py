"""What processes have used so far: processor time and memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil


class BusyTime:
    """Processor time that some processes use from now on, over all their threads and cores."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = tuple(pids)
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._before = self._now()

    def seconds(self) -> float:
        """Return what was used since."""
        return self._now() - self._before

    def _now(self) -> float:
        return sum(map(processor_s, self._pids))


def processor_s(pid: int) -> float:
    """Return the processor time of a process, of all its threads since it began."""
    if sys.platform == "linux":
        return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it; psutil counts in steps of 10 ms
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def resident_nbytes(pid: int) -> int:
    """Return how much memory a process holds."""
    return int(psutil.Process(pid).memory_info().rss)


def peak_nbytes(pid: int) -> int:
    """Return the most that a process ever held, where the system tells (Linux), else what it holds now."""
    # psutil tells what is held now, and the peak on Windows only
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else resident_nbytes(pid)
