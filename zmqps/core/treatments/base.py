"""What the shard requires of a treatment of stale gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from zmqps.core.protocol.arrays import Array


@dataclass(frozen=True, slots=True)
class Treatment(ABC):
    """Decides what happens to a gradient that is ``staleness`` updates behind."""

    #: The name on the wire.
    name: ClassVar[str]
    #: Whether `correct` needs the values the worker read; the shard then keeps a copy for each worker.
    needs_read: ClassVar[bool] = False

    def drops(self, staleness: int) -> bool:
        """Whether a gradient this stale is not applied at all."""
        return False

    @abstractmethod
    def correct(self, g: Array, w: Array, read: Array | None, staleness: int) -> Array:
        """Return what to apply instead of ``g``, which may be ``g`` itself but is never written to.

        Parameters
        ----------
        g
            The gradient, as received: flat, in the dtype of the table.
        w
            The values it is about to change.
        read
            The values it was computed from; None if unknown, or not needed.
        staleness
            The number of updates between the two.
        """

    def to_wire(self) -> dict[str, Any]:
        """Return the map in a job: the name and the options."""
        return {"name": self.name, **{field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}}
