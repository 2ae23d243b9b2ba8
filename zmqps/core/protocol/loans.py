"""Frames in another process's memory, which stay as they are while they are read.

A transport may hand out such frames (docs/lane.md). The lender learns of it by a `Loan` among the
readers of what it sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: `zmqps.core.protocol.messages.Push.checked` of gradients that have been looked at, and that their sender leaves alone
#: where they lie until their step is over. Anything else but 0 says the first only.
STAYS = 2


class Loan:
    """A `zmqps.core.protocol.events.Reader` that may read for longer than it takes to write a message."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        """Whether the buffer is free again; once True, always True."""
        raise NotImplementedError


class Borrowed(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes ``[start, stop)`` of a memory that stay as they are while ``hold`` is referred to."""

    memory: Bytes
    start: int
    hold: Any


def borrow(memory: Bytes, start: int, stop: int, hold: Any) -> memoryview:
    """Return bytes of a memory; all that is made of them, slices and arrays alike, keeps ``hold`` alive."""
    borrowed = memory[start:stop].view(Borrowed)
    borrowed.memory, borrowed.start, borrowed.hold = memory, start, hold
    # numpy would leave the array out of the chain that keeps memory alive, but not a memoryview
    return memoryview(borrowed)  # type: ignore[arg-type]


def lender_of(array: Array) -> Borrowed | None:
    """Return the borrowed bytes that an array made of a frame lies in; None if there are none."""
    frame = _frame_of(array)
    owner = None if frame is None else frame.obj
    return owner if isinstance(owner, Borrowed) else None


def received(array: Array) -> memoryview | None:
    """Return the frame that an array lies in if its memory was allocated for it; None if somebody else needs it back.

    Frames in memory that is shared, lent or used in turns are arrays of that memory (`borrow` says why).
    """
    frame = _frame_of(array)
    return None if frame is None or isinstance(frame.obj, np.ndarray) else frame


def _frame_of(array: Array) -> memoryview | None:
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, memoryview) else None
