"""How this process's malloc treats the memory of received frames."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from functools import cache

#: The largest glibc allows: larger blocks come from the system anew, page by page, each time.
MMAP_THRESHOLD = 32 << 20
#: What malloc keeps of freed memory, an arena.
TRIM_THRESHOLD = 64 << 20
#: The same while what peers have left behind is given back.
TRIM_THRESHOLD_LOW = 1 << 20
#: Bytes of large messages that are read until what was made of them is given back: thirty times as much, or more.
READ_NBYTES = 1 << 20

#: Of what a server can address so much is kept for when there is no more: ZeroMQ ends a process that has no memory for
#: its queues, and what it takes to say so, and to be heard by the coordinator, is little.
RESERVE_NBYTES = 8 << 20
#: After so long it is set aside again.
RESERVE_S = 1.0

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


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


class FreedObjects:
    """Python's objects that are made of large messages and freed: many small ones, all over the heap."""

    def __init__(self) -> None:
        self._nbytes = 0

    @contextlib.contextmanager
    def reading(self, nbytes: int) -> Iterator[None]:
        """Read a message of so many bytes meanwhile, in any thread; what is freed goes back to the system.

        Python keeps some freed objects of each type for the next ones, and each keeps a whole megabyte of its heap from
        the system: only a full collection lets them go. It takes about half a microsecond an object that is there, for
        all threads (see `spare_the_collector`), so it is done once for many bytes.
        """
        let_freed_memory_go()
        try:
            yield
        finally:
            self._nbytes += nbytes
            if self._nbytes >= READ_NBYTES:
                self._nbytes = 0
                gc.collect()
                give_back_freed_memory()
            keep_freed_memory()


class Reserve:
    """Memory that nobody uses until there is no other: a mapping without pages, which costs nothing but addresses."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None
        self.take()

    def take(self) -> bool:
        """Set it aside, again; False while there is too little."""
        if self._held is None:
            with contextlib.suppress(OSError, MemoryError):
                self._held = mmap.mmap(-1, RESERVE_NBYTES)
        return self._held is not None

    def give(self) -> bool:
        """Let it be used; False if it is already."""
        if self._held is None:
            return False
        self._held.close()
        self._held = None
        return True


@cache
def spare_the_collector() -> None:
    """Let Python's collector never look again at what is there: to walk all modules takes 25 ms, with numba 50.

    Done at the first call alone, when they are there: what has circles and is frozen is never freed.
    """
    gc.collect()
    gc.freeze()


def give_back_freed_memory() -> bool:
    """Return to the system what malloc keeps of freed memory, wherever it lies; False with another C library."""
    return _tell_malloc("malloc_trim", 0)


def let_freed_memory_go() -> bool:
    """Let malloc give back what is freed from now on at the end of each thread's memory, until `keep_freed_memory`.

    That is what `give_back_freed_memory` does not reach but for the main thread's.
    """
    return _tell_malloc("mallopt", _M_TRIM_THRESHOLD, TRIM_THRESHOLD_LOW)


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
    found = _function_of_malloc(function)
    return found is not None and bool(found(*arguments))


@cache  # what ctypes makes for a library is a cycle of thirty objects: each time, for every connection that ends
def _function_of_malloc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found
