"""Arrays of ids and rows in wire form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.errors import ProtocolError

ID_DTYPE: np.dtype[Any] = np.dtype("<i8")
_OTHER_BYTES = "the payload has other bytes than the ids and rows that it is said to have"


def cut(payload: Sequence[Any], *sizes: int) -> list[list[memoryview]]:
    """Return the pieces of a payload that have that many bytes each, and the pieces of the rest.

    Raises
    ------
    ProtocolError
        It is shorter.
    """
    frames = [view.cast("B") for buffer in reversed(payload) if (view := memoryview(buffer)).nbytes]
    parts: list[list[memoryview]] = []
    for left in sizes:
        parts.append([])
        while left:
            if not frames:
                raise ProtocolError(_OTHER_BYTES)
            frame = frames.pop()
            parts[-1].append(frame[:left])
            if frame.nbytes > left:
                frames.append(frame[left:])
            left -= parts[-1][-1].nbytes
    frames.reverse()
    return [*parts, frames]


def joined(pieces: Sequence[memoryview], dtype: np.dtype[Any]) -> Array:
    """Return the array in some pieces, which is a view of a single one; ids are in a form for compiled code."""
    array = np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), dtype)
    return array.copy() if dtype == ID_DTYPE or not array.flags.aligned else array


def read_arrays(payload: Sequence[Any], runs: Sequence[tuple[int, np.dtype[Any]]]) -> list[Array]:
    """Return the arrays in a payload, which has nothing else.

    Raises
    ------
    ProtocolError
        It has other bytes than these.
    """
    *parts, rest = cut(payload, *[size * dtype.itemsize for size, dtype in runs])
    if rest:
        raise ProtocolError(_OTHER_BYTES)
    return [joined(part, dtype) for part, (_, dtype) in zip(parts, runs, strict=True)]


def owned(array: Array) -> Array:
    """Return an array that may be kept: a copy, unless it is one already."""
    return array if array.base is None and array.flags.owndata else array.copy()
