"""How often ids were touched, about: a count-min sketch (Cormode, Muthukrishnan, J. Algorithms 55, 2005)."""

from __future__ import annotations

import numpy as np

from zmqps.errors import ProtocolError
from zmqps.rows import loops
from zmqps.rows.hashing import Array, mixed
from zmqps.rows.kernels import kernel

DEPTH = 4
#: Another hash than that of buckets and indexes.
SEED = 0x5BD1E9955BD1E995


class Sketch:
    """Counts touches up to 255, in a table of bytes; never too few, seldom too many.

    Only the smallest of an id's counters go up (conservative update: Estan, Varghese, SIGCOMM 2002).

    Parameters
    ----------
    width
        Counters in each of `DEPTH` rows: with ten times as many ids, about one of ten counts is too large.
    """

    def __init__(self, width: int) -> None:
        self.array = np.zeros((DEPTH, width), np.uint8)

    def touch(self, ids: Array) -> Array:
        """Count one touch of each of some different ids; return how often each was touched until now, uint8."""
        out = np.empty(ids.size, np.uint8)
        kernel(loops.touch)(mixed(ids, SEED), self.array, out)
        return out

    def merge(self, other: Array) -> None:
        """Know what another sketch of the same width knows.

        Raises
        ------
        ProtocolError
            It has another width.
        """
        if other.shape != self.array.shape or other.dtype != np.uint8:
            raise ProtocolError(f"a sketch of {self.array.shape} is not merged with one of {other.shape}")
        np.maximum(self.array, other, out=self.array)
