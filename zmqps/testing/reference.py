"""The values a synchronous training must have: its steps, computed one by one in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from zmqps.core.protocol.arrays import Array

RATE = 0.1
MOMENTUM = 0.5
#: float32 against float64 after some tens of steps; a wrong contributor changes values by a thousand times that.
TOLERANCE = 1e-4

#: A gradient and how often it counts: flat arrays by parameter, None where it has none.
Gradient = tuple[Sequence[Array | None], int]


class Reference:
    """Sequential training with momentum: a version after each step, all of them kept.

    Parameters
    ----------
    values
        The initial ones, flat, by parameter.
    """

    def __init__(self, values: Sequence[Array]) -> None:
        self.versions = [[np.asarray(value, np.float64) for value in values]]
        self._velocity: list[Array] = [np.zeros_like(value) for value in self.versions[0]]

    def step(self, gradients: Sequence[Gradient]) -> None:
        """Apply the mean of some gradients, each parameter's over those that have it."""
        values = list(self.versions[-1])
        for i, value in enumerate(values):
            brought = [(source[i], examples) for source, examples in gradients if source[i] is not None]
            if brought:
                total = sum(np.asarray(g, np.float64) * n for g, n in brought)
                self._velocity[i] = MOMENTUM * self._velocity[i] + total / sum(n for _, n in brought)
                values[i] = value - RATE * self._velocity[i]
        self.versions.append(values)

    def compare(self, version: int, who: str, arrays: Iterable[tuple[int, Array]], start: int = 0) -> None:
        """Assert that stretches of parameters, from element ``start`` on, have the values of a version."""
        assert version < len(self.versions), f"{who} is at version {version}, which was never committed"
        for parameter, array in arrays:
            expected = self.versions[version][parameter][start : start + array.size]
            assert np.allclose(array, expected, rtol=TOLERANCE, atol=TOLERANCE), (
                f"{who} is not the sequential reference at version {version}: {array} instead of {expected}"
            )
