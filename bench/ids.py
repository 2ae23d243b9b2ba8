"""Which rows a batch touches, and in which order: for zmqps and for other systems alike, so without either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("zipf", "uniform")
#: Of Zipf's law: the n-th row is touched n**-1.05 times as often as the first, about as clicks on advertisements are.
EXPONENT = 1.05
#: Different batches of a worker, which take turns: what they touch together is far more than a cache holds.
NUM_BATCHES = 8
#: A prime: multiplied by it, modulo the number of rows, those that are touched often do not lie together.
_SPREAD = 2_654_435_761


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWork:
    """A table, and what workers do to it.

    Attributes
    ----------
    rows, dim
        Of the table.
    batch
        Ids of an operation, of which some are the same.
    ids
        One of `KINDS`.
    optimizer, servers, workers
        As everywhere.
    """

    rows: int = 10_000_000
    dim: int = 64
    batch: int = 65_536
    ids: str = "zipf"
    optimizer: str = "rowwise_adagrad"
    servers: int = 1
    workers: int = 1

    @property
    def title(self) -> str:
        """Names table and batch."""
        return f"{shortened(self.rows)}×{self.dim} {self.ids} {shortened(self.batch)}"

    def batches(self, worker: int = 0) -> list[Array]:
        """Return the numbers of the rows of each of a worker's batches, int64."""
        rng = np.random.default_rng([self.rows, self.batch, worker])
        return [self._batch(rng) for _ in range(NUM_BATCHES)]

    def _batch(self, rng: np.random.Generator) -> Array:
        if self.ids == "uniform":
            return rng.integers(0, self.rows, self.batch)
        power = 1.0 - EXPONENT  # the law's distribution, inverted, as if ranks were real numbers
        ranks = (1.0 + rng.random(self.batch) * ((self.rows + 1.0) ** power - 1.0)) ** (1.0 / power)
        return (np.minimum(ranks.astype(np.int64), self.rows) - 1) * _SPREAD % self.rows


def shortened(number: int) -> str:
    """Return a number in thousands or millions where it is a whole one of these."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)
