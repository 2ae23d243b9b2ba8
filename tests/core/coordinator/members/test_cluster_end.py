"""When a cluster ends, and how long that takes."""

from __future__ import annotations

from tests.core.machines import hello, peer, receivers
from zmqps.core.coordinator.members.cluster_end import GOODBYE_S, ClusterEnd
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Exit
from zmqps.core.protocol.messages import Shutdown

DONE = Exit(exits.OK, "done")


def members(*names: str) -> dict[bytes, MemberInfo]:
    return {(m := Roster().enter(hello("server", name), peer(name), 0.0)).incarnation: m for name in names}


def test_it_ends_with_its_last_member_or_a_little_later_and_once_only() -> None:
    there = members("a", "b")
    end = ClusterEnd(0.0, there, lambda: False, Wheel())
    assert receivers(end.begin(DONE, 1.0), Shutdown) == [peer("a"), peer("b")]
    assert end.begin(Exit(exits.FAILED, "another"), 2.0) == []
    assert (end.ending, end.next_deadline()) == (DONE, 1.0 + GOODBYE_S)
    there.popitem()
    assert end.left(2.0) == end.on_deadline(2.0) == []
    assert end.on_deadline(1.0 + GOODBYE_S) == [DONE]
    there.clear()
    assert end.left(2.0) == [DONE]


def test_it_ends_at_once_where_nobody_is() -> None:
    assert DONE in ClusterEnd(0.0, {}, lambda: False, Wheel()).begin(DONE, 1.0)


def test_it_is_idle_from_when_the_last_has_gone_and_ends_if_nobody_comes() -> None:
    trains = True
    end = ClusterEnd(60.0, members("a"), lambda: trains, Wheel())
    assert end.left(1.0) == []
    assert end.next_deadline() is None
    trains = False
    for now in (2.0, 3.0):
        end.note_idle(now)
    assert end.next_deadline() == 62.0
    assert end.on_deadline(61.0) == []
    assert receivers(end.on_deadline(62.0), Shutdown) == [peer("a")]
    assert end.ending == Exit(exits.IDLE, "no worker for 60 s")


def test_without_a_limit_nobody_is_too_long_away() -> None:
    end = ClusterEnd(0.0, {}, lambda: False, Wheel())
    end.note_idle(1.0)
    assert end.next_deadline() is None
    assert end.on_deadline(1e9) == []
