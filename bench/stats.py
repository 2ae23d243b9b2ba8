"""A few times become a median, a spread and a ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between the two nearest values."""
    if not values:  # numpy would say that an index is out of bounds
        raise ValueError("no values")
    return float(np.percentile(values, percent))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the same work took again and again."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle one."""
        return percentile(self.seconds, 50)

    @property
    def minimum(self) -> float:
        """The minimum: the time without disturbance."""
        return min(self.seconds)

    @property
    def p90(self) -> float:
        """Nine of ten are shorter."""
        return percentile(self.seconds, 90)


def ratio_spread(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Return the quartiles of the ratios of neighbours in an interleaved run.

    What disturbs the machine for a while disturbs both neighbours, so this says how far to trust
    the ratio of two medians.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return percentile(ratios, 25), percentile(ratios, 75)


def network_bound(nbytes: int, workers: int, servers: int, bytes_per_s: float) -> float:
    """Return the least seconds a step can take where every host's link carries that much each way.

    A worker's link carries the model once, ``M/B``; a server's the part of it that is there, once
    for each worker, ``nM/(kB)``.
    """
    return max(nbytes, workers * nbytes / servers) / bytes_per_s
