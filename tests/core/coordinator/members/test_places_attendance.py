"""Which workers of a job count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import hello, peer
from zmqps.core.coordinator.members import places
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.members.places import Attendance


def member(role: str, name: str, life: int = 0) -> MemberInfo:
    said = hello(role, name)
    return Roster().enter(replace(said, incarnation=bytes([life]) * 16) if life else said, peer(name), 0.0)


def joined(attendance: Attendance, *members: MemberInfo) -> int:
    for one in members:
        attendance.count(one)
    return attendance.num_joined


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


def test_who_is_restarted_under_its_name_has_joined_once() -> None:
    attendance, worker, other = Attendance(), member("worker", "a"), member("worker", "b")
    joined(attendance, worker)
    attendance.leave(worker, "lost")
    assert joined(attendance, member("worker", "a", 2)) == 1
    assert joined(attendance, other) == 2
    attendance.leave(other, "lost")
    assert attendance.num_joined == 2, "who is dead has joined"


def test_those_of_one_name_are_counted_while_they_are_here_and_when_they_have_finished() -> None:
    attendance, members = Attendance(), [member("worker", "a", life) for life in (1, 2, 3)]
    assert joined(attendance, *members) == 3
    attendance.leave(members[0], "finished")
    assert attendance.num_joined == 3


def test_the_names_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_MEMBERS", 2)
    attendance = Attendance()
    assert joined(attendance, *(member("worker", name) for name in "abcd")) == 4, "they are here"
    assert len(attendance._names) == 2
