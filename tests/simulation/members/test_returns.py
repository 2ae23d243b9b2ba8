"""The simulator sees when a worker that comes back does not get its place: coordinators here are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import caught, wrap
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.membership import Claims, Roster
from zmqps.core.coordinator.members.places import Attendance
from zmqps.core.protocol.messages import Hello

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_workers_come_back_before_they_are_missed_and_after() -> None:
    at_once = later = 0
    for seed in range(12):
        simulation = SCENARIOS["sync-returns"].simulation(seed)
        simulation.run()
        assert simulation.returns is not None
        at_once += simulation.returns.num_at_once
        later += simulation.returns.num_later
    assert at_once > later > 0


def test_a_worker_that_comes_back_to_another_rank(monkeypatch: Patch) -> None:
    def enter(original: Any, roster: Roster, hello: Hello, peer: bytes, now: float, holder: Any, before: Any) -> Any:
        return original(roster, hello, peer, now, holder)

    wrap(monkeypatch, Roster, "enter", enter)
    caught("sync-returns", "has come back, and its rank was")


def test_a_worker_that_comes_back_to_another_rank_than_the_one_that_is_free(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Claims, "rank", lambda self, hello: None)
    caught("sync-returns", "which is free", begin=8)


def test_a_worker_that_is_there_twice(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Claims, "predecessor", lambda self, hello, holder: None)
    caught("async-returns", "its rank was")


def test_a_coordinator_that_keeps_the_old_life(monkeypatch: Patch) -> None:
    def succeed(original: Any, machine: CoordinatorMachine, before: Any, member: Any, now: float) -> list[Any]:
        machine.runs[member.job].succeed(before, member)
        return []

    wrap(monkeypatch, CoordinatorMachine, "succeed", succeed)
    monkeypatch.setattr(CoordinatorMachine, "validate", lambda self: None)
    caught("async-returns", "have one rank")


def test_a_worker_that_loses_its_place_among_those_expected(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Attendance, "succeed", lambda self, before, member: None)
    caught("sync-returns", "does not count any more")


def test_two_workers_of_one_rank(monkeypatch: Patch) -> None:
    def take(original: Any, roster: Roster, member: Any, rank: int | None = None) -> None:
        original(roster, member, rank)
        if member.hello.life:
            member.rank = 0

    wrap(monkeypatch, Roster, "take", take)
    monkeypatch.setattr(Roster, "validate", lambda self: None)
    caught("async-returns", "have one rank")
