"""Arrays of ids and rows in wire form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zmqps.core.protocol.arrays import Array, scatter
from zmqps.errors import ProtocolError

ID_DTYPE: np.dtype[Any] = np.dtype("<i8")


def read_arrays(payload: Sequence[Any], runs: Sequence[tuple[int, np.dtype[Any]]]) -> list[Array]:
    """Return the arrays in a payload, each in one piece; ids are in a form for compiled code."""
    nbytes = sum(memoryview(buffer).nbytes for buffer in payload)
    if nbytes != sum(size * dtype.itemsize for size, dtype in runs):  # before allocating anything of that size
        raise ProtocolError("the payload has other bytes than the ids and rows that it is said to have")
    pieces: list[list[Array]] = [[] for _ in runs]
    for run, _, piece in scatter(payload, runs):
        pieces[run].append(piece)
    found = [
        np.concatenate(some) if len(some) > 1 else some[0] if some else np.empty(0, dtype)
        for some, (_, dtype) in zip(pieces, runs, strict=True)
    ]
    return [array if array.dtype != ID_DTYPE else owned(array) for array in found]


def owned(array: Array) -> Array:
    """Return an array that may be kept: a copy, unless it is one already."""
    return array if array.base is None and array.flags.owndata else array.copy()
