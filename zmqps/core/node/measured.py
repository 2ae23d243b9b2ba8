"""A node's answer to a request for figures: its own, histograms among them, and those of all members."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.protocol.figures import Scope


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The counts of one node, about itself or (a server) about one job.

    Attributes
    ----------
    scope
        Which figures of `zmqps.core.protocol.figures.OF_NODES` these are.
    role, rank, job
        Whose; a rank, not a life, so that their number is bounded. None: the coordinator has no rank.
    counters
        By name, as in a heartbeat; or the same in JSON, parsed when shown.
    """

    scope: Scope
    role: str
    rank: int | None
    job: str
    counters: Mapping[str, Any] | str

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its series."""
        labels = {"role": self.role}
        if self.rank is not None:
            labels["rank"] = str(self.rank)
        return {**labels, "job": self.job} if self.job else labels


@dataclass(frozen=True, slots=True)
class Known:
    """A figure of `zmqps.core.protocol.figures.OF_COORDINATOR`, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurements:
    """All figures of a node."""

    counted: list[Counted]
    known: list[Known] = field(default_factory=list)
