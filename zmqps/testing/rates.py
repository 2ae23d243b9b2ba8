"""Knows which learning rates a chief has set, and from which step on."""

from __future__ import annotations

from collections.abc import Sequence

from zmqps.testing.trained import RATE


class RateWitness:
    """Asserts that a step has the learning rate that was set last for it, or one that was asked for since.

    Attributes
    ----------
    asked
        All that were ever asked for, in their order, each with the step it was for: no two are equal.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, float]] = []
        self._held: list[tuple[int, int]] = []  # of those that hold: the step, and which of ``asked`` it is

    def ask(self, step: int, rate: float) -> None:
        """A worker is about to set one."""
        self.asked.append((step, rate))

    def holds(self, step: int, rate: float) -> None:
        """A worker has been told that it holds from its next push on."""
        self._held.append((step, self._number(rate)))

    def _number(self, rate: float) -> int:
        return next(number for number, (_, asked) in enumerate(self.asked) if asked == rate)

    def of_step(self, step: int, rates: Sequence[float]) -> float:
        """Return the learning rate of a step that is committed with these."""
        last = max((number for first, number in self._held if first <= step), default=-1)
        if not rates:
            assert last < 0, f"step {step} has the optimizer's own learning rate, not {self.asked[last][1]}"
            return RATE
        (rate,) = rates
        number = self._number(rate)
        assert number >= last, (
            f"step {step} has the learning rate {rate}, not {self.asked[last][1]}, which was set later"
        )
        assert self.asked[number][0] <= step, f"step {step} has {rate}, which is for step {self.asked[number][0]}"
        return rate
