"""Who keeps the others waiting: named after three steps, and not for a small difference."""

from __future__ import annotations

import pytest

from tests.core.machines import hello, peer
from zmqps.core.coordinator.delays import IN_A_ROW, Delays
from zmqps.core.coordinator.membership import MemberInfo, Roster


def member(rank: int) -> MemberInfo:
    name = f"w{rank}"
    return MemberInfo(hello=hello("worker", name), peer=peer(name), roster=Roster(), rank=rank, seen_at=0.0)


def run(delays: Delays, order: list[MemberInfo], gap: float, times: int, start: float = 0.0) -> float:
    now = start
    for _ in range(times):
        for one in order[:-1]:
            delays.arrived(one, now + 1.0)
        delays.arrived(order[-1], now + 1.0 + gap)
        now += 1.0 + gap
        delays.closed(now)
    return now


def test_a_slow_worker_is_named_after_three_steps() -> None:
    delays, members = Delays(), [member(0), member(1), member(2)]
    now = run(delays, members, 0.5, IN_A_ROW)
    assert delays.slowest()["node"] == "worker 2"
    assert "came last to the last 3 steps, 0.5 s after the others" in delays.slowest()["text"]
    assert members[2].awaited_s == pytest.approx(1.5)
    assert members[1].awaited_s == 0.0
    run(delays, [members[2], members[0], members[1]], 0.5, 1, now)
    assert delays.slowest() == {}, "another one came last"


def test_nobody_is_named_where_the_last_comes_little_later() -> None:
    delays = Delays()
    run(delays, [member(0), member(1)], 0.1, 8)
    assert delays.slowest() == {}


def test_who_is_alone_waits_for_nobody() -> None:
    delays, one = Delays(), member(0)
    run(delays, [one], 0.5, 5)
    assert delays.slowest() == {}
    assert one.awaited_s == 0.0
