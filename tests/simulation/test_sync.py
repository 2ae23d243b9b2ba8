"""Synchronous and bounded training on the simulator, with failures at the moments that matter."""

from __future__ import annotations

import pytest

from tests.simulation.scripts import kill_at, stop_at
from tests.simulator import BoundedTraining, Faults, Node, Simulation, SyncTraining
from tests.simulator.scenarios import TWISTED
from zmqps.core.job.data import DataSpec
from zmqps.core.protocol import exits
from zmqps.core.protocol.messages import Arrive, Commit, Message, Pull, Push

pytestmark = pytest.mark.repeats

MODES = {
    "sync": lambda: SyncTraining(steps=4),
    "retain": lambda: SyncTraining(steps=4, retain=2),
    "backup": lambda: SyncTraining(steps=4, aggregate=2),
    "several": lambda: SyncTraining(steps=4, aggregate=5),
    "data": lambda: SyncTraining(data=DataSpec(name="examples", num_examples=50, range_size=10, passes=2)),
    "bounded": lambda: BoundedTraining(2, steps=4),
}


@pytest.mark.parametrize("faults", [Faults(), TWISTED], ids=["none", "twisted"])
@pytest.mark.parametrize("mode", MODES)
def test_without_losses_everything_succeeds_and_every_node_ends_well(mode: str, faults: Faults) -> None:
    for seed in range(2):
        simulation = Simulation(seed, 2, 3, faults, MODES[mode]())
        report = simulation.run()
        # an older version may be kept no more
        assert not {name for name in report.outcomes if name.endswith("Error")} - {"VersionError"}, report
        assert {node.exit and node.exit.code for node in simulation.nodes.values()} == {exits.OK}


@pytest.mark.parametrize("kind", [Push, Arrive, Pull])
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_a_worker_killed_in_any_phase_of_a_step_is_left_out_or_counts_once(kind: type[Message], nth: int) -> None:
    simulation = Simulation(nth, 2, 3, training=SyncTraining(steps=4, plain=True, lives=3))
    killed = kill_at(simulation, kind, nth, lambda sender, receiver: sender.name)
    report = simulation.run()
    assert len(killed) == 1
    assert report.outcomes["finish"] == 2
    assert not [name for name in report.outcomes if name.endswith("Error")], "nobody notices but by waiting"
    assert report.seconds > 10.0, "they wait until the dead one is lost"


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_server_that_dies_between_two_commits_fails_everybody(nth: int) -> None:
    simulation = Simulation(nth, 2, 3, training=SyncTraining(steps=4))
    kill_at(simulation, Commit, nth, lambda sender, receiver: receiver)
    report = simulation.run()
    assert report.outcomes["PeerLostError"] == 3
    assert "finish" not in report.outcomes


@pytest.mark.parametrize("nth", [1, 2, 4])
def test_a_coordinator_that_dies_between_two_commits_is_started_again(nth: int) -> None:
    simulation = Simulation(nth, 2, 3, training=SyncTraining(steps=4), supervised=True)
    kill_at(simulation, Commit, nth, lambda sender, receiver: sender.name)
    report = simulation.run()
    assert report.outcomes["finish"] == 3
    assert report.outcomes["init"] == 6
    assert simulation.nodes["coordinator"].alive is False


LONG = {
    "sync": lambda: SyncTraining(steps=30, compute_s=1.0, plain=True),
    "bounded": lambda: BoundedTraining(2, plain=True, steps=11, compute_s=4.0),
}


@pytest.mark.parametrize("mode", LONG)
def test_a_worker_that_is_stopped_for_long_is_told_so_and_comes_back(mode: str) -> None:
    simulation = Simulation(1, 2, 3, training=LONG[mode]())
    (stopped,) = _stopped(simulation, 12.5)
    report = simulation.run()
    assert report.outcomes["EvictedError"] == 1
    assert not stopped.finished
    again = simulation.workers[3:]
    assert [(node.identity.name, node.finished) for node in again] == [(stopped.identity.name, True)]
    assert report.outcomes["finish"] == 3


def test_a_worker_that_is_stopped_for_a_moment_is_waited_for() -> None:
    simulation = Simulation(1, 2, 3, training=SyncTraining(steps=6, compute_s=1.0))
    _stopped(simulation, 6.0)
    report = simulation.run()
    assert not [name for name in report.outcomes if name.endswith("Error")]
    assert report.outcomes["finish"] == len(simulation.workers) == 3


def _stopped(simulation: Simulation, seconds: float) -> list[Node]:
    """Let the run begin and stop a worker in it; return which."""
    stopped = stop_at(simulation, Push, 8, seconds)
    while not stopped:
        simulation.step()
    return stopped


def test_the_others_go_on_without_a_worker_that_is_stopped_if_the_job_says_so() -> None:
    simulation = Simulation(1, 2, 3, training=SyncTraining(steps=12, on_straggler="continue"))
    stopped = stop_at(simulation, Push, 100, 8.0)
    report = simulation.run()
    assert [worker.finished for worker in simulation.workers] == [True] * 3
    assert report.seconds > 8.0
    late = {worker.name: worker.machine.statistics().dropped for worker in simulation.workers}  # type: ignore[union-attr]
    assert [name for name, dropped in late.items() if dropped] == [stopped[0].name]


def test_ranges_of_a_dead_worker_are_used_by_the_others() -> None:
    simulation = Simulation(
        1,
        2,
        3,
        training=SyncTraining(data=DataSpec(name="examples", num_examples=100, range_size=10, passes=2), lives=3),
    )
    kill_at(simulation, Arrive, 7, lambda sender, receiver: sender.name)
    report = simulation.run()
    assert report.outcomes["finish"] == 2
    assert simulation.coordinator.runs == {}, "the job is over"
