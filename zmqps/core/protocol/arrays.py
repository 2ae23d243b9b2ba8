"""Pieces of arrays into payload buffers and back, and frames in the memory of another process.

A transport may deliver such frames (docs/lane.md), which do not change while they are read. The lender sees them as a
`Loan` among the readers of its message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqps.errors import ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


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


Array = np.ndarray[Any, np.dtype[Any]]

#: Below this a copy is cheaper than a separate frame, which both ends handle one by one. Measured with ResNet-50 from
#: 64 KiB to 4 MiB: from 256 KiB to 1 MiB it makes no difference, and at 4 MiB the copies cost more than the frames.
GATHER_NBYTES = 256 << 10


def gather(pieces: Iterable[Array]) -> list[Array]:
    """Return buffers that hold the pieces one after the other.

    Large pieces are passed on unchanged (aliased, not copied); runs of small ones are copied into one buffer. Pieces
    are 1-D and C-contiguous.
    """
    buffers: list[Array] = []
    small: list[Array] = []

    def flush() -> None:
        if len(small) > 1:
            # as bytes: neighbours may have different dtypes
            buffers.append(np.concatenate([piece.view(np.uint8) for piece in small]))
        else:
            buffers.extend(small)
        small.clear()

    for piece in pieces:
        if piece.nbytes >= GATHER_NBYTES:
            flush()
            buffers.append(piece)
        elif piece.nbytes:
            small.append(piece)
    flush()
    return buffers


def scatter(payload: Sequence[Buffer], runs: Iterable[tuple[int, np.dtype[Any]]]) -> list[tuple[int, int, Array]]:
    """Cut a payload into runs of ``(size, dtype)``.

    Returns ``(run, offset, array)`` one after the other: elements ``[offset, offset + array.size)`` of that run.
    The arrays alias the payload, unless they would be unaligned.

    Raises
    ------
    ProtocolError
        The payload is shorter or longer than the runs, or a frame ends inside an element.
    """
    frames = iter([view for buffer in payload if (view := memoryview(buffer)).nbytes])
    frame, at, end = memoryview(b""), 0, 0  # the current frame, and which bytes of it are left
    pieces: list[tuple[int, int, Array]] = []
    elements, first, aligned = np.empty(0), 0, True  # the frame as elements of one dtype, and the byte it starts at
    for run, (size, dtype) in enumerate(runs):
        offset = 0
        while offset < size:
            fresh = at == end
            if fresh:
                following = next(frames, None)
                if following is None:
                    raise ProtocolError("the payload is shorter than the ranges it is for")
                frame, at, end = following, 0, following.nbytes
            if fresh or elements.dtype != dtype:
                elements, first = np.frombuffer(frame, dtype, (end - at) // dtype.itemsize, at), at
                aligned = elements.flags.aligned
            index = (at - first) // dtype.itemsize
            count = min(size - offset, elements.size - index)
            if not count:
                raise ProtocolError("an array frame ends inside an element")
            array = elements[index : index + count]
            pieces.append((run, offset, array if aligned else array.copy()))
            at += count * dtype.itemsize
            offset += count
    if at < end or next(frames, None) is not None:
        raise ProtocolError("the payload is longer than the ranges it is for")
    return pieces
