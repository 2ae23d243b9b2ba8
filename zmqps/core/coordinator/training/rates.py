"""The numbers that the chief of a job has set, as they travel: nothing here looks into them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.protocol.limits import OPEN_STEPS
from zmqps.core.protocol.terms import Rates, terms_of


class Numbers:
    """What replaces the optimizer's own: from some step on where steps are common, else at once."""

    def __init__(self, changed: Changed = nothing) -> None:
        self._changed = changed
        self.latest: Rates = ()  # as they were set last; none: the optimizer's own hold
        self.before: deque[tuple[int, Rates]] = deque()  # the first step without some, and these

    def set(self, first: int, clock: int, rates: Rates) -> None:
        """They hold from a step on: one that is open, or the next; ``clock`` is the first that is not committed."""
        step = min(max(first, clock), clock + OPEN_STEPS)
        while self.before and self.before[-1][0] > step:
            _, self.latest = self.before.pop()  # set again before the step that they were for
        self.before.append((step, self.latest))
        if len(self.before) > 2 * OPEN_STEPS:  # a worker is at most as many steps ahead
            self.before.popleft()
        self.latest = tuple(rates)
        self._changed()

    @property
    def terms(self) -> Rates:
        return terms_of(1.0, self.latest)

    def at(self, step: int) -> Rates:
        return next((rates for first, rates in self.before if step < first), self.latest)

    def begin_at(self, rates: Sequence[float]) -> None:
        """The job begins from a checkpoint, or goes back to one, where these were in force."""
        self.latest = tuple(rates)
        self.before.clear()
        self._changed()

    def dump(self) -> Plain:
        return [list(self.latest), [[step, list(rates)] for step, rates in self.before]]

    def restore(self, kept: Plain) -> None:
        latest, before = kept
        self.latest = tuple(latest)
        self.before = deque((step, tuple(rates)) for step, rates in before)
