"""Knows which numbers a chief has set, and from which step on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.simulator.jobs.trained import MOMENTUM, RATE


class Numbers(NamedTuple):
    """What a step is computed with; as they travel."""

    rate: float = RATE
    decay: float = 0.0
    momentum: float = MOMENTUM


#: Those that the optimizer begins with.
OWN = Numbers()


class RateWitness:
    """Asserts that a step has the numbers that were set last for it, or such as were asked for since.

    Attributes
    ----------
    asked
        All that were ever asked for, in their order, each with the step it was for: no two are equal.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[float, ...]]] = []
        self._held: list[tuple[int, int]] = []  # of those that hold: the step, and which of ``asked`` it is

    def ask(self, step: int, numbers: Sequence[float]) -> None:
        """A worker is about to set some, the learning rate alone or all."""
        self.asked.append((step, tuple(numbers)))

    def holds(self, step: int, numbers: Sequence[float]) -> None:
        """A worker has been told that they hold from its next push on."""
        self._held.append((step, self._number(tuple(numbers))))

    def _number(self, numbers: tuple[float, ...]) -> int:
        return next(number for number, (_, asked) in enumerate(self.asked) if asked == numbers)

    def of_step(self, step: int, sets: Sequence[float]) -> Numbers:
        """Return the numbers of a step that is committed with these: how many sets there are, and the only one."""
        last = max((number for first, number in self._held if first <= step), default=-1)
        if not sets:
            assert last < 0, f"step {step} has the optimizer's own numbers, not {self.asked[last][1]}"
            return OWN
        numbers = tuple(sets[1:])
        number = self._number(numbers)
        assert number >= last, f"step {step} has {numbers}, not {self.asked[last][1]}, which was set later"
        assert self.asked[number][0] <= step, f"step {step} has {numbers}, which is for step {self.asked[number][0]}"
        return Numbers(*numbers)
