"""The simulator sees when a node does not get its number: coordinators here are broken on purpose."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import caught
from tests.simulator.members.numbers import NumberedSimulation
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.members import membership
from zmqps.core.coordinator.members.membership import Roster

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch


def test_nodes_come_in_any_order_and_again_before_they_are_missed() -> None:
    numbered = again = 0
    for seed in range(6):
        simulation = SCENARIOS["sync-numbered"].simulation(seed)
        assert isinstance(simulation, NumberedSimulation)
        simulation.run()
        numbered += simulation.num_numbered
        again += len(simulation.doubted)
    assert numbered > 6 * 6
    assert numbered > again > 0


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_ranks_in_the_order_in_which_nodes_come(monkeypatch: Patch, mode: str) -> None:
    monkeypatch.setattr(membership, "index_of", lambda hello: None)
    caught(f"{mode}-numbered", "has another rank than its number")


def test_a_number_that_is_thought_to_be_taken_by_the_life_before(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Roster, "awaits", lambda *_: None)
    caught("async-numbered", "has another rank than its number")


def test_a_number_of_another_for_one_that_comes_by_hand(monkeypatch: Patch) -> None:
    def free(self: Roster, member: Any) -> int:
        return next(rank for rank in range(len(self) + 1) if rank not in self._by_rank)

    monkeypatch.setattr(Roster, "_free", free)
    caught("async-numbered", "has the number of another")
