"""A small synchronous job beside members that only come and fall silent: a crowd, or a few before its workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.synchronous import SyncTraining
from zmqps.core.node.member import Identity
from zmqps.core.protocol.messages import Arrive, Message, Proceed
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.operations import Join

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: Seconds of simulated time that a step may wait for the coordinator once its last worker has arrived.
MOST_DELAY_S = 0.1
#: What a node computes for each message that it sends: about what Python takes.
SEND_S = 100e-6
#: When the crowd comes, all at once, and when it falls silent.
COMES_AT_S, SILENT_AT_S = 1.5, 4.0
FOREVER_S = 1e6


@dataclass(kw_only=True)
class CrowdedTraining(SyncTraining):
    """Synchronous steps that a crowd of observers of another job must not hold up.

    Parameters
    ----------
    crowd
        How many come.
    """

    crowd: int = 80

    def __post_init__(self) -> None:
        super().__post_init__()
        self._arrived_at = 0.0  # when the last arrival was sent

    def watch(self, simulation: SimulatedCluster) -> None:
        """Let the crowd come, and look at every step."""
        super().watch(simulation)
        simulation.send_s = SEND_S
        simulation.on_send.append(partial(self._sent, simulation))
        simulation.on_receive.append(partial(self._received, simulation))
        simulation.at(COMES_AT_S, partial(self._come, simulation))

    def check_end(self, simulation: SimulatedCluster) -> None:
        """Assert that the crowd was there, and was lost while there were steps."""
        super().check_end(simulation)
        gone = simulation.coordinator.membership.gone
        lost = [departure.at for departure in gone if departure.how == "lost" and departure.member.job == "crowd"]
        assert len(lost) == self.crowd, f"{len(lost)} of {self.crowd} of the crowd were lost"
        assert max(lost) < self._arrived_at, "the training was over before the crowd was lost"

    def _come(self, simulation: SimulatedCluster) -> None:
        for number in range(self.crowd):
            _start_idle(simulation, f"crowd-{number}", "observer", "crowd")

    def _sent(self, simulation: SimulatedCluster, node: Node, to: str, message: Message) -> None:
        if isinstance(message, Arrive):
            self._arrived_at = simulation.now

    def _received(self, simulation: SimulatedCluster, node: Node, sender: str, message: Message) -> None:
        if isinstance(message, Proceed):
            delay = simulation.now - self._arrived_at
            assert delay <= MOST_DELAY_S, f"a step waited {delay:.3f} s for the coordinator"


@dataclass(kw_only=True)
class OutrankedTraining(SyncTraining):
    """Synchronous steps of workers after idle members have joined their job.

    Parameters
    ----------
    idlers
        How many those are.
    """

    idlers: int = 2

    def watch(self, simulation: SimulatedCluster) -> None:
        """Let the idlers come before anybody else."""
        super().watch(simulation)
        for number in range(self.idlers):
            simulation.at(0.0, partial(_start_idle, simulation, f"idler-{number}", "worker", self.name))

    def check_end(self, simulation: SimulatedCluster) -> None:
        """Assert that the workers had the ranks that the job expects."""
        super().check_end(simulation)
        expected = simulation.options.workers or 0
        machines = (node.machine for node in simulation.workers)
        ranks = sorted(machine.member.rank for machine in machines if isinstance(machine, SessionMachine))
        assert ranks == list(range(expected)), f"{expected} workers are expected, and their ranks are {ranks}"


def _start_idle(simulation: SimulatedCluster, name: str, role: str, job: str) -> None:
    """Let a member join a job, do nothing, and fall silent."""
    identity = Identity(
        role=role,
        incarnation=simulation.rng.randbytes(16),
        name=name,
        host="simulated",
        pid=simulation.rng.randrange(1000),
        job=job,
        secret=simulation.rng.randbytes(16),
    )
    # none of the workers that the simulation waits for
    node = Node(name=name, role="observer", identity=identity, machine=SessionMachine(identity, "sim://coordinator"))
    node.program = _idle()
    simulation.start(node)
    simulation.at(SILENT_AT_S, partial(simulation.kill, node))


def _idle() -> Program:
    yield Join(0.0), FOREVER_S
    yield FOREVER_S
