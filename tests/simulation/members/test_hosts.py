"""The simulated host group notices a leader that forgets, counts twice, or waits for the dead."""

from __future__ import annotations

import pytest

from tests.simulator.members.hosts import HostGroups
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulation import SimulationError
from zmqps.combine.group import GroupMachine
from zmqps.combine.messages import Alone, ConnectionEnded, Done, Heard, HostAction, HostEvent, Tell
from zmqps.core.node.awake import AwakeClock

#: Runs among which a defect is noticed at least once.
SEEDS = 20


class Forgetful(GroupMachine):
    """Says that gradients are with the servers that came too late for their round."""

    def handle(self, event: HostEvent, now: float) -> list[HostAction]:
        actions = super().handle(event, now)
        late = [a for a in actions if isinstance(a, Tell) and a.message == Alone(reads=False)]
        return [Tell(a.member, Done(self.next)) if a in late else a for a in actions]


class Patient(GroupMachine):
    """Waits for members whose connection has ended, or who are silent."""

    def handle(self, event: HostEvent, now: float) -> list[HostAction]:
        self._timeout = float("inf")
        return [] if isinstance(event, ConnectionEnded) else super().handle(event, now)


class Greedy(GroupMachine):
    """Keeps what it was brought and pushes it again."""

    def handle(self, event: HostEvent, now: float) -> list[HostAction]:
        actions = super().handle(event, now)
        if isinstance(event, Heard) and actions and (again := getattr(self, "_last", None)) is not None:
            self._last = None
            return [again, *actions]
        self._last = next((a for a in actions if type(a).__name__ == "PushRound"), getattr(self, "_last", None))
        return actions


def violated(make: type[GroupMachine], seed: int, mode: str = "sync") -> str:
    faults = SCENARIOS[f"{mode}-combined-everything"].faults
    try:
        HostGroups(seed, mode, 4, faults, make).run()
    except SimulationError as error:
        return str(error.__cause__)
    return ""


@pytest.mark.repeats
@pytest.mark.parametrize(
    ("make", "said"), [(Forgetful, "acknowledged, and in no push"), (Greedy, "applied twice"), (Patient, "hang")]
)
def test_a_defect_of_the_leader_is_noticed(make: type[GroupMachine], said: str) -> None:
    assert any(said in violated(make, seed) for seed in range(SEEDS))
    assert not any(violated(GroupMachine, seed) for seed in range(SEEDS))


class RealClock(AwakeClock):
    """Goes on while its process stands still."""

    def now(self, real: float) -> float:
        return real


@pytest.mark.repeats
def test_a_leader_that_judges_by_real_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    freezes = SCENARIOS["sync-combined-freezes"]
    assert not any(_violated(freezes.simulation(seed)) for seed in range(SEEDS))
    monkeypatch.setattr("tests.simulator.members.host_processes.AwakeClock", RealClock)
    assert any("is dropped, and stood still" in _violated(freezes.simulation(seed)) for seed in range(SEEDS))


@pytest.mark.repeats
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_member_that_does_not_read_what_a_leader_said_before_it_gave_it_up(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = SCENARIOS[f"{mode}-combined-everything"]
    seeds = range(50, 250)
    monkeypatch.setattr(HostGroups, "_read_rest", lambda self, connection: connection.unread.clear())
    assert any("applied twice" in _violated(everything.simulation(seed)) for seed in seeds)


def _violated(run: object) -> str:
    assert isinstance(run, HostGroups)
    try:
        run.run()
    except SimulationError as error:
        return str(error.__cause__)
    return ""
