"""Learning rates that were set: from their step on, and not before."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tables import for_each
from zmqps.core.coordinator.training.steps import Numbers
from zmqps.core.protocol.message import OPEN_STEPS


def history(*sets: tuple[int, int, Sequence[float]]) -> Numbers:
    rates = Numbers()
    for first, clock, values in sets:
        rates.set(first, clock, values)
    return rates


def test_before_anything_is_set_the_optimizers_own_hold() -> None:
    rates = Numbers()
    assert rates.at(0) == rates.latest == rates.terms == ()


def test_they_hold_from_their_step_on() -> None:
    rates = history((4, 3, [0.1]), (5, 3, [0.2]))
    assert [rates.at(step) for step in range(3, 7)] == [(), (0.1,), (0.2,), (0.2,)]
    assert rates.terms == (1.0, 0.2)


def test_of_two_for_one_step_the_last_holds() -> None:
    rates = history((4, 3, [0.1]), (4, 3, [0.2]))
    assert [rates.at(step) for step in (3, 4)] == [(), (0.2,)]


def test_one_for_an_earlier_step_takes_the_place_of_those_behind_it() -> None:
    rates = history((4, 3, [0.1]), (5, 3, [0.2]), (4, 3, [0.3]))
    assert [rates.at(step) for step in (3, 4, 5)] == [(), (0.3,), (0.3,)]


@for_each("first, holds", [(0, 7), (7, 7), (8, 8), (1 << 60, 7 + OPEN_STEPS)])
def test_the_step_is_one_that_is_open_or_the_next(first: int, holds: int) -> None:
    rates = history((first, 7, [0.1]))
    assert [rates.at(holds - 1), rates.at(holds)] == [(), (0.1,)]


def test_what_is_kept_of_the_past_is_bounded() -> None:
    rates = history(*((step, step, [float(step)]) for step in range(100)))
    assert len(rates.dump()[1]) <= 2 * OPEN_STEPS
    assert [rates.at(step) for step in (98, 99, 100)] == [(98.0,), (99.0,), (99.0,)]


def test_what_was_kept_is_what_it_was() -> None:
    rates = history((4, 3, [0.1]), (5, 4, [0.2, -1.0]))
    again = Numbers()
    again.restore(rates.dump())
    assert [again.at(step) for step in range(7)] == [rates.at(step) for step in range(7)]
    assert again.terms == rates.terms == (1.0, 0.2, -1.0)


def test_a_checkpoints_hold_at_once() -> None:
    rates = history((4, 3, [0.1]))
    rates.begin_at([0.5])
    assert [rates.at(step) for step in (0, 3, 4)] == [(0.5,)] * 3
