"""How this process's malloc treats the memory of received frames."""

from __future__ import annotations

import ctypes
import sys

#: The largest glibc allows: larger blocks come from the system anew, page by page, each time.
MMAP_THRESHOLD = 32 << 20
#: What malloc keeps of freed memory, an arena.
TRIM_THRESHOLD = 64 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


class FreedMemory:
    """Arrays that this process has freed for good, and that malloc keeps all the same."""

    def __init__(self) -> None:
        self._nbytes = 0

    def add(self, nbytes: int) -> None:
        """So many bytes were freed: once they are more than malloc is meant to keep, the system gets them back.

        That takes about 0.1 ms a megabyte.
        """
        self._nbytes += nbytes
        if self._nbytes > TRIM_THRESHOLD:
            self._nbytes = 0
            give_back_freed_memory()


def give_back_freed_memory() -> bool:
    """Return to the system what malloc keeps of freed memory, wherever it lies; False with another C library."""
    return _tell_malloc("malloc_trim", 0)


def share_memory_of_threads() -> bool:
    """Let all threads that begin from now on take their memory from one place; False with another C library.

    Each would have its own, of which `give_back_freed_memory` does not reach the end. Is for a process that is zmqps's
    own: threads that allocate much at the same time would wait for each other.
    """
    return _tell_malloc("mallopt", _M_ARENA_MAX, 1)


def keep_freed_memory() -> bool:
    """Let malloc keep the memory of frames for the next ones, instead of returning it to the system.

    ZeroMQ allocates every received frame and frees it when it has been used, megabytes at a time.
    By default glibc gives such memory back at once, and the next frame costs a page fault every
    4 KiB: a fifth of the processor time of a step over TCP. Does nothing, and returns False, with
    another C library.
    """
    changed = _tell_malloc("mallopt", _M_MMAP_THRESHOLD, MMAP_THRESHOLD)
    return changed and _tell_malloc("mallopt", _M_TRIM_THRESHOLD, TRIM_THRESHOLD)


def _tell_malloc(function: str, *arguments: int) -> bool:
    """Call a function of glibc; False with another C library."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except (OSError, AttributeError):
        return False
