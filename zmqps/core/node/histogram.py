"""Histograms of values: integers, incremented at events and read on request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence


class Histogram:
    """Counts values by size: each at the first of ascending bounds that it does not exceed, or after the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of counted values."""
        return sum(self.counts)

    def to_plain(self) -> list[float]:
        """Return the sum, then the counts, as in a heartbeat."""
        return [round(self.total, 6), *self.counts]


def tallied(values: Mapping[int, int], bounds: Sequence[float]) -> list[float]:
    """Return values that were counted one by one, value -> how often, in the same form."""
    histogram = Histogram(bounds)
    for value, number in values.items():
        histogram.counts[bisect_left(bounds, value)] += number
        histogram.total += value * number
    return histogram.to_plain()
