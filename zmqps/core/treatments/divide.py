"""Learning rate divided by staleness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zmqps.core.protocol.arrays import Array
from zmqps.core.treatments.base import Treatment


@dataclass(frozen=True, slots=True)
class Divide(Treatment):
    """A gradient τ updates old counts 1/τ: ``g / max(1, τ)``.

    The paper divides the learning rate; here it is the gradient, which is the same for plain SGD and
    puts the division in front of the average of a momentum. Adam and its relatives take the size of
    gradients out again, so with them it does little.

    References
    ----------
    Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI 2016.
    """

    name: ClassVar[str] = "divide"

    def correct(self, g: Array, w: Array, read: Array | None, staleness: int) -> Array:
        """Divide by the staleness."""
        return g if staleness <= 1 else g * g.dtype.type(1.0 / staleness)
