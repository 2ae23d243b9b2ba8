"""A thread's timeout is of the time in which it could have been answered."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.net.clock import Time
from zmqps.core.node.awake import LOOK_S, SLACK_S
from zmqps.net import loops
from zmqps.net.loops import Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    clock = Time()
    monkeypatch.setattr(loops, "time", clock)
    return clock


def test_a_wait_without_an_answer_takes_as_long_as_was_said(clock: Time) -> None:
    assert not Deadline(5.0).wait(clock.wait)
    assert clock.now == pytest.approx(1005.0)


def test_a_wait_ends_with_the_answer(clock: Time) -> None:
    assert Deadline(5.0).wait(lambda seconds: clock.wait(seconds) or clock.now > 1002.0)
    assert clock.now == pytest.approx(1002.0, abs=2 * LOOK_S)


def test_no_time_is_enough_for_what_is_there_already(clock: Time) -> None:
    assert Deadline(0.0).wait(lambda seconds: seconds == 0.0)


def test_a_process_that_stood_still_waits_for_what_is_left(clock: Time) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.now += 100.0 if len(waits) == 3 else seconds
        return False

    assert not Deadline(5.0).wait(wait)
    assert sum(waits) == pytest.approx(5.0, abs=LOOK_S + SLACK_S)
    assert clock.now > 1104.0


def test_what_never_ends_is_waited_for_in_pieces(clock: Time) -> None:
    assert Deadline(math.inf).wait_s() == LOOK_S
    assert Deadline(math.inf).wait_s(30.0) == 30.0
