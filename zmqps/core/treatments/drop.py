"""Gradients beyond a bound are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zmqps import checks
from zmqps.core.protocol.arrays import Array
from zmqps.core.treatments.base import Treatment


@dataclass(frozen=True, slots=True)
class Drop(Treatment):
    """Gradients more than ``bound`` updates old are dropped; others are applied unchanged.

    Unlike bounded staleness (SSP), which holds fast workers back so that no gradient gets too old, no worker waits:
    late work is lost. The server counts it, and the worker sees it by the staleness in its acknowledgement.

    References
    ----------
    Chen, Pan, Monga, Bengio, Jozefowicz: Revisiting Distributed Synchronous SGD, 2016, measures what
    Chen, Pan, Monga, Bengio, Jozefowicz: Revisiting Distributed Synchronous SGD, 2016, measures the cost of old
    gradients, and drops those of a past step; this is the same with a bound.
    """

    bound: int

    name: ClassVar[str] = "drop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", checks.whole("drop: bound", self.bound, 0))

    def drops(self, staleness: int) -> bool:
        """Whether it is beyond the bound."""
        return staleness > self.bound

    def correct(self, g: Array, w: Array, read: Array | None, staleness: int) -> Array:
        """Return other gradients unchanged."""
        return g
