"""Intervals of time against what a set of points says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zmqps.trace.phases import difference, intersection, length, union

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda p: (float(p[0]), float(p[0] + p[1]))))


def points(intervals: list[tuple[float, float]]) -> set[int]:
    return {point for start, stop in intervals for point in range(int(start), int(stop))}


@given(PAIRS, PAIRS)
def test_they_are_as_sets_of_points(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> None:
    a, b = union(some), union(others)
    assert points(a) == points(some)
    assert points(intersection(a, b)) == points(some) & points(others)
    assert points(difference(a, b)) == points(some) - points(others)
    for found in (a, intersection(a, b), difference(a, b)):
        assert length(found) == len(points(found))
        assert found == sorted(found)
