"""The values a synchronous training must have: its steps, computed one by one in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tests.simulator.jobs.trained import RowGradient, RowReference
from tests.simulator.watching.rates import OWN, Numbers
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.terms import SET, SET_TO_MEAN

#: float32 against float64 after some tens of steps; a wrong contributor changes values by a thousand times that.
TOLERANCE = 1e-4


class Gradient(NamedTuple):
    """What a push brings: flat arrays by parameter, None where it has none, and how often they count in a mean.

    ``sort`` is one of `zmqps.core.protocol.terms` where these are values; ``rows`` is what goes to a sparse table.
    """

    source: Sequence[Array | None]
    examples: int
    sort: float = 0.0
    rows: RowGradient | None = None


def examples_of(gradients: Iterable[Gradient]) -> int:
    """Return of how many examples the gradients are that a worker has arrived with; at least one."""
    trained = [g for g in gradients if not g.sort and not (g.rows is not None and g.rows.is_set)]
    of = Counter[int]()
    for gradient in trained:
        of.update({number: gradient.examples for number, array in enumerate(gradient.source) if array is not None})
    return max(1, *of.values(), *(g.examples for g in trained))


class Reference:
    """Sequential training with momentum: a version after each step, all of them kept.

    Parameters
    ----------
    values
        The initial ones, flat, by parameter.
    velocity
        Those of the optimizer; by default zeros.
    first
        The version that these are of.
    clip_norm
        What the norm of a mean is at most.
    rows
        The sparse tables.
    """

    def __init__(
        self,
        values: Sequence[Array],
        velocity: Sequence[Array] | None = None,
        first: int = 0,
        clip_norm: float | None = None,
        rows: RowReference | None = None,
    ) -> None:
        self.first = first
        self.rows = rows or RowReference(())
        self._clip_norm = clip_norm
        nothing: list[Array] = []
        self.versions = [*[nothing] * first, [np.asarray(value, np.float64) for value in values]]
        began = [np.zeros(value.shape) for value in values] if velocity is None else velocity
        self.velocities = [*[nothing] * first, [np.asarray(v, np.float64) for v in began]]

    def step(
        self, gradients: Sequence[Gradient], numbers: Numbers = OWN, *, examples: int = 0, left_out: bool = False
    ) -> None:
        """Apply the mean of some gradients, each parameter's over those that have it; or set it.

        With ``examples``, those of all workers, the mean is over these; with ``left_out`` nothing is trained.
        """
        if left_out:
            gradients = [g for g in gradients if g.sort or (g.rows is not None and g.rows.is_set)]
        values, velocity, means = list(self.versions[-1]), list(self.velocities[-1]), dict[int, Array]()
        for i in range(len(values)):
            brought = [g for g in gradients if g.source[i] is not None]
            sort = min((g.sort for g in brought if g.sort), default=0.0, key=(SET, SET_TO_MEAN).index)
            brought = [g for g in brought if g.sort == sort][: 1 if sort == SET else None]
            if brought:
                total = np.sum([np.asarray(g.source[i], np.float64) * g.examples for g in brought], axis=0)
                mean = total / max(0 if sort else examples, sum(g.examples for g in brought))
                if sort:
                    values[i] = mean
                else:
                    means[i] = mean
        norm = float(np.sqrt(sum((mean**2).sum() for mean in means.values())))
        scale = 1.0 if self._clip_norm is None else min(1.0, self._clip_norm / (norm + 1e-6))
        for i, mean in means.items():
            velocity[i] = numbers.momentum * velocity[i] + scale * mean + numbers.decay * values[i]
            values[i] = values[i] - numbers.rate * velocity[i]
        self.rows.step([(g.rows, g.examples) for g in gradients if g.rows is not None], examples)
        self.versions.append(values)
        self.velocities.append(velocity)

    def compare(self, version: int, who: str, arrays: Iterable[tuple[int, Array]], start: int = 0) -> None:
        """Assert that stretches of parameters, from element ``start`` on, have the values of a version."""
        assert self.first <= version < len(self.versions), f"{who} is at version {version}, which was never committed"
        for parameter, array in arrays:
            expected = self.versions[version][parameter][start : start + array.size]
            assert np.allclose(array, expected, rtol=TOLERANCE, atol=TOLERANCE), (
                f"{who} is not the sequential reference at version {version}: {array} instead of {expected}"
            )

    def compare_slots(self, version: int, who: str, slots: Iterable[tuple[int, Array]]) -> None:
        """Assert the same of the optimizer's velocities of whole parameters."""
        for parameter, slot in slots:
            expected = self.velocities[version][parameter]
            assert np.allclose(slot, expected, rtol=TOLERANCE, atol=TOLERANCE), (
                f"{who} has other slots than the sequential reference at version {version}: {slot}, not {expected}"
            )
