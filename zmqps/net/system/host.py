"""This host among others that share files with it, and a process's health: its use of the host, its loop's delay."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from pathlib import Path
from typing import Any

from zmqps.files import KERNEL_NBYTES, read_file, read_kernel

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETWORK = "/proc/self/ns/net"


def boot() -> str:
    """Return an identifier of the clock: processes of one host share it, until it reboots."""
    # psutil's boot_time moves when the clock is set
    return read_kernel(BOOT_ID).strip() if BOOT_ID.exists() else os.uname().nodename


def host_id() -> str:
    """Return an identifier shared by exactly the processes of one host: its kernel's life, and its network.

    Containers with their own networks are separate hosts. The number of a namespace alone is the same on most machines.
    """
    return f"{boot()}-{os.stat(NETWORK).st_ino if os.path.exists(NETWORK) else 0}"


def host_tag(*facts: str) -> str:
    """Return a name for files of this host, and for facts about it."""
    return hashlib.sha256("\0".join((host_id(), *facts)).encode()).hexdigest()[:32]


#: Size and resident pages of this process.
STATM = Path("/proc/self/statm")
PAGE_NBYTES = os.sysconf("SC_PAGE_SIZE")


class Health:
    """What a heartbeat reports of its process."""

    def __init__(self) -> None:
        self._lag_s = 0.0  # the maximum since the last report
        self._lags_s = 0.0
        self._collections = 0
        self._collecting_s = 0.0
        self._longest_s = 0.0  # since the last report
        self._began = 0.0

    def start(self) -> None:
        """Start to time the collector."""
        gc.callbacks.append(self._collected)

    def stop(self) -> None:
        """Stop timing it."""
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)

    def late(self, seconds: float) -> None:
        """The loop's timer was late by this much."""
        self._lags_s += seconds
        if seconds > self._lag_s:
            self._lag_s = seconds

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        took = time.perf_counter() - self._began
        self._collections += 1
        self._collecting_s += took
        self._longest_s = max(self._longest_s, took)

    def facts(self) -> dict[str, Any]:
        """Return the counters; maxima are since the last report."""
        return {
            "cpu_seconds": round(time.process_time(), 3),
            "rss_nbytes": resident_nbytes(),
            "loop_lag_seconds": round(self._lags_s, 6),
            "loop_lag_max_s": round(self._lag_s, 6),
            "gc_pauses": self._collections,
            "gc_pause_seconds": round(self._collecting_s, 6),
            "gc_pause_max_s": round(self._longest_s, 6),
        }

    def told(self) -> None:
        """A heartbeat has reported them."""
        self._lag_s = self._longest_s = 0.0


def resident_nbytes() -> int:
    """Return the bytes of memory that this process has in use."""
    try:
        return int(read_file(STATM, KERNEL_NBYTES).split()[1]) * PAGE_NBYTES
    except OSError:  # not Linux
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
