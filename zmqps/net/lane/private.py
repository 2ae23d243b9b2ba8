"""Private mappings of memory that another process lends: what is written to them stays in this process.

A page of such a mapping is the lender's until this process writes to it; then the system copies it. So an array in
there is as good as a copy for as long as the lender changes nothing, and costs nothing where it is only read.
"""

from __future__ import annotations

import functools
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import OwnMemory

_POPULATE_WRITE = 23  # Linux 5.14: copies each page that is still the file's; `mmap` lacks it
#: Mappings without arrays that are kept for the next values, of each memory: one is in use, one is about to be.
MOST_KEPT = 2
#: Bytes that are copied while no other thread runs Python.
AT_ONCE_NBYTES = 8 << 20
#: A page in /proc/self/pagemap: in memory, in swap, and of a file.
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61


class PrivateMappings:
    """Private mappings of one file, reused when no array refers to them.

    Parameters
    ----------
    fd
        The file; a duplicate is kept.
    nbytes
        Of the file that are mapped.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd, self._nbytes = os.dup(fd), nbytes
        weakref.finalize(self, os.close, self._fd).atexit = False
        self._kept: deque[mmap.mmap] = deque(maxlen=MOST_KEPT)

    def take(self, hold: Any) -> Private | None:
        """Return a mapping with the file's contents; None where there can be none.

        Parameters
        ----------
        hold
            Keeps the file as it is while it is referred to.
        """
        if not can_detach():
            return None
        with _lock:
            try:
                mapping = self._kept.pop()
            except IndexError:
                try:
                    mapping = mmap.mmap(self._fd, self._nbytes, flags=mmap.MAP_PRIVATE)
                except OSError:
                    return None
            return Private(mapping, hold, self._kept)


class Private(OwnMemory):
    """A private mapping in use; everything made of its data has to refer to this object.

    Attributes
    ----------
    report
        Called at the end, in any thread: with the bytes that this process has a copy of, and those that were used.
    """

    __slots__ = ("_hold", "_is_over", "_kept", "_mapping", "report")

    def __init__(self, mapping: mmap.mmap, hold: Any, kept: deque[mmap.mmap]) -> None:
        OwnMemory.__init__(self, np.frombuffer(mapping, np.uint8))
        self.report: Callable[[int, int], None] | None = None
        self._is_over = False
        self._mapping, self._hold, self._kept = mapping, hold, kept
        _in_use.add(self)

    def detach(self) -> None:
        """Copy all that is used and still the lender's, and give the loan back.

        Raises
        ------
        OSError
            There is no memory for it: the loan stays.
        """
        with _lock:
            if self._hold is None or self._is_over:
                return
            for start, stop in self.used:
                for at in range(start // mmap.PAGESIZE * mmap.PAGESIZE, stop, AT_ONCE_NBYTES):
                    self._mapping.madvise(_POPULATE_WRITE, at, min(AT_ONCE_NBYTES, self.data.size - at, stop - at))
            self._hold = self.report = None

    @property
    def written_nbytes(self) -> int | None:
        """Bytes of the pages that this process has a copy of; None if the system does not say."""
        first, count = self.data.ctypes.data // mmap.PAGESIZE, -(-self.data.size // mmap.PAGESIZE)
        with suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as file:
            pages = np.frombuffer(os.pread(file.fileno(), 8 * count, 8 * first), np.uint64)
            if pages.size == count:
                own = (pages & (_PRESENT | _SWAPPED) != 0) & (pages & _OF_FILE == 0)
                return int(np.count_nonzero(own)) * mmap.PAGESIZE
        return None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # This may run anywhere, also with locks held for which a fork waits: without a wait the mapping is not reused.
        if is_finalizing() or not _lock.acquire(blocking=False):
            return
        self._is_over = True  # others may still have found it by a weak reference
        _lock.release()
        written = self.written_nbytes
        if written is not None:
            with suppress(OSError):
                if written:
                    self._mapping.madvise(mmap.MADV_DONTNEED)  # the file's pages again
                self._kept.append(self._mapping)
            if self.report is not None:
                self.report(written, sum(stop - start for start, stop in self.used))


#: Held while a mapping is taken, detached or given back, and from before a fork until after it.
_lock = threading.RLock()
_in_use: weakref.WeakSet[Private] = weakref.WeakSet()


@functools.cache
def can_detach() -> bool:
    """Whether this system copies the pages of a private mapping when asked to."""
    try:
        mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).madvise(_POPULATE_WRITE)
    except (OSError, ValueError, AttributeError):  # MADV_* are of Linux
        return False
    return True


def _before_fork() -> None:
    """Detach all: a child process has these mappings, but not the loans, which may be given back while it reads."""
    _lock.acquire()
    for private in list(_in_use):
        with suppress(OSError):
            private.detach()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _lock.release(), after_in_child=_after_fork_in_child
    )
