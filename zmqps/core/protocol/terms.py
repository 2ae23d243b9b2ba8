"""The terms of an update: the scale of gradients, and numbers that replace the optimizer's own.

They are sent as a list of numbers: the scale, then the number of sets, then the sets: one for each of the optimizer's
rules, or for each of its groups if those of one rule differ. A set has the first of the rule's numbers, the learning
rate and whatever else was set; `UNCHANGED` where the rule's own applies. Only a scale: all of the rules' own numbers
apply. An empty list: nothing is scaled, either.

Instead of the scale there is `SET` or `SET_TO_MEAN` if a push brings values, not gradients: then no rule is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Seconds, Terms

#: Instead of a number: numbers may be negative, but none is as large.
UNCHANGED = -1e30
#: Instead of a scale: these are values. Synchronous: those of the first in the order of ranks, or the mean.
SET, SET_TO_MEAN = -2.0, -3.0
#: Numbers that may be set: they are sent with every update. A few for each tensor of a large model with one group per
#: tensor, and no more bytes than a small push.
MOST_NUMBERS = 4096
#: An integer may be larger, and is then not a number of an optimizer.
LARGEST_FLOAT = 1.7976931348623157e308
Rates: TypeAlias = Sequence[float]


def terms_of(scale: float, rates: Rates) -> tuple[float, ...]:
    """Return the terms of an update, in the shortest form."""
    return (scale, *rates) if scale != 1.0 or rates else ()


def are_values(terms: Terms) -> bool:
    """Whether a push with these terms brings values, not gradients."""
    return bool(terms) and terms[0] < 0.0


def are_sets(numbers: Sequence[Any]) -> bool:
    """Whether numbers after a scale are usable: all finite, the number of sets, then sets of one size."""
    # compared, because `math.isfinite` raises if an integer is too large for a float
    if not numbers or not all(type(n) in (int, float) and abs(n) <= LARGEST_FLOAT for n in numbers):
        return False
    count, more = numbers[0], len(numbers) - 1
    return bool(1 <= count <= more and count == int(count) and more % int(count) == 0)


@immutable
class Measured(Message):
    """A server's answer to a measuring `Commit`: the sum of the squares of a shard's part of the step's mean."""

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
    """Answer to `SetRates`: the numbers in force. For a sender that is not the chief, nothing has changed."""

    kind: ClassVar[int] = 43
    request: U64
    terms: Terms
