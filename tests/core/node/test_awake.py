"""A node's own time: it follows the real one while the node looks at it, and stands still with the node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.node.awake import LOOK_S, SLACK_S, AwakeClock

SECONDS = st.floats(0.0, 100.0)


def test_time_passes_while_the_node_looks() -> None:
    clock = AwakeClock(50.0)
    for tenths in range(500, 700, 2):
        assert clock.now(tenths / 10) == pytest.approx(tenths / 10)
        clock.look(tenths / 10, LOOK_S)
    assert clock.stood_s == 0.0


def test_a_standstill_counts_for_no_more_than_the_wait_and_the_slack() -> None:
    clock = AwakeClock(50.0)
    clock.look(50.0, LOOK_S)
    assert clock.now(63.0) == pytest.approx(50.0 + LOOK_S + SLACK_S)  # it wakes
    assert clock.now(64.0) == pytest.approx(50.0 + LOOK_S + SLACK_S)  # and is busy with what was in its sockets
    clock.look(65.0, LOOK_S)
    assert clock.stood_s == pytest.approx(15.0 - LOOK_S - SLACK_S)
    assert clock.now(65.1) == pytest.approx(50.1 + LOOK_S + SLACK_S)


def test_time_does_not_go_back_for_a_thread_that_has_read_the_clock_before_the_standstill() -> None:
    clock = AwakeClock(50.0)
    clock.look(50.0, LOOK_S)
    before = clock.now(50.1)
    clock.look(63.0, LOOK_S)
    assert clock.now(50.1) >= before


@given(st.lists(st.tuples(SECONDS, st.floats(0.0, LOOK_S), st.booleans()), max_size=30))
def test_time_never_goes_back_and_only_stands_still(moves: list[tuple[float, float, bool]]) -> None:
    real, clock = 1000.0, AwakeClock(1000.0)
    before = clock.now(real)
    for passed, wait, looks in moves:
        real += passed
        now = clock.now(real)
        assert 0.0 <= now - before <= passed + 1e-9
        if looks:
            clock.look(real, wait)
            assert clock.now(real) == pytest.approx(now)
            assert real - clock.stood_s == pytest.approx(now)
        before = clock.now(real)
