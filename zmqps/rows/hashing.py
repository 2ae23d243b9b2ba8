"""Hashes of ids: the buckets of rows, seeds that are the same on all hosts, and a sketch that counts touches."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from zmqps.errors import ProtocolError
from zmqps.rows import loops
from zmqps.rows.kernels import kernel

Array = np.ndarray[Any, np.dtype[Any]]

NUM_BUCKETS = 1024
#: The buckets are numbered by this many upper bits of a hash.
BUCKET_BITS = 10
assert 1 << BUCKET_BITS == NUM_BUCKETS


def mixed(ids: Array, seed: int) -> Array:
    """Return a hash of each id.

    Parameters
    ----------
    ids
        int64, of one dimension.
    seed
        64 bits; others, other hashes.

    Returns
    -------
    uint64 array
        A bijection of the ids: MurmurHash3's finaliser (Austin Appleby, public domain) of the id and the seed.
    """
    out = np.empty(ids.size, np.uint64)
    kernel(loops.mix)(ids, np.uint64(seed), out)
    return out


def buckets_of(ids: Array, seed: int) -> Array:
    """Return the bucket of each id, int64."""
    return (mixed(ids, seed) >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)


def seed_of(*parts: str | int) -> int:
    """Return 64 bits that are made of some texts and numbers, the same everywhere."""
    text = repr([part if isinstance(part, str) else int(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


DEPTH = 4
#: Another hash than that of buckets and indexes.
SEED = 0x5BD1E9955BD1E995


class Sketch:
    """Counts touches up to 255, in a table of bytes; never too few, seldom too many.

    A count-min sketch (Cormode, Muthukrishnan, J. Algorithms 55, 2005). Only the smallest of an id's counters go up
    (conservative update: Estan, Varghese, SIGCOMM 2002).

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
