"""Hashes of ids: the buckets that rows belong to, and seeds that are the same on all hosts."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

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
