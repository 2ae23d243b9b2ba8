"""The earliest deadline of a node, without checking all of them: by named timers, or nearly exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

from zmqps.core.protocol.events import Action


class Timed(Protocol):
    """A part of a node with its own deadlines."""

    due: float | None

    def on_deadline(self, now: float) -> list[Action]:
        """Do what is due."""


#: Stale entries of the heap are removed as soon as there are more of them than of others, and this many.
MOST_STALE = 64


def silent(now: float) -> list[Action]:
    """Do nothing: deadlines are checked after every event anyway."""
    return []


class Timer:
    """A timer that is due when ``due_of`` says so (None: never); then ``ring`` returns the actions.

    Code that changes its deadline touches it; `Wheel.validate` notices a missing touch. `due` is the deadline at the
    last check.
    """

    __slots__ = ("_wheel", "due", "due_of", "name", "number", "ring")

    def __init__(
        self, wheel: Wheel, name: str, due_of: Callable[[], float | None], ring: Callable[[float], list[Action]]
    ) -> None:
        self.name, self.due_of, self.ring = name, due_of, ring
        self.due: float | None = None
        self.number = next(wheel.numbers)
        self._wheel = wheel

    def touch(self) -> None:
        """Its deadline may have changed: it is checked before any timer of the wheel rings."""
        self._wheel.touched[self.number] = self


class Wheel:
    """The timers of one node; of several due at the same time the one made first rings first.

    The deadlines of those in `touched`, by number, must be checked.
    """

    def __init__(self) -> None:
        self.numbers = count()
        self.touched: dict[int, Timer] = {}
        self._timers: dict[int, Timer] = {}
        self._heap: list[tuple[float, int]] = []  # their deadlines, present and stale

    def timer(
        self, name: str, due_of: Callable[[], float | None], ring: Callable[[float], list[Action]] = silent
    ) -> Timer:
        """Return a new timer."""
        timer = Timer(self, name, due_of, ring)
        self._timers[timer.number] = timer
        timer.touch()
        return timer

    def drop(self, timer: Timer) -> None:
        """Remove a timer."""
        self.touched.pop(timer.number, None)
        del self._timers[timer.number]
        self._tidy()

    def _look(self) -> None:
        """Check the deadlines of touched timers."""
        for timer in self.touched.values():
            if (due := timer.due_of()) != timer.due:
                if due is not None:
                    heappush(self._heap, (due, timer.number))
                timer.due = due  # after the heap has it: memory may have run out in between
        self.touched.clear()
        self._tidy()

    def _tidy(self) -> None:
        """Remove stale entries from the heap."""
        if len(self._heap) > 2 * len(self._timers) + MOST_STALE:
            self._heap = [(timer.due, timer.number) for timer in self._timers.values() if timer.due is not None]
            heapify(self._heap)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline."""
        if self.touched:
            self._look()
        first = self._first()
        return None if first is None else first.due

    def _first(self) -> Timer | None:
        while self._heap:
            due, number = self._heap[0]
            if (timer := self._timers.get(number)) is not None and timer.due == due:
                return timer
            heappop(self._heap)
        return None

    def on_deadline(self, now: float) -> list[Action]:
        """Ring the due timers, each once; one that another one has postponed or removed does not ring."""
        late, actions = dict[int, Timer](), list[Action]()
        self._look()
        while (timer := self._first()) is not None and timer.due is not None and timer.due <= now:
            timer.touch()  # whatever happens meanwhile: it is checked again, because the heap does not have it any more
            late[timer.number] = timer
            heappop(self._heap)
            timer.due = None
        for number, timer in late.items():
            if number in self._timers and (due := timer.due_of()) is not None and due <= now:
                actions += timer.ring(now)
        return actions

    def validate(self) -> None:
        """Assert that each timer rings when it is due, and that there are not too many stale entries."""
        entries = set(self._heap)
        assert self.touched.items() <= self._timers.items()
        for number, timer in self._timers.items():
            if number not in self.touched:
                assert timer.due == timer.due_of(), f"it was forgotten when {timer.name} is due"
            assert timer.due is None or (timer.due, number) in entries, f"{timer.name} never rings"
        assert len(self._heap) <= 2 * len(self._timers) + MOST_STALE


class Alarm:
    """The earliest of many deadlines, or an earlier time: exactness would need a check of all for each event.

    A part with an earlier deadline sets `due` to that (inline in every step); one with a later deadline, or none any
    more, does nothing. So it may ring early: then all are checked once, and it is set again. Infinite: nothing is due.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = inf

    def by(self, due: float | None) -> None:
        """Ring by then at the latest; None: no deadline."""
        if due is not None:
            self.due = min(self.due, due)

    def reset(self, dues: Iterable[float | None]) -> None:
        """All were checked, and these are their deadlines now."""
        self.due = min((due for due in dues if due is not None), default=inf)

    def validate(self, dues: Iterable[float | None]) -> None:
        """Assert that it does not ring too late."""
        assert all([due is None or self.due <= due for due in dues])
