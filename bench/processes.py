"""What processes have used so far: processor time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psutil


class BusyTime:
    """Processor time that some processes use from now on, over all their threads and cores."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self.restart()

    def restart(self) -> None:
        """Count from now."""
        self._before = self._now()

    def seconds(self) -> float:
        """Return what was used since."""
        return self._now() - self._before

    def _now(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return sum(t.user + t.system for t in times)


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
