"""What the ratios of some rounds say: slower, faster, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.stats import percentile

#: Less than this may be how memory happened to lie, or which core a thread began on: of two clusters of the same
#: version one is often faster by a few per cent as long as it lives.
THRESHOLD = 0.05
#: Processor time differs less between two clusters of one version, and where others use the cores.
PROCESSOR_THRESHOLD = 0.05
#: What is compared: the clock, and the processor time of all processes.
CLOCK, PROCESSOR = "clock", "processor"
#: Of fewer rounds the quartiles say nothing.
FEWEST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one time of a case has changed.

    Attributes
    ----------
    case
        Its name.
    time
        `CLOCK` or `PROCESSOR`.
    old_s, new_s
        Medians over the rounds, of a step.
    ratio, low, high
        The new version's time over the old one's: the median over the rounds, and the quartiles.
    threshold
        By how much it has to have changed.
    """

    case: str
    time: str
    old_s: float
    new_s: float
    ratio: float
    low: float
    high: float
    threshold: float

    @property
    def word(self) -> str:
        """``slower`` or ``faster`` where three rounds of four say so by more than the threshold, else ``same``."""
        if self.low > 1 + self.threshold:
            return "slower"
        return "faster" if self.high < 1 / (1 + self.threshold) else "same"


def judge(
    case: str, old: Sequence[float], new: Sequence[float], threshold: float = THRESHOLD, time: str = CLOCK
) -> Verdict:
    """Judge by the seconds of both versions in some rounds; each round gives one ratio.

    Raises
    ------
    ValueError
        There are too few rounds, or not as many of both.
    """
    if len(old) != len(new):
        raise ValueError(f"{case}: {len(old)} rounds of the old version, {len(new)} of the new one")
    if len(old) < FEWEST_ROUNDS:
        raise ValueError(f"{case}: {len(old)} rounds; quartiles need {FEWEST_ROUNDS} or more")
    ratios = [b / a for a, b in zip(old, new, strict=True)]
    low, ratio, high = (percentile(ratios, percent) for percent in (25, 50, 75))
    medians = {"old_s": percentile(old, 50), "new_s": percentile(new, 50)}
    return Verdict(case=case, time=time, **medians, ratio=ratio, low=low, high=high, threshold=threshold)
