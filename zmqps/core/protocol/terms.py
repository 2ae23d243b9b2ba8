"""The terms of an update: what gradients are scaled with, and numbers in the place of the optimizer's own.

They travel as a list of numbers: the scale, then how many sets there are, then these: one for each of the optimizer's
rules, or for each of its groups where those of one rule differ. A set has the first of the rule's numbers, the learning
rate and whatever more was set; `UNCHANGED` where the rule's own holds. Only a scale: all do. None at all: nothing is
scaled, either.

In the place of a scale stands `SET` or `SET_TO_MEAN` where a push brings values, not gradients: no rule is asked then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from zmqps.core.protocol.immutable import immutable
from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Seconds, Terms

#: In the place of a number: it may be negative, but none is as large.
UNCHANGED = -1e30
#: In the place of a scale: these are values. Synchronous: those of the first in the order of ranks, or the mean.
SET, SET_TO_MEAN = -2.0, -3.0
#: Numbers that may be set: they travel with every update. Some for each tensor of a large model that has groups of one
#: tensor each, and not more bytes than a small push.
MOST_NUMBERS = 4096
#: A whole number may be larger, and is then no number of an optimizer.
LARGEST_FLOAT = 1.7976931348623157e308
Rates: TypeAlias = Sequence[float]


def terms_of(scale: float, rates: Rates) -> tuple[float, ...]:
    """Return the terms of an update, as short as they can be."""
    return (scale, *rates) if scale != 1.0 or rates else ()


def are_values(terms: Terms) -> bool:
    """Whether a push on these terms brings values, not gradients."""
    return bool(terms) and terms[0] < 0.0


def are_sets(numbers: Sequence[Any]) -> bool:
    """Whether numbers after a scale are usable: all finite, how many sets there are, then sets of one size."""
    # compared, for `math.isfinite` raises where a whole number is too large for a float
    if not numbers or not all(type(n) in (int, float) and abs(n) <= LARGEST_FLOAT for n in numbers):
        return False
    count, more = numbers[0], len(numbers) - 1
    return bool(1 <= count <= more and count == int(count) and more % int(count) == 0)


@immutable
class Measured(Message):
    """A server's answer to a `Commit` that asks for it: the sum of the squares of a shard's part of the step's mean."""

    kind: ClassVar[int] = 41
    epoch: U32
    step: U64
    squares: Seconds


@immutable
class SetRates(Message):
    """The chief sets numbers: synchronous for the steps from ``step`` on, else for pushes that begin later."""

    kind: ClassVar[int] = 42
    request: U64
    step: U64
    terms: Terms


@immutable
class RatesSet(Message):
    """Answer to `SetRates`: these hold. From somebody who is not the chief, nothing has changed."""

    kind: ClassVar[int] = 43
    request: U64
    terms: Terms
