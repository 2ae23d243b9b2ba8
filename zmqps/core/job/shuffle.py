"""A permutation of a million examples without storing it: each position is computed.

With the seed any part of it can be computed, so it need not be sent or stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

#: Luby and Rackoff need 4 rounds for a random function; more because ours is only a mixer.
ROUNDS = 8

_MASK = (1 << 64) - 1


def mix(*words: int) -> int:
    """Return a 64-bit number that depends on every bit of the words (SplitMix64's finalizer, chained)."""
    state = 0
    for word in words:
        state = (state + word + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permuted(start: int, stop: int, size: int, seed: int, data_pass: int) -> NDArray[np.int64]:
    """Return the examples at positions ``[start, stop)`` of a shuffled pass over ``size`` examples.

    A Feistel network permutes the numbers of 2h bits, the fewest that hold ``size``; a position that
    leaves ``[0, size)`` goes through it again until it is back (cycle walking: Black and Rogaway,
    Ciphers with Arbitrary Finite Domains, 2002), three times on average at most.

    Parameters
    ----------
    start, stop
        Positions in the pass.
    size
        The number of examples.
    seed, data_pass
        Each pair has its own permutation.

    Returns
    -------
    ndarray of int64
        Indices of examples; those of all positions together are a permutation.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [np.uint64(mix(seed, data_pass, number)) for number in range(ROUNDS)]
    values = _feistel(np.arange(start, stop, dtype=np.uint64), half, keys)
    outside = np.flatnonzero(values >= size)
    while outside.size:
        values[outside] = _feistel(values[outside], half, keys)
        outside = outside[values[outside] >= size]
    return values.astype(np.int64)


def _feistel(values: Words, half: int, keys: list[Any]) -> Words:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        x = (right + key) * np.uint64(0xBF58476D1CE4E5B9)  # overflow is intended
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ ((x ^ (x >> np.uint64(29))) & mask)
    return (left << shift) | right
