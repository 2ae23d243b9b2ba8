"""What the simulator claims to check where supervisors tell of ends: machines are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.test_invariants import Patch, caught, wrap
from tests.simulator.members.supervisors import Reported
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.kernel import machine
from zmqps.core.coordinator.kernel.machine import CoordinatorKernel
from zmqps.core.coordinator.members.membership import Processes

pytestmark = pytest.mark.repeats


@pytest.mark.parametrize("name", ["async-reported", "sync-reported-replicas"])
def test_nodes_are_lost_by_what_their_supervisors_tell(name: str) -> None:
    lost = 0
    for seed in range(6):
        run = SCENARIOS[name].simulation(seed)
        assert isinstance(run, Reported)
        run.run()
        lost += run.num_lost
    assert lost > 5


def test_a_coordinator_that_takes_no_notice_of_reports(monkeypatch: Patch) -> None:
    monkeypatch.setattr(CoordinatorKernel, "_note_exit", lambda self, peer, message, now: [])
    caught("async-reported", "has ended, and is not known to be lost")


def test_a_coordinator_that_answers_a_report_and_leaves_the_rest_to_the_heartbeats(monkeypatch: Patch) -> None:
    def later(original: Callable[..., Any], self: Processes, process: bytes) -> list[Any]:
        original(self, process)
        return []

    wrap(monkeypatch, Processes, "end", later)
    monkeypatch.setattr(Processes, "validate", lambda self, members: None)
    caught("async-reported", "is there, and its process is known to have ended")


def test_a_coordinator_that_ends_the_next_life_by_the_report_of_the_one_before(monkeypatch: Patch) -> None:
    names: dict[bytes, str] = {}

    def took(original: Callable[..., Any], self: Processes, member: Any) -> None:
        names[member.hello.process] = member.hello.name
        original(self, member)

    def end(original: Callable[..., Any], self: Processes, process: bytes) -> list[Any]:
        original(self, process)
        everybody = [member for living in self._living.values() for member in living.values()]
        return [member for member in everybody if member.hello.name == names.get(process)]

    wrap(monkeypatch, Processes, "took", took)
    wrap(monkeypatch, Processes, "end", end)
    caught("async-reported", "it is another process that has ended")


def test_a_coordinator_that_takes_what_everybody_may_learn_for_the_token(monkeypatch: Patch) -> None:
    monkeypatch.setattr(machine, "process_of", lambda token: token)
    caught("async-attacked", "strangers ended")
