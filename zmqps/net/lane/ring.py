"""A ring of bytes in shared memory: one writer, one reader, positions that only grow.

The writer copies a frame in and tells the reader its *position*, which counts all bytes the ring
has ever held: the frame is at ``position % size``. The reader hands out views of the frames and
moves the *tail*, a counter in shared memory, over those that have been garbage-collected; the bytes
between tail and head are not written to. Frames do not wrap around the end, and one that finds no
room is refused: neither side ever waits here.

Order of memory accesses. A frame's bytes are written before its position travels, which passes at
least one lock or system call on each side, so the reader sees them. The tail is one aligned 8-byte
store after the last read of what it frees; x86 keeps that order by itself, for weaker machines the
reader passes a lock between the two. The writer writes only after it has seen the tail.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Counter64 = np.ndarray[Any, np.dtype[np.uint64]]

#: A cache line: what the vector instructions of kernels and copies like best.
ALIGNMENT = 64


class RingError(Exception):
    """The other side has written what no ring holds."""


def align(nbytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class RingWriter:
    """The side that puts frames in.

    Parameters
    ----------
    data
        The ring, a multiple of `ALIGNMENT` bytes.
    tail
        One element: the reader's counter.
    """

    def __init__(self, data: Bytes, tail: Counter64) -> None:
        self._data = data
        self._tail = tail
        self._free_from = 0
        self.head = 0  # set it back to take back frames that the reader does not know of

    def put(self, frame: Any) -> int | None:
        """Copy a frame in and return its position, or None if there is no room.

        Raises
        ------
        RingError
            The tail is not where a reader can have put it.
        """
        source = np.frombuffer(frame, np.uint8)
        size = self._data.size
        tail = int(self._tail[0])
        if not max(0, self.head - 2 * size) <= tail <= self.head:
            raise RingError(f"the tail is at {tail}, the head at {self.head}")
        to_start = -self.head % size
        if tail == self.head:
            # Empty: begin again at the start, so that small messages always meet the same bytes,
            # which the caches still hold. The reader learns of the jump with the frame.
            position = self._free_from = self.head + to_start
        else:
            position = self.head + (to_start if source.size > to_start > 0 else 0)
        if position + align(source.size) - max(tail, self._free_from) > size:
            return None
        offset = position % size
        np.copyto(self._data[offset : offset + source.size], source)  # without the GIL, unlike a memoryview
        self.head = position + align(source.size)
        return position


class _Held(NamedTuple):
    start: int
    root: weakref.ref[Bytes]


class RingReader:
    """The side that takes frames out; trusts nothing it receives."""

    def __init__(self, data: Bytes, tail: Counter64) -> None:
        self._data = data.view()
        self._data.flags.writeable = False
        self._tail = tail
        self._freed = 0
        self._end = 0  # of the newest message
        self._held: deque[_Held] = deque()
        self._fence = threading.Lock()
        self._fence.acquire()

    def take(self, base: int, frames: list[tuple[int, int]]) -> list[memoryview]:
        """Return read-only views of a message's frames; each is freed once it is garbage-collected.

        Parameters
        ----------
        base
            The writer's head before the message. What is before it and has not come is lost: its
            room is free again.
        frames
            (position, nbytes) of each.

        Raises
        ------
        RingError
            No writer can have put a frame there. Nothing has changed.
        """
        self.free()
        size, end = self._data.size, base
        # a writer is at most one ring ahead of the tail, and the jump over what is left of one
        if not self._end <= base <= self._freed + 2 * size or base % ALIGNMENT:
            raise RingError(f"a message begins at {base}, the one before it ended at {self._end}")
        for position, nbytes in frames:
            if position not in (end, end + -end % size) or not 0 < nbytes <= size - position % size:
                raise RingError(f"no frame of {nbytes} bytes can be at {position}, after {end}, in {size} bytes")
            end = position + align(nbytes)
        oldest = self._held[0].start if self._held else frames[0][0] if frames else end
        if end - oldest > size:
            raise RingError(f"frames from {oldest} to {end} overlap in {size} bytes")
        self._end = end
        views = []
        for position, nbytes in frames:
            offset = position % size
            root = self._data[offset : offset + nbytes]
            # Whatever is made of the view, slices and arrays alike, keeps this one array alive.
            self._held.append(_Held(position, weakref.ref(root)))
            views.append(memoryview(root))  # type: ignore[arg-type]
        return views

    def free(self) -> None:
        """Move the tail over all frames that have been garbage-collected."""
        while self._held and self._held[0].root() is None:
            self._held.popleft()
        tail = self._held[0].start if self._held else self._end
        if tail != self._freed:
            self._freed = tail
            self._fence.release()
            self._fence.acquire()
            self._tail[0] = tail
