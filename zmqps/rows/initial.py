"""What rows begin with: numbers that depend on a seed, the table and the id alone, the same on every host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.rows import loops
from zmqps.rows.hashing import Array, seed_of
from zmqps.rows.kernels import kernel

KINDS = {
    "zeros": loops.ZEROS,
    "constant": loops.CONSTANT,
    "uniform": loops.UNIFORM,
    "normal": loops.NORMAL,
    "truncated_normal": loops.NORMAL,
}
#: Of a float32.
LARGEST = 3.4028234663852886e38
#: Of the standard normal distribution: the part below -2 and below 2.
BELOW_TWO = 0.022750131948179195, 0.9772498680518208


@dataclass(frozen=True, slots=True)
class Initial:
    """What new rows of a table begin with (`zmqps.initial`).

    Parameters
    ----------
    kind
        One of ``KINDS``.
    a, b
        The constant; or the bounds; or the mean and the standard deviation.
    seed
        Another one, other numbers.
    """

    kind: str
    a: float = 0.0
    b: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        checks.one_of("kind", self.kind, tuple(KINDS))
        for name in ("a", "b"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= LARGEST:
                raise ConfigurationError(f"rows begin with finite numbers, not {checks.shown(number):.60}")
            object.__setattr__(self, name, float(number))
        object.__setattr__(self, "seed", checks.whole("seed", self.seed, 0, (1 << 63) - 1))
        if self.kind == "uniform" and self.a > self.b:
            raise ConfigurationError(f"uniform numbers are between low and high: {self.a} is above {self.b}")
        if KINDS[self.kind] == loops.NORMAL and self.b < 0.0:
            raise ConfigurationError(f"a standard deviation is not negative, as {self.b} is")

    def to_wire(self) -> dict[str, Any]:
        """Return how it travels, and is saved."""
        return {"kind": self.kind, "a": self.a, "b": self.b, "seed": self.seed}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Initial:
        """Return what a map describes.

        Raises
        ------
        ProtocolError
            It is not of that form.
        ConfigurationError
            It is, but no row can begin with that.
        """
        if type(wire) is not dict or set(wire) != {"kind", "a", "b", "seed"}:
            raise ProtocolError("what rows begin with has kind, a, b, seed")
        if type(wire["kind"]) is not str or type(wire["seed"]) is not int:
            raise ProtocolError("the kind of what rows begin with is a text, its seed a number")
        return cls(**wire)


class Filler:
    """Writes the initial values of rows.

    Parameters
    ----------
    initial
        What they are.
    table
        The table's name: those of others begin otherwise.
    """

    def __init__(self, initial: Initial, table: str) -> None:
        self._seed = np.uint64(seed_of("initial", table, initial.seed))
        self._kind = KINDS[initial.kind]
        self._numbers = initial.a, initial.b
        self._range = BELOW_TWO if initial.kind == "truncated_normal" else (0.0, 1.0)

    def fill(self, ids: Array, out: Array, rows: Array | None = None) -> None:
        """Write the row of each id to that of ``out`` which ``rows`` names; by default one after the other."""
        where = np.arange(ids.size) if rows is None else rows
        kernel(loops.fill)(ids, where, out, self._seed, self._kind, *self._numbers, *self._range)


def filler(initial: Initial, table: str) -> Filler:
    """Return what writes a table's initial values."""
    return Filler(initial, table)
