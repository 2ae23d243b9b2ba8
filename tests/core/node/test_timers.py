"""Timers of one wheel ring when they are due, in order, and as often as they are due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.node.timers import MOST_STALE, Timer, Wheel
from zmqps.core.protocol.events import Action


class Clocks:
    """A wheel and timers that note when they ring, and what a test lets others be due at as they do."""

    def __init__(self, number: int = 3) -> None:
        self.wheel = Wheel()
        self.dues: list[float | None] = [None] * number
        self.asked: list[int] = []
        self.rung: list[str] = []
        self.then: dict[str, tuple[int, float | None]] = {}  # which one is due at another time, and when
        self.timers = [self._timer(index) for index in range(number)]

    def _timer(self, index: int) -> Timer:
        name = f"t{index}"

        def due_of() -> float | None:
            self.asked.append(index)
            return self.dues[index]

        def ring(now: float) -> list[Action]:
            self.rung.append(name)
            self.dues[index] = None
            if name in self.then:
                self.set(*self.then[name])
            return []

        return self.wheel.timer(name, due_of, ring)

    def set(self, index: int, due: float | None) -> None:
        self.dues[index] = due
        self.timers[index].touch()

    def set_all(self, due: float) -> None:
        for index in range(len(self.dues)):
            self.set(index, due)

    def at(self, now: float) -> list[str]:
        """Return which ring then."""
        self.rung.clear()
        self.wheel.on_deadline(now)
        self.wheel.validate()
        return list(self.rung)


def test_timers_ring_by_time_and_those_of_the_same_time_as_they_were_made() -> None:
    clocks = Clocks()
    assert clocks.wheel.next_deadline() is None
    for index, due in enumerate((2.0, 1.0, 1.0)):
        clocks.set(index, due)
    assert clocks.wheel.next_deadline() == 1.0
    assert clocks.at(0.5) == []
    assert clocks.at(2.0) == ["t1", "t2", "t0"]
    assert clocks.wheel.next_deadline() is None
    assert clocks.at(9.0) == []


def test_only_those_that_were_touched_are_asked_when_they_are_due() -> None:
    clocks = Clocks(100)
    clocks.set_all(1.0)
    clocks.wheel.next_deadline()
    clocks.set(7, 0.5)
    clocks.asked.clear()
    assert clocks.wheel.next_deadline() == 0.5
    assert clocks.asked == [7]
    assert clocks.wheel.next_deadline() == 0.5
    assert clocks.asked == [7]


def test_a_timer_that_is_put_off_or_cleared_rings_no_more_at_its_first_time() -> None:
    clocks = Clocks()
    clocks.set_all(1.0)
    assert clocks.wheel.next_deadline() == 1.0
    clocks.set(0, 3.0)
    clocks.set(1, None)
    assert clocks.at(1.0) == ["t2"]
    assert clocks.wheel.next_deadline() == 3.0
    assert clocks.at(3.0) == ["t0"]


@for_each("due", [None, 5.0])
def test_one_that_another_one_clears_or_puts_off_as_it_rings_does_not_ring(due: float | None) -> None:
    clocks = Clocks()
    clocks.then["t0"] = 1, due
    clocks.set_all(1.0)
    assert clocks.at(1.0) == ["t0", "t2"]
    assert clocks.wheel.next_deadline() == due


def test_one_that_another_one_drops_as_it_rings_does_not_ring() -> None:
    clocks = Clocks()
    clocks.set_all(1.0)
    first, second, _ = clocks.timers
    ring = first.ring
    first.ring = lambda now: clocks.wheel.drop(second) or ring(now)  # type: ignore[func-returns-value]
    assert clocks.at(1.0) == ["t0", "t2"]
    assert clocks.wheel.next_deadline() is None


def test_one_that_stays_due_rings_once_a_call() -> None:
    clocks = Clocks(1)
    clocks.then["t0"] = 0, 1.0
    clocks.set(0, 1.0)
    for _ in range(3):
        assert clocks.at(2.0) == ["t0"]
        assert clocks.wheel.next_deadline() == 1.0


def test_those_that_did_not_ring_because_memory_ran_out_ring_the_next_time() -> None:
    clocks = Clocks()

    def fail(now: float) -> list[Action]:
        raise MemoryError

    clocks.set_all(1.0)
    ring, clocks.timers[1].ring = clocks.timers[1].ring, fail
    with pytest.raises(MemoryError):
        clocks.at(1.0)
    clocks.wheel.validate()
    assert clocks.wheel.next_deadline() == 1.0
    clocks.timers[1].ring = ring
    assert clocks.at(1.0) == ["t1", "t2"]


def test_a_timer_that_is_put_off_for_ever_takes_no_memory_nor_do_those_that_are_dropped() -> None:
    clocks = Clocks(200)
    for number in range(1000):
        clocks.set(number % 200, 1.0 + number)
        assert clocks.wheel.next_deadline() is not None
        clocks.wheel.validate()
    for timer in clocks.timers[:199]:
        clocks.wheel.drop(timer)
        clocks.wheel.validate()
    assert len(clocks.wheel._heap) <= 2 + MOST_STALE
    assert clocks.wheel.next_deadline() == 1000.0


def test_a_timer_that_nobody_has_touched_although_it_is_due_at_another_time_is_noticed() -> None:
    clocks = Clocks()
    assert clocks.wheel.next_deadline() is None
    clocks.dues[1] = 1.0
    with pytest.raises(AssertionError, match="it was forgotten when t1 is due"):
        clocks.wheel.validate()


times = st.one_of(st.none(), st.integers(0, 20).map(float))


@given(st.lists(st.tuples(st.integers(0, 4), times)), st.integers(0, 20))
def test_the_first_is_what_a_look_at_all_of_them_finds(moves: list[tuple[int, float | None]], now: int) -> None:
    clocks = Clocks(5)
    for index, due in moves:
        clocks.set(index, due)
        clocks.wheel.validate()
        assert clocks.wheel.next_deadline() == min([due for due in clocks.dues if due is not None], default=None)
        clocks.wheel.validate()
    late = [(due, f"t{index}") for index, due in enumerate(clocks.dues) if due is not None and due <= now]
    assert clocks.at(now) == [name for _, name in sorted(late)]
