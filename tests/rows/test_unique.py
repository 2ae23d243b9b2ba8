"""Ids that occur several times."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.rows.hashing import NUM_BUCKETS, buckets_of
from zmqps.rows.unique import different, group, merged, spread, summed

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=60).map(lambda x: np.array(x, np.int64))


@given(ids=IDS, parts=st.integers(1, 5), seed=st.integers(0, 2**64 - 1))
def test_each_id_comes_once_in_its_part_in_the_order_of_first_occurrence(ids, parts, seed):
    part_of = np.arange(NUM_BUCKETS, dtype=np.int64) * parts // NUM_BUCKETS
    found = group(different(ids, seed), part_of, parts)
    assert np.array_equal(found.ids[found.inverse], ids)
    expected = [[] for _ in range(parts)]
    for number, bucket in zip(ids.tolist(), buckets_of(ids, seed).tolist(), strict=True):
        if number not in expected[part_of[bucket]]:
            expected[part_of[bucket]].append(number)
    bounds = found.offsets.tolist()
    assert [found.ids[lo:hi].tolist() for lo, hi in pairwise(bounds)] == expected


@given(ids=IDS, seed=st.integers(0, 99))
def test_gradients_of_an_id_are_added_and_rows_go_to_all_who_asked(ids, seed):
    rng = np.random.default_rng(seed)
    grads = rng.integers(-9, 9, (ids.size, 3)).astype(np.float32)
    found = different(ids, 1)
    total, _ = summed(grads, found.inverse, found.size)
    for number, row in zip(found.ids, total, strict=True):
        assert np.array_equal(row, grads[ids == number].sum(axis=0))
    out = np.full((ids.size, 3), -1.0, np.float32)
    half = found.size // 2
    spread(total[:half], 0, found.inverse, out)
    spread(total[half:], half, found.inverse, out)
    assert np.array_equal(out, total[found.inverse])


def test_an_id_may_be_repeated_a_million_times():
    ids = np.full(1_000_000, 7, np.int64)
    found = different(ids, 0)
    assert found.ids.tolist() == [7]
    assert summed(np.ones((ids.size, 1), np.float32), found.inverse, 1)[0].tolist() == [[1_000_000.0]]


@for_each("wrong", [np.nan, np.inf, -np.inf])
def test_sums_that_are_not_finite_are_found_as_they_are_made(wrong):
    grads, inverse = np.ones((4, 3), np.float32), np.array([0, 1, 0, 1])
    assert summed(grads, inverse, 2)[1]
    for place in np.ndindex(grads.shape):
        changed = grads.copy()
        changed[place] = wrong
        assert not summed(changed, inverse, 2)[1]
    grads[:] = np.finfo(np.float32).max
    assert not summed(grads, inverse, 2)[1], "their sum is too large"
    assert summed(grads, np.arange(4), 4)[1]
    assert summed(grads[:0], inverse[:0], 0)[1]


def test_gradients_may_be_read_only_unaligned_and_apart():
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    raw = np.frombuffer(b"x" + wide.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 6)
    inverse = np.array([0, 1, 0, 1])
    expected = [[12.0, 14.0], [24.0, 26.0]]
    for grads in (wide[:, :2], raw[:, :2]):
        assert summed(grads, inverse, 2)[0].tolist() == expected


def test_contributions_are_merged_by_id_and_weighted():
    a = np.array([5, -1]), np.array([[2.0], [4.0]], np.float32), 1
    b = np.array([9, 5]), np.array([[8.0], [6.0]], np.float32), 3
    ids, rows = merged([a, b], 4, 1, 7)
    assert ids.tolist() == [5, -1, 9]
    assert rows.tolist() == [[5.0], [1.0], [6.0]]


def test_the_mean_of_finite_rows_is_finite():
    large = np.array([1]), np.full((1, 2), 3e38, np.float32), 1000
    assert merged([large, large], 2000, 2, 7)[1].tolist() == [[pytest.approx(3e38)] * 2]


def test_nothing_is_merged_to_nothing():
    ids, rows = merged([], 0, 3, 7)
    assert ids.size == 0
    assert rows.shape == (0, 3)


def test_a_contribution_with_an_id_twice_may_be_infinite_but_disturbs_nobody() -> None:
    ids, means = merged([(np.array([0, 0, 5]), np.array([[3e38], [3e38], [1.0]], np.float32), 1)], 1, 1, 7)
    assert dict(zip(ids.tolist(), means[:, 0].tolist(), strict=True)) == {0: np.inf, 5: 1.0}
