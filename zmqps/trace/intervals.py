"""Intervals of time, in microseconds: sorted and apart from each other, but where something else is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]
Intervals: TypeAlias = list[Interval]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Return the time that some of these, which may overlap, cover."""
    merged: Intervals = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        elif stop > start:
            merged.append((start, stop))
    return merged


def intersection(some: Sequence[Interval], others: Sequence[Interval]) -> Intervals:
    """Return the time that both cover."""
    found: Intervals = []
    i = j = 0
    while i < len(some) and j < len(others):
        start, stop = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start < stop:
            found.append((start, stop))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(some: Sequence[Interval], others: Sequence[Interval]) -> Intervals:
    """Return the time that the first cover and the others do not."""
    return list(_difference(some, others))


def _difference(some: Sequence[Interval], others: Sequence[Interval]) -> Iterator[Interval]:
    j = 0
    for start, stop in some:
        while j < len(others) and others[j][1] <= start:
            j += 1
        k = j
        while k < len(others) and others[k][0] < stop:
            if others[k][0] > start:
                yield start, others[k][0]
            start = max(start, others[k][1])
            k += 1
        if start < stop:
            yield start, stop


def length(intervals: Iterable[Interval]) -> float:
    """Return how long they are together."""
    return sum([stop - start for start, stop in intervals])
