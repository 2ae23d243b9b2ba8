"""How this process's malloc treats the memory of received frames, and how much memory it can still have."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from zmqps.files import read_kernel

#: What a container may use, what it uses, and what of that are files it has read, whose memory can be had at once;
#: psutil tells of the whole host only.
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")
CGROUP_USES = Path("/sys/fs/cgroup/memory.stat")


#: What the host said last: of what is asked in each heartbeat nothing can be read while descriptors are short.
_said: dict[str, int] = {}


def _of_host(name: str) -> int:
    """Return a field of `psutil.virtual_memory`, or what it was."""
    import psutil

    try:
        _said[name] = int(getattr(psutil.virtual_memory(), name))
    except OSError:
        if name not in _said:
            raise
    return _said[name]


def available_nbytes() -> int:
    """Return the bytes of memory that can be had without swapping, in a container those it may still use.

    Raises
    ------
    OSError
        The system does not say, and has not said before.
    """
    available = _of_host("available")
    try:
        uses = dict(line.split() for line in read_kernel(CGROUP_USES).splitlines())
        files = int(uses.get("inactive_file", 0)) + int(uses.get("slab_reclaimable", 0))
        return min(available, max(0, int(read_kernel(CGROUP_LIMIT)) - int(read_kernel(CGROUP_USED)) + files))
    except (OSError, ValueError):  # no container, or one without a limit
        return available


def total_nbytes() -> int:
    """Return the bytes of memory that this host has, or this container may use; errors as of `available_nbytes`."""
    total = _of_host("total")
    try:
        return min(total, int(read_kernel(CGROUP_LIMIT)))
    except (OSError, ValueError):
        return total


#: The largest value glibc allows: larger blocks come from the system page by page, each time.
MMAP_THRESHOLD = 32 << 20
#: How much freed memory malloc keeps, per arena.
TRIM_THRESHOLD = 64 << 20
#: The same while memory of departed peers is returned.
TRIM_THRESHOLD_LOW = 1 << 20
#: Bytes of large messages read before objects made from them are returned: thirty times as much, or more.
READ_NBYTES = 1 << 20

#: Address space that a server reserves for when there is no more: ZeroMQ ends a process that has no memory for its
#: queues, and an error report that reaches the coordinator needs little.
RESERVE_NBYTES = 8 << 20
#: Seconds after which it is reserved again.
RESERVE_S = 1.0

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


class FreedMemory:
    """Arrays that this process has freed for good, but that malloc still keeps."""

    def __init__(self) -> None:
        self._nbytes = 0

    def add(self, nbytes: int) -> None:
        """Count freed bytes: once they exceed what malloc should keep, return them to the system.

        That takes about 0.1 ms a megabyte.
        """
        self._nbytes += nbytes
        if self._nbytes > TRIM_THRESHOLD:
            self._nbytes = 0
            give_back_freed_memory()


class FreedObjects:
    """Python objects made from large messages and freed: many small ones, all over the heap."""

    def __init__(self) -> None:
        self._nbytes = 0

    @contextlib.contextmanager
    def reading(self, nbytes: int) -> Iterator[None]:
        """Read a message of this many bytes meanwhile, in any thread; freed memory returns to the system.

        Python keeps some freed objects of each type for reuse, and each of them keeps a whole megabyte of its heap from
        the system: only a full collection releases them. It takes about half a microsecond for each existing object,
        for all threads (see `spare_the_collector`), so it is done once for many bytes.
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
    """Memory that is unused until there is no other: a mapping without pages, which costs only addresses."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None
        self.take()

    def take(self) -> bool:
        """Reserve it, again; False while there is too little."""
        if self._held is None:
            with contextlib.suppress(OSError, MemoryError):
                self._held = mmap.mmap(-1, RESERVE_NBYTES)
        return self._held is not None

    def give(self) -> bool:
        """Release it for use; False if that is done already."""
        if self._held is None:
            return False
        self._held.close()
        self._held = None
        return True


@cache
def spare_the_collector() -> None:
    """Exclude existing objects from Python's collector: to walk all modules takes 25 ms, with numba 50.

    Done only at the first call, when they exist: frozen objects in cycles are never freed.
    """
    gc.collect()
    gc.freeze()


def give_back_freed_memory() -> bool:
    """Return freed memory that malloc keeps to the system, wherever it is; False with another C library."""
    return _tell_malloc("malloc_trim", 0)


def let_freed_memory_go() -> bool:
    """Make malloc return memory freed from now on at the end of each thread's memory, until `keep_freed_memory`.

    `give_back_freed_memory` does not reach that except for the main thread.
    """
    return _tell_malloc("mallopt", _M_TRIM_THRESHOLD, TRIM_THRESHOLD_LOW)


def keep_freed_memory() -> bool:
    """Make malloc keep the memory of frames for reuse, instead of returning it to the system.

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


@cache  # ctypes makes a cycle of thirty objects for a library: once, not for every connection that ends
def _function_of_malloc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found
