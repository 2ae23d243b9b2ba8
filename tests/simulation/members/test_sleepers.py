"""Nodes that stand still: nobody is given up for the sleep of the one that judges, and what has slept answers nothing.

Each judge is broken on purpose, too: it goes by real time, and the simulator must notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.simulation.test_invariants import violated, wrap
from tests.simulator import AsyncTraining, Simulation, SyncTraining
from tests.simulator.cluster import SimulatedCluster
from tests.simulator.engine import Engine, Node, Program
from tests.simulator.jobs.bounded import BoundedTraining
from tests.simulator.jobs.training import Training
from tests.simulator.members import comebacks
from tests.simulator.network import Faults
from tests.simulator.placement.copies import WHOLE_S
from tests.simulator.placement.replicas import replicated
from tests.simulator.placement.stores import Disk
from tests.simulator.scenarios import SCENARIOS
from tests.tables import one_in
from zmqps.core.coordinator.consistency.synchronous import Synchronous
from zmqps.core.coordinator.members.membership import Membership
from zmqps.core.coordinator.members.places import Occupancy
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.saving.checkpoints import HOLD_S
from zmqps.core.coordinator.saving.making import PushCut
from zmqps.core.node.awake import AwakeClock
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import Assign, Message
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.tenant import Tenant
from zmqps.core.worker.connections.link import SHORT_S, Resends
from zmqps.core.worker.operations import Attached, EnterBarrier, Join, StartJob
from zmqps.core.worker.transfer import Delay

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


def cluster(
    training: Training, seed: int = 1, patience: float = PATIENCE_S, journaled: bool = False, lease: float = 600.0
) -> Simulation:
    """Return a cluster whose shards have a backup each, and in which nothing else goes wrong."""
    options = CoordinatorOptions(
        servers=3, workers=3, slice_size=training.slice_nbytes, patience=patience, lease=lease,
        replicas=1,
        heartbeat_interval=0.5, heartbeat_timeout=TIMEOUT_S,
    )  # fmt: skip
    return Simulation(seed, 3, 3, Faults(delay=0.002), training, options=options, journaled=journaled)


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


@pytest.mark.parametrize("make", one_in(2, [asynchronous, synchronous]))
@pytest.mark.parametrize(
    ("who", "times"),
    one_in(2, [(coordinator, 1.3), (coordinator, 3.0), (everybody, 3.0), (coordinator_and_leader, 1.3), (leader, 0.6)]),
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


@pytest.mark.parametrize("make", one_in(2, [asynchronous, synchronous]))
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


def cluster_that_comes_back(patch: Patch, training: Training) -> Simulation:
    """Return one whose coordinator dies at 3 s, comes back from its journal at 3.5 s, and does not die again."""
    patch.setattr(comebacks, "DEATHS", (0, 0))
    simulation = cluster(training, journaled=True)
    simulation.at(3.0, lambda: simulation.kill(simulation.nodes["coordinator"]))
    simulation.at(3.5, simulation.start_coordinator)
    return simulation


@pytest.mark.parametrize("make", one_in(2, [asynchronous, synchronous]))
def test_a_coordinator_that_is_back_may_give_up_a_member_that_has_not_said_who_it_is(
    make: Callable[[], Training], monkeypatch: Patch
) -> None:
    simulation = cluster_that_comes_back(monkeypatch, make())
    stop(simulation, 3.2, 5.8, leader)
    stop(simulation, 7.9, 7.0, coordinator)  # meanwhile the leader is awake, and sends heartbeats over a new connection
    stop(simulation, 14.0, 12.0, leader)
    heard: list[float] = []
    simulation.on_receive.append(
        lambda node, sender, message: (
            heard.append(simulation.now) if (node.name, sender) == ("coordinator", "server-0") else None
        )
    )
    simulation.run()
    assert [title.split()[:2] for title in gone(simulation)] == [["server", "0"]]
    assert any(14.9 <= at <= 15.1 for at in heard)
    assert simulation.sleepers.num_judged > 0


def test_a_shard_may_lack_a_backup_for_as_long_as_the_coordinator_sleeps() -> None:
    simulation = cluster(asynchronous())
    slept: list[float] = []

    def sleep(sender: Node, receiver: str, message: Message) -> None:
        """Let the coordinator sleep once it has asked the new server for copies."""
        if isinstance(message, Assign) and receiver == "server-3" and not slept:
            slept.append(simulation.now)
            stop(simulation, simulation.now, WHOLE_S + 2.0, coordinator)

    simulation.on_send.append(sleep)
    simulation.at(3.0, lambda: simulation.kill(*leader(simulation)))
    simulation.at(3.1, simulation.start_server)
    simulation.run()
    assert slept
    assert [title.split()[:2] for title in gone(simulation)] == [["server", "0"]]


# --- reads of a worker that hears late of the new leader -------------------------------------------


class LateReader(AsyncTraining):
    """Its first worker computes for long before it reads, and meanwhile a backup takes over from the first server.

    That worker and that server, which is awake again by then, reach each other, and neither has heard of it: what the
    coordinator says to them is late, and the server does not reach its backups.
    """

    zombie_said: list[str]  # what the server has said to that worker since it woke

    def step(
        self, simulation: SimulatedCluster, worker: Node, attached: Attached, push: int, out: Sequence[Array | None]
    ) -> Program:
        if worker.number == 0 and push == 2:
            self.zombie_said = []
            yield 0.1  # until it knows that it may read
            stopped_s = 1.2 * TIMEOUT_S
            simulation.stop(simulation.servers[0], stopped_s)
            ways = [("coordinator", "server-0"), ("coordinator", worker.name)]
            ways += [way for other in ("server-1", "server-2") for way in (("server-0", other), (other, "server-0"))]
            simulation.network.cut_ways(ways, 4 * TIMEOUT_S, simulation.now, loses=False)
            yield stopped_s
            simulation.on_send.append(partial(self._hear, worker.name))
            yield TIMEOUT_S
        yield from super().step(simulation, worker, attached, push, out)

    def _hear(self, reader: str, node: Node, to: str, message: Message) -> None:
        if (node.name, to) == ("server-0", reader):
            self.zombie_said.append(type(message).__name__)


class LateBoundedReader(LateReader, BoundedTraining):
    """The same where the others are ahead by no more than four steps."""


def bounded() -> LateReader:
    return LateBoundedReader(staleness=4, plain=True, steps=7, parameters=6, size=40, compute_s=0.4, timeout=60.0)


@pytest.mark.parametrize("seed", one_in(3, range(1, 4)))
def test_with_a_bound_a_zombie_answers_no_pull_also_of_a_worker_that_takes_it_for_the_leader(seed: int) -> None:
    training = bounded()
    simulation = cluster(training, seed)
    simulation.run()
    assert simulation.losses is not None
    assert simulation.losses.promotions > 0
    assert not training.zombie_said


@pytest.mark.repeats
@pytest.mark.parametrize("seed", one_in(3, range(1, 4)))
def test_a_leader_that_answers_pulls_without_asking_its_backups(monkeypatch: Patch, seed: int) -> None:
    monkeypatch.setattr(Tenant, "is_bounded", False)
    assert "does not see what was pushed before" in violated(cluster(bounded(), seed))


@pytest.mark.repeats
@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_answers_a_pull_with_an_older_version_than_it_asks_for(monkeypatch: Patch, seed: int) -> None:
    monkeypatch.setattr(DensePart, "is_available", lambda dense, message: True)
    assert "and has read version" in violated(SCENARIOS["sync-freezes"].simulation(seed))


def test_without_a_bound_a_worker_that_has_not_heard_of_the_new_leader_may_read_at_the_zombie() -> None:
    training = LateReader(steps=7, parameters=6, size=40, lives=3, compute_s=0.4, timeout=60.0)
    cluster(training).run()
    assert "Values" in training.zombie_said
    assert "Ack" not in training.zombie_said


# --- judges that go by real time ------------------------------------------------------------------


@pytest.mark.repeats
def test_a_coordinator_that_judges_members_by_real_time(monkeypatch: Patch) -> None:
    judge_by_real_time(monkeypatch, "coordinator")
    simulation = cluster(asynchronous())
    stop(simulation, 3.0, 3.0 * TIMEOUT_S, coordinator)
    assert "coordinator has given up" in violated(simulation)


@pytest.mark.repeats
@pytest.mark.parametrize("role", ["server", "worker"])
def test_a_member_that_judges_the_coordinator_by_real_time(monkeypatch: Patch, role: str) -> None:
    judge_by_real_time(monkeypatch, role)
    simulation = cluster(asynchronous(), patience=0.0)
    stop(simulation, 3.0, 3.0 * TIMEOUT_S, everybody)
    assert "has given up coordinator" in violated(simulation)


@pytest.mark.repeats
def test_a_coordinator_that_gives_members_no_time_to_come_back(monkeypatch: Patch) -> None:
    simulation = cluster_that_comes_back(monkeypatch, asynchronous())
    stop(simulation, 3.2, 2.5, leader)
    simulation.run()
    assert gone(simulation) == []
    monkeypatch.setattr(Membership, "begin_again", lambda self, now: self.timeout)
    simulation = cluster_that_comes_back(monkeypatch, asynchronous())
    stop(simulation, 3.2, 2.5, leader)
    assert "coordinator has given up" in violated(simulation)


class Meeting(AsyncTraining):
    """Everybody waits at a barrier for the first worker, which is late."""

    def program(self, simulation: Simulation, worker: Node) -> Program:
        yield Join(0.0), 5.0
        if worker.number == 0:
            yield 6.0
        yield EnterBarrier(0.0, barrier="all"), 7.0


@pytest.mark.repeats
def test_a_worker_that_waits_at_a_barrier_by_real_time(monkeypatch: Patch) -> None:
    def outcomes() -> set[str]:
        simulation = cluster(Meeting(restart=False))
        stop(simulation, 3.0, 2.5 * TIMEOUT_S, everybody)
        return {*simulation.run().outcomes}

    assert outcomes() == {"connect", "barrier"}
    judge_by_real_time(monkeypatch, "worker")
    assert "DeadlineError" in outcomes()


# --- single judges that do, while all else goes by the node's time -----------------------------------
#
# Two kinds of deadlines are none of these, for by real time they do no harm. What is only said again (a hello, a
# commit, a question to a silent server) is said once too often: what has had it knows that by its number, and a
# question is answered behind all that was asked before. And a job that is saved every so many seconds is saved a little
# sooner, once, however long the coordinator stood still.


class RealTime:
    """Lets what asks it be due by real time.

    Parameters
    ----------
    patch
        Notes which node asks: the one that takes an event.
    """

    def __init__(self, patch: Patch) -> None:
        self._node: Node | None = None
        self._first: dict[object, float] = {}  # for how long a node had stood still when something became due
        time_of, check = Engine.time_of, Simulation.check

        def asks(engine: Engine, node: Node) -> float:
            self._node = node
            return time_of(engine, node)

        def checked(simulation: Simulation, node: Node) -> None:
            check(simulation, node)  # which asks for the time of others, too
            self._node = node

        patch.setattr(Engine, "time_of", asks)
        patch.setattr(Simulation, "check", checked)
        for name in ("next_deadline", "on_deadline", "validate"):
            wrap(patch, Wheel, name, _all_asked)

    def due(self, what: object, due: float) -> float:
        """Return when something is due, in the node's time, as far as that is known now."""
        assert self._node is not None
        stood_s = self._node.clock.stood_s
        return due - (stood_s - self._first.setdefault((what, due), stood_s))


def _all_asked(original: Any, wheel: Wheel, *arguments: Any) -> Any:
    """By real time something may be due at another time without any event: every timer is asked."""
    for timer in wheel._timers.values():
        timer.touch()
    return original(wheel, *arguments)


class Visited(AsyncTraining):
    """Workers train a little and leave, without having finished."""

    def program(self, simulation: Simulation, worker: Node) -> Program:
        job, values = self.job()
        yield Join(0.0), 5.0
        yield StartJob(0.0, job=job, values=values), 60.0
        yield 0.5

    def restarts(self, simulation: Simulation, worker: Node) -> bool:
        return False


def visited(seed: int) -> Simulation:
    """Return a cluster to whose job somebody comes again before its lease is over, while the coordinator was awake."""
    simulation = cluster(Visited(), seed, lease=6.0)
    simulation.workers_to_come += 1
    stop(simulation, 4.0, 10.0, coordinator)
    simulation.at(16.0, simulation.start_worker)
    return simulation


@pytest.mark.parametrize("seed", one_in(3, [1, 2, 3]))
def test_a_job_is_kept_for_its_lease_while_the_coordinator_is_awake(seed: int, monkeypatch: Patch) -> None:
    simulation = visited(seed)
    simulation.run()
    assert simulation.outcomes["init"] == 4
    (ended,) = simulation.coordinator.ended.by_name.values()  # when nobody has come again
    assert ended.how == "no worker for 6 s"
    assert simulation.sleepers.num_judged == 1
    real, ends_at = RealTime(monkeypatch), Occupancy.ends_at.fget
    assert ends_at is not None

    def due(self: Occupancy) -> float | None:
        return None if (at := ends_at(self)) is None else real.due(self, at)

    monkeypatch.setattr(Occupancy, "ends_at", property(due))
    assert "without a worker" in violated(visited(seed))


def late(policy: str, seed: int) -> Simulation:
    """Return a cluster whose coordinator stands still in the middle of steps, and knows how long these take."""
    training = SyncTraining(steps=16, size=48, compute_s=0.8, timeout=60.0, on_straggler=policy, plain=True)
    simulation = cluster(training, seed)
    for at in (9.0, 20.0, 31.0):
        stop(simulation, at, 5.0, coordinator)
    return simulation


@pytest.mark.repeats
@pytest.mark.parametrize("policy", ["continue", "fail"])
def test_a_coordinator_that_calls_workers_late_by_real_time(policy: str, monkeypatch: Patch) -> None:
    seeds = range(3)
    assert not any(violated(late(policy, seed)) for seed in seeds)
    real, next_deadline = RealTime(monkeypatch), Synchronous.next_deadline

    def due(self: Synchronous) -> float | None:
        return None if (at := next_deadline(self)) is None else real.due(self, at)

    monkeypatch.setattr(Synchronous, "next_deadline", due)
    assert any("has waited for the late for" in violated(late(policy, seed)) for seed in seeds)


def scarce(seed: int) -> Simulation:
    """Return a cluster whose servers lack memory for a while, in which its workers stand still."""
    training = AsyncTraining(steps=8, parameters=3, size=24, lives=3, compute_s=0.3, timeout=60.0)
    options = CoordinatorOptions(
        servers=1, workers=3, slice_size=training.slice_nbytes, heartbeat_interval=0.5, heartbeat_timeout=60.0
    )
    simulation = Simulation(seed, 1, 3, Faults(delay=0.002, memory=0.7), training, calm_s=10.0, options=options)
    stop(simulation, 2.0, 1.5 * SHORT_S, lambda simulation: simulation.workers)
    return simulation


@pytest.mark.repeats
def test_a_worker_that_is_refused_memory_for_long_by_real_time(monkeypatch: Patch) -> None:
    seeds = range(5)
    assert not any(violated(scarce(seed)) for seed in seeds)
    real = RealTime(monkeypatch)

    def refused(delay: Delay, now: float) -> float | None:
        since = delay.refused_at = now if delay.refused_at is None else delay.refused_at
        return None if now >= real.due(delay, since + SHORT_S) else original(delay, now)

    original = Resends.refused
    monkeypatch.setattr(Resends, "refused", staticmethod(refused))
    assert any("has asked for memory for" in violated(scarce(seed)) for seed in seeds)


def held(seed: int) -> Simulation:
    """Return a cluster whose coordinator stands still while it waits for a worker to pause for a checkpoint."""
    training = BoundedTraining(1, steps=12, parameters=4, size=32, lives=3, compute_s=0.8, timeout=60.0)
    options = CoordinatorOptions(
        servers=2, workers=3, slice_size=training.slice_nbytes, checkpoint_seconds=1.0, heartbeat_timeout=HOLD_S
    )
    simulation = Simulation(seed, 2, 3, Faults(delay=0.002), training, options=options, disk=Disk())
    stop(simulation, 3.0, 6.0, lambda simulation: simulation.workers[:1])
    stop(simulation, 5.5, 1.2 * HOLD_S, coordinator)
    return simulation


@pytest.mark.repeats
def test_a_coordinator_that_waits_for_a_pause_by_real_time(monkeypatch: Patch) -> None:
    seeds = range(3)
    assert not any(violated(held(seed)) for seed in seeds)
    real = RealTime(monkeypatch)

    def due(self: PushCut) -> float | None:
        return None if (at := vars(self)["by"]) is None else real.due(self, at)

    by = property(due, lambda self, at: vars(self).__setitem__("by", at))
    monkeypatch.setattr(PushCut, "by", by)
    assert any("were to pause is given up" in violated(held(seed)) for seed in seeds)
