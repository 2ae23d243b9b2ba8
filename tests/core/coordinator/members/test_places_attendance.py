"""Which workers of a job count."""

from __future__ import annotations

from tests.core.machines import hello, peer
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.members.places import Attendance


def member(role: str, name: str) -> MemberInfo:
    return Roster().enter(hello(role, name), peer(name), 0.0)


def test_a_worker_counts_once_while_it_is_here_and_when_it_has_finished() -> None:
    attendance = Attendance()
    worker, other, observer = member("worker", "w"), member("worker", "v"), member("observer", "o")
    for who in (worker, worker, other, observer):
        attendance.count(who)
    assert (len(attendance), attendance.num_joined) == (2, 2)
    assert worker.incarnation in attendance
    assert observer.incarnation not in attendance
    attendance.leave(worker, "finished")
    attendance.leave(other, "lost")
    assert (len(attendance), attendance.num_finished, attendance.num_joined) == (0, 1, 2)


def test_who_never_counted_finishes_nothing() -> None:
    attendance = Attendance()
    attendance.leave(member("worker", "w"), "finished")
    assert (attendance.num_finished, attendance.num_joined) == (0, 0)
