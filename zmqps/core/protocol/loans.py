"""Frames in another process's memory, which do not change while they are read.

A transport may deliver such frames (docs/lane.md). The lender sees them as a `Loan` among the readers of its message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: `zmqps.core.protocol.messages.Push.checked` of checked gradients that their sender does not change in place until
#: their step is over. Any other value but 0 means only that they are checked.
STAYS = 2


class Loan:
    """A `zmqps.core.protocol.events.Reader` that may read for longer than it takes to write a message."""

    __slots__ = ()

    @property
    def done(self) -> bool:
        """Whether the buffer is free again; once True, always True."""
        raise NotImplementedError


class Borrowed(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes ``[start, stop)`` of a memory that does not change while ``hold`` is referred to."""

    memory: Bytes
    start: int
    hold: Any


class OwnMemory:
    """A copy of borrowed memory that is made where, and when, this process writes to it.

    It returns the loans once it is garbage-collected.

    Attributes
    ----------
    data
        The copy.
    used
        Which of its bytes the arrays take: from, to.
    """

    __slots__ = ("__weakref__", "data", "used")

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.used: list[tuple[int, int]] = []


#: Makes such a copy of a memory; the second argument is kept until it ends. None: it can only be copied at once.
CopyOnWrite = Callable[[Bytes, Any], OwnMemory | None]


def borrow(memory: Bytes, start: int, stop: int, hold: Any) -> memoryview:
    """Return bytes of a memory; everything made of them, slices and arrays alike, keeps ``hold`` alive."""
    borrowed = memory[start:stop].view(Borrowed)
    borrowed.memory, borrowed.start, borrowed.hold = memory, start, hold
    # numpy would leave the array out of the chain that keeps memory alive, but not a memoryview
    return memoryview(borrowed)  # type: ignore[arg-type]


def lender_of(array: Array) -> Borrowed | None:
    """Return the borrowed bytes that contain an array made of a frame; None if there are none."""
    frame = _frame_of(array)
    owner = None if frame is None else frame.obj
    return owner if isinstance(owner, Borrowed) else None


def received(array: Array) -> memoryview | None:
    """Return the frame of an array if its memory was allocated for it; None if the memory must be returned to an owner.

    Frames in memory that is shared, lent or used in turns are arrays of that memory (`borrow` says why).
    """
    frame = _frame_of(array)
    return None if frame is None or isinstance(frame.obj, np.ndarray) else frame


def _frame_of(array: Array) -> memoryview | None:
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, memoryview) else None
