"""Arrays that grow without moving: address space is reserved at once, memory comes when it is written to."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

#: Python has a name for it only from 3.12 on; it is the same on all of Linux but Alpha, MIPS, PA-RISC and Xtensa.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", _NORESERVE)
PAGE_NBYTES = mmap.PAGESIZE
#: From here on an array may take pages of 2 MiB: rows are anywhere, and with small pages to find them in memory takes
#: longer than to read them. What begins earlier takes no more than it needs.
HUGE_FROM_NBYTES = 8 << 20


def reserve(num_rows: int, *shape: int, dtype: Any = np.float32) -> Array:
    """Return an array of zeros ``(num_rows, *shape)`` of which only what is written to takes memory.

    The address space is freed with the last array that refers to it.

    Raises
    ------
    MemoryError
        There is no such address space.
    """
    kind = np.dtype(dtype)
    size = num_rows * int(np.prod(shape, dtype=np.int64))
    if not size:
        return np.empty((num_rows, *shape), kind)
    try:
        memory = mmap.mmap(-1, size * kind.itemsize, flags=_FLAGS, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"no address space for {size * kind.itemsize:,} bytes of rows: {error}") from None
    if len(memory) > HUGE_FROM_NBYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them
            memory.madvise(mmap.MADV_HUGEPAGE, HUGE_FROM_NBYTES)
    return np.frombuffer(memory, kind, size).reshape(num_rows, *shape)


def release(array: Array, start: int, stop: int) -> None:
    """Give the memory of elements of a `reserve` d array back, as far as whole pages go; they read as zeros then."""
    memory: Any = array
    while isinstance(memory, np.ndarray):
        memory = memory.base
    if isinstance(memory, memoryview):
        memory = memory.obj
    first = -(-start * array.itemsize // PAGE_NBYTES) * PAGE_NBYTES
    last = stop * array.itemsize // PAGE_NBYTES * PAGE_NBYTES
    if isinstance(memory, mmap.mmap) and last > first and hasattr(memory, "madvise"):
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
