"""When something of a node is due first, known without a look at all that may be: by named timers, or nearly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

from zmqps.core.protocol.events import Action


class Timed(Protocol):
    """A part of a node that has something to do at a time of its own."""

    due: float | None

    def on_deadline(self, now: float) -> list[Action]:
        """Do what is due."""


#: Entries of the heap that count no more are dropped as soon as there are more of them than of others, and so many.
MOST_STALE = 64


def silent(now: float) -> list[Action]:
    """Do nothing: what is due is looked at after every event anyway."""
    return []


class Timer:
    """Something that is due when ``due_of`` says so (None: never); then ``ring`` returns what is to be done.

    Whatever changes when it is due touches it; `Wheel.validate` notices where that is forgotten. `due` is what was said
    when it was asked last.
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
        """It may be due at another time than before: it is asked when, before any of the wheel rings."""
        self._wheel.touched[self.number] = self


class Wheel:
    """The timers of one node; of those due at the same time the one that was made first rings first.

    Those in `touched`, by their numbers, are to be asked when they are due.
    """

    def __init__(self) -> None:
        self.numbers = count()
        self.touched: dict[int, Timer] = {}
        self._timers: dict[int, Timer] = {}
        self._heap: list[tuple[float, int]] = []  # when they are due, and at which times they were to be before

    def timer(
        self, name: str, due_of: Callable[[], float | None], ring: Callable[[float], list[Action]] = silent
    ) -> Timer:
        """Return a new timer."""
        timer = Timer(self, name, due_of, ring)
        self._timers[timer.number] = timer
        timer.touch()
        return timer

    def drop(self, timer: Timer) -> None:
        """A timer is needed no more."""
        self.touched.pop(timer.number, None)
        del self._timers[timer.number]
        self._tidy()

    def _look(self) -> None:
        """Ask those that were touched when they are due."""
        for timer in self.touched.values():
            if (due := timer.due_of()) != timer.due:
                if due is not None:
                    heappush(self._heap, (due, timer.number))
                timer.due = due  # after the heap has it: memory may have run out on the way
        self.touched.clear()
        self._tidy()

    def _tidy(self) -> None:
        """Let the heap have no more than the timers need."""
        if len(self._heap) > 2 * len(self._timers) + MOST_STALE:
            self._heap = [(timer.due, timer.number) for timer in self._timers.values() if timer.due is not None]
            heapify(self._heap)

    def next_deadline(self) -> float | None:
        """Return when the first of them is due."""
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
        """Ring those that are due, each once; one that another one has put off or dropped does not ring."""
        late, actions = dict[int, Timer](), list[Action]()
        self._look()
        while (timer := self._first()) is not None and timer.due is not None and timer.due <= now:
            timer.touch()  # whatever happens meanwhile: it is asked again, for the heap has it no more
            late[timer.number] = timer
            heappop(self._heap)
            timer.due = None
        for number, timer in late.items():
            if number in self._timers and (due := timer.due_of()) is not None and due <= now:
                actions += timer.ring(now)
        return actions

    def validate(self) -> None:
        """Assert that each timer rings when it is due, and that nothing else is kept for long."""
        entries = set(self._heap)
        assert self.touched.items() <= self._timers.items()
        for number, timer in self._timers.items():
            if number not in self.touched:
                assert timer.due == timer.due_of(), f"it was forgotten when {timer.name} is due"
            assert timer.due is None or (timer.due, number) in entries, f"{timer.name} never rings"
        assert len(self._heap) <= 2 * len(self._timers) + MOST_STALE


class Alarm:
    """The earliest of many deadlines, or a time before it: to know it exactly, all would be looked at for each event.

    What has something to do earlier than before sets `due` to that (on the way of every step without a call); what puts
    it off, or has nothing to do any more, does nothing. So it may ring for nobody: then all are looked at once, and it
    is set anew. Infinite: nothing is to be done.
    """

    __slots__ = ("due",)

    def __init__(self) -> None:
        self.due = inf

    def by(self, due: float | None) -> None:
        """Ring by then at the latest; None: this one has nothing to do."""
        if due is not None:
            self.due = min(self.due, due)

    def reset(self, dues: Iterable[float | None]) -> None:
        """All were looked at, and these are their deadlines now."""
        self.due = min((due for due in dues if due is not None), default=inf)

    def validate(self, dues: Iterable[float | None]) -> None:
        """Assert that it does not ring too late for anybody."""
        assert all([due is None or self.due <= due for due in dues])
