"""Hashes of ids."""

import numpy as np

from zmqps.rows.hashing import NUM_BUCKETS, buckets_of, mixed, seed_of

MASK = (1 << 64) - 1


def reference(number: int, seed: int) -> int:
    """Return MurmurHash3's finaliser, written out."""
    x = (number & MASK) ^ seed
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def test_hashes_are_those_of_the_finaliser():
    ids = np.array([0, 1, -1, 2**63 - 1, -(2**63), 12345], np.int64)
    for seed in (0, 7, MASK):
        assert mixed(ids, seed).tolist() == [reference(number, seed) for number in ids.tolist()]


def test_consecutive_ids_are_spread_evenly_over_the_buckets():
    counts = np.bincount(buckets_of(np.arange(1 << 20), seed_of("buckets", "items")), minlength=NUM_BUCKETS)
    assert counts.size == NUM_BUCKETS
    assert 0.8 < counts.min() / 1024 < counts.max() / 1024 < 1.2


def test_a_seed_is_the_same_everywhere_and_depends_on_each_part():
    assert seed_of("initial", "items", 7) == 18055045954960064268
    assert len({seed_of("a", 1), seed_of("a", "1"), seed_of("a1"), seed_of(1, "a")}) == 4
