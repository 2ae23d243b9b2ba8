"""Contiguous pieces of arrays into payload buffers, and payload buffers back into pieces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqps.errors import ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

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
