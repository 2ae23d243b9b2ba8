"""Counts by size: each value in one place, and the sum."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.node.measured import Histogram, tallied
from zmqps.core.protocol.figures import BOUNDS, is_histogram

STALENESS = BOUNDS["staleness"]


def test_a_value_is_counted_at_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1, 2, 4))
    for value in (0, 1, 1.5, 2, 3, 4, 5, 100):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 2, 2]
    assert histogram.count == 8
    assert histogram.to_plain() == [116.5, 2, 2, 2, 2]


@given(st.lists(st.integers(0, 5000), max_size=50))
def test_values_tallied_one_by_one_make_the_same_histogram(values: list[int]) -> None:
    histogram = Histogram(STALENESS)
    for value in values:
        histogram.observe(value)
    assert tallied(Counter(values), STALENESS) == histogram.to_plain()
    assert is_histogram("staleness", histogram.to_plain())


def test_what_is_no_histogram_of_ours_is_none() -> None:
    good = [1.0, *[0] * (len(STALENESS) + 1)]
    assert is_histogram("staleness", good)
    assert not is_histogram("pushes", good)
    for bad in (good[:-1], [*good, 0], [-1.0, *good[1:]], [float("nan"), *good[1:]], [1.0, -1, *good[2:]], "x", None):
        assert not is_histogram("staleness", bad)
