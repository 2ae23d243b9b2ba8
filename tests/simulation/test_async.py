"""Asynchronous training on the simulator, with failures at the moments that matter."""

from __future__ import annotations

import pytest

from tests.simulation.scripts import kill_at
from tests.simulator import AsyncTraining, Faults, Simulation
from tests.simulator.scenarios import TWISTED
from zmqps.core.protocol import exits
from zmqps.core.protocol.messages import Assign, Enter, Load, Message, Push, Ready

pytestmark = pytest.mark.repeats


def small(steps: int = 4) -> AsyncTraining:
    return AsyncTraining(steps=steps, parameters=4, size=32, lives=6)


@pytest.mark.parametrize("faults", [Faults(), Faults(delay=0.02), TWISTED], ids=["none", "delays", "twisted"])
def test_without_losses_everything_succeeds_and_every_node_ends_well(faults: Faults) -> None:
    for seed in range(5):
        simulation = Simulation(seed, servers=3, workers=3, faults=faults, training=small())
        report = simulation.run()
        assert report.steps == 3 * 4
        assert not [name for name in report.outcomes if name.endswith("Error")], report
        assert {name: node.exit and node.exit.code for name, node in simulation.nodes.items()} == dict.fromkeys(
            simulation.nodes, exits.OK
        )


# --- scripted failures --------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8, 13])
def test_a_worker_killed_between_the_slices_of_a_push_does_not_disturb_the_others(nth: int) -> None:
    training = AsyncTraining(restart=False)
    simulation = Simulation(nth, servers=2, workers=3, training=training)
    killed = kill_at(simulation, Push, nth, lambda sender, receiver: sender.name)
    report = simulation.run()
    assert [node.finished for node in simulation.workers].count(True) == 2
    assert report.outcomes["push"] + report.outcomes.get("push_pull", 0) >= 10
    # those who wait for it at the end are told who it was
    assert report.outcomes.get("PeerLostError", 0) <= 2
    assert "lost worker" in simulation.trace() or killed == []
    assert simulation.nodes["coordinator"].exit is not None, "a lost worker does not keep the cluster from ending"


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_a_loader_killed_during_its_upload_is_replaced(nth: int) -> None:
    simulation = Simulation(nth, servers=2, workers=3, training=AsyncTraining(restart=False))
    kill_at(simulation, Load, nth, lambda sender, receiver: sender.name)
    report = simulation.run()
    assert report.steps == 2 * 5
    assert report.outcomes["init"] == 2


@pytest.mark.parametrize("nth", [1, 4, 9])
def test_a_server_killed_while_it_trains_fails_everybody_with_its_name(nth: int) -> None:
    simulation = Simulation(nth, servers=2, workers=3, training=AsyncTraining(restart=False))
    killed = kill_at(simulation, Push, nth, lambda sender, receiver: receiver)
    report = simulation.run()
    assert report.outcomes["PeerLostError"] >= 3
    assert "DeadlineError" not in report.outcomes
    assert f"lost server {killed[0][-1]}" in simulation.trace() or f"({killed[0]}," in simulation.trace()


@pytest.mark.parametrize("kind", [Assign, Ready])
def test_a_server_killed_while_the_job_starts_fails_the_inits(kind: type[Message]) -> None:
    simulation = Simulation(1, servers=2, workers=2, training=AsyncTraining(restart=False))
    kill_at(simulation, kind, 2, lambda sender, receiver: sender.name if kind is Ready else receiver)
    assert simulation.run().outcomes == {"PeerLostError": 2, "connect": 2}


def test_a_server_that_was_killed_before_the_job_started_can_be_replaced() -> None:
    simulation = Simulation(1, servers=2, workers=2, training=AsyncTraining(lives=8))
    kill_at(simulation, Ready, 2, lambda sender, receiver: sender.name)
    simulation.at(15.0, simulation.start_server)
    report = simulation.run()
    assert report.steps == 2 * 5
    assert [node.exit is not None for node in simulation.servers].count(True) == 2


@pytest.mark.parametrize("seconds", [3.0, 30.0])
def test_a_coordinator_that_is_cut_off_is_missed_only_when_it_takes_long(seconds: float) -> None:
    for seed in range(6):
        training = AsyncTraining(steps=11, compute_s=1.0, restart=False)
        simulation = Simulation(seed, servers=2, workers=2, training=training)
        simulation.at(3.0, lambda s=simulation: s.partition(s.nodes["coordinator"], seconds))
        report = simulation.run()
        lost = [node for node in simulation.servers if node.exit and node.exit.code == exits.COORDINATOR_LOST]
        assert len(lost) == (2 if seconds > 10 else 0), report
        assert seconds < 10 or "PeerLostError" in report.outcomes


def test_what_is_lost_while_a_job_starts_is_said_again() -> None:
    for seed in range(40):
        report = Simulation(seed, 2, 2, Faults(delay=0.004, loss=0.03), small()).run()
        assert report.outcomes["init"] == 2, report


def test_a_worker_that_was_cut_off_for_long_is_fenced_everywhere() -> None:
    for seed in range(6):
        simulation = Simulation(seed, servers=2, workers=3, training=AsyncTraining(steps=11, compute_s=1.0, lives=9))
        simulation.at(4.0, lambda s=simulation: s.partition(s.workers[0], 25.0))
        report = simulation.run()
        assert report.steps >= 2 * 11
        assert {name for name in report.outcomes if name.endswith("Error")} <= {
            "EvictedError", "PeerLostError", "DeadlineError",
        }, report  # fmt: skip


def test_a_worker_killed_at_the_barrier_is_named_to_those_who_wait() -> None:
    simulation = Simulation(3, servers=1, workers=3, training=AsyncTraining(restart=False))
    kill_at(simulation, Enter, 3, lambda sender, receiver: sender.name)
    report = simulation.run()
    assert report.outcomes["PeerLostError"] == 2
    assert report.outcomes["finish"] == 2
