"""Who keeps the others waiting: named after three steps, and not for a small difference."""

from __future__ import annotations

import pytest

from tests.core.machines import hello, peer
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.training.steps import IN_A_ROW, Delays


def member(rank: int) -> MemberInfo:
    name = f"w{rank}"
    return MemberInfo(hello=hello("worker", name), peer=peer(name), roster=Roster(), rank=rank, seen_at=0.0)


def there(*members: MemberInfo) -> dict[bytes, MemberInfo]:
    return {one.incarnation: one for one in members}


def run(delays: Delays, order: list[MemberInfo], gap: float, times: int, start: float = 0.0, first: int = 0) -> float:
    now = start
    for step in range(first, first + times):
        for one in order[:-1]:
            delays.arrived(one, now + 1.0)
        delays.arrived(order[-1], now + 1.0 + gap)
        now += 1.0 + gap
        delays.closed(step, now)
    return now


def test_a_slow_worker_is_named_after_three_steps() -> None:
    delays, members = Delays(), [member(0), member(1), member(2)]
    now = run(delays, members, 0.5, IN_A_ROW)
    slowest = delays.slowest(there(*members))
    assert slowest["node"] == "worker 2"
    said = "worker 2 (w2, host, pid 7) came last to the last 3 steps, 0.5 s after the others; a step takes 1.5 s"
    assert slowest["text"] == said
    assert members[2].reported.awaited_s == pytest.approx(1.5)
    assert members[1].reported.awaited_s == 0.0
    run(delays, [members[2], members[0], members[1]], 0.5, 1, now, IN_A_ROW)
    assert delays.slowest(there(*members)) == {}, "another one came last"


def test_who_has_gone_is_not_named() -> None:
    delays, members = Delays(), [member(0), member(1)]
    run(delays, members, 0.5, IN_A_ROW)
    assert delays.slowest(there(members[0])) == {}
    assert delays.slowest(there(members[0], member(1))) == {}, "it has come back as another one"


def test_who_says_it_twice_has_arrived_once() -> None:
    delays, members = Delays(), [member(0), member(1)]
    delays.arrived(members[0], 1.0)
    delays.arrived(members[1], 1.1)
    delays.arrived(members[0], 5.0)
    delays.closed(0, 5.0)
    assert (members[0].reported.awaited_s, members[1].reported.awaited_s) == (0.0, pytest.approx(0.1))


def test_nobody_is_named_where_the_last_comes_little_later() -> None:
    delays, members = Delays(), [member(0), member(1)]
    run(delays, members, 0.1, 8)
    assert delays.slowest(there(*members)) == {}


def test_who_is_alone_waits_for_nobody() -> None:
    delays, one = Delays(), member(0)
    run(delays, [one], 0.5, 5)
    assert delays.slowest(there(one)) == {}
    assert one.reported.awaited_s == 0.0
