"""Nodes that stand still: nobody is given up for the sleep of the one that judges, and what has slept answers nothing.

Each judge is broken on purpose, too: it goes by real time, and the simulator must notice.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.testing.test_invariants import violated
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.node.awake import AwakeClock
from zmqps.core.worker.operations import EnterBarrier, Join
from zmqps.testing import AsyncTraining, Simulation, SyncTraining
from zmqps.testing.engine import Engine, Node, Program
from zmqps.testing.network import Faults
from zmqps.testing.replicas import replicated
from zmqps.testing.training import Training

Patch = pytest.MonkeyPatch

#: Seconds of silence after which somebody is given up, where shards have copies.
TIMEOUT_S = replicated(CoordinatorOptions(servers=3, workers=3), 1).heartbeat_timeout
#: A coordinator that keeps a journal is waited for so long.
PATIENCE_S = 60.0


class RealClock(AwakeClock):
    """Goes on while its node stands still."""

    def now(self, real: float) -> float:
        return real

    def look(self, real: float, wait_s: float) -> None:
        pass


def judge_by_real_time(patch: Patch, role: str) -> None:
    """Let the time of all nodes of a role go on while they stand still."""
    original = Engine._new_clock
    patch.setattr(
        Engine, "_new_clock", lambda self, node: RealClock(0.0) if node.role == role else original(self, node)
    )


def asynchronous() -> Training:
    return AsyncTraining(steps=12, parameters=6, size=40, lives=3, compute_s=0.8, timeout=60.0)


def synchronous() -> Training:
    return SyncTraining(steps=10, parameters=6, size=48, compute_s=0.8, timeout=60.0)


def cluster(training: Training, seed: int = 1, patience: float = PATIENCE_S) -> Simulation:
    """Return a cluster whose shards have a backup each, and in which nothing else goes wrong."""
    options = CoordinatorOptions(
        servers=3, workers=3, slice_nbytes=training.slice_nbytes, patience=patience, replicas=1,
        heartbeat_interval=0.5, heartbeat_timeout=TIMEOUT_S,
    )  # fmt: skip
    return Simulation(seed, 3, 3, Faults(delay=0.002), training, options=options)


def stop(simulation: Simulation, at: float, seconds: float, choose: Callable[[Simulation], list[Node]]) -> None:
    def happen() -> None:
        for node in choose(simulation):
            simulation.stop(node, seconds)

    simulation.at(at, happen)


def coordinator(simulation: Simulation) -> list[Node]:
    return [simulation.nodes["coordinator"]]


def leader(simulation: Simulation) -> list[Node]:
    return simulation.servers[:1]


def coordinator_and_leader(simulation: Simulation) -> list[Node]:
    return [*coordinator(simulation), *leader(simulation)]


def everybody(simulation: Simulation) -> list[Node]:
    return list(simulation.nodes.values())


def gone(simulation: Simulation) -> list[str]:
    return [departure.member.title for departure in simulation.coordinator.membership.gone if departure.how == "lost"]


@pytest.mark.parametrize("make", [asynchronous, synchronous])
@pytest.mark.parametrize(
    ("who", "times"),
    [(coordinator, 1.3), (coordinator, 3.0), (coordinator_and_leader, 1.3), (everybody, 3.0), (leader, 0.6)],
)
def test_nobody_is_given_up_for_the_sleep_of_the_one_that_judges(
    make: Callable[[], Training], who: Callable[[Simulation], list[Node]], times: float
) -> None:
    simulation = cluster(make())
    for at in (3.0, 12.0):
        stop(simulation, at, times * TIMEOUT_S, who)
    report = simulation.run()
    assert gone(simulation) == []
    assert simulation.losses is not None
    assert simulation.losses.promotions == 0
    assert not any(name.endswith("Error") for name in report.outcomes)


@pytest.mark.parametrize("make", [asynchronous, synchronous])
def test_a_leader_that_slept_while_a_backup_took_over_answers_nothing(make: Callable[[], Training]) -> None:
    simulation = cluster(make())
    stop(simulation, 3.0, 3.0 * TIMEOUT_S, leader)
    answers: list[str] = []
    woken = 3.0 + 3.0 * TIMEOUT_S
    zombie = "server-0"
    simulation.on_send.append(
        lambda node, to, message: (
            answers.append(type(message).__name__)
            if node.name == zombie and to.startswith("worker") and simulation.now >= woken
            else None
        )
    )
    simulation.run()
    assert simulation.losses is not None
    assert simulation.losses.promotions > 0
    assert gone(simulation) == [title for title in gone(simulation) if title.startswith("server 0")] != []
    # that the gradient of a step has come is no word of what becomes of it: its worker brings it to the new leader, too
    assert not {"Values", *(["Ack"] if make is asynchronous else [])} & {*answers}


# --- judges that go by real time ------------------------------------------------------------------


def test_a_coordinator_that_judges_members_by_real_time(monkeypatch: Patch) -> None:
    judge_by_real_time(monkeypatch, "coordinator")
    simulation = cluster(asynchronous())
    stop(simulation, 3.0, 3.0 * TIMEOUT_S, coordinator)
    assert "coordinator has given up" in violated(simulation)


@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_member_that_judges_the_coordinator_by_real_time(monkeypatch: Patch, role: str) -> None:
    judge_by_real_time(monkeypatch, role)
    simulation = cluster(asynchronous(), patience=0.0)
    stop(simulation, 3.0, 3.0 * TIMEOUT_S, everybody)
    assert "has given up coordinator" in violated(simulation)


class Meeting(AsyncTraining):
    """Everybody waits at a barrier for the first worker, which is late."""

    def program(self, simulation: Simulation, worker: Node) -> Program:
        yield Join(0.0), 5.0
        if worker.number == 0:
            yield 6.0
        yield EnterBarrier(0.0, barrier="all"), 7.0


def test_a_worker_that_waits_at_a_barrier_by_real_time(monkeypatch: Patch) -> None:
    def outcomes() -> set[str]:
        simulation = cluster(Meeting(restart=False))
        stop(simulation, 3.0, 2.5 * TIMEOUT_S, everybody)
        return {*simulation.run().outcomes}

    assert outcomes() == {"connect", "barrier"}
    judge_by_real_time(monkeypatch, "worker")
    assert "DeadlineError" in outcomes()
