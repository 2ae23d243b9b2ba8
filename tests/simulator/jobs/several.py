"""Several jobs at once on one simulated cluster, each with its own workers, program and invariants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.training import Training
from tests.simulator.memory import ScarceMemory
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Assign, EndJob, Message
from zmqps.core.protocol.security.guard import proved
from zmqps.core.server.builds import Room
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.shard import Shard
from zmqps.errors import DeadlineError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

Hook = Callable[[Node, str, Message], None]


class SeveralJobs(Training):
    """Trainings side by side: what one does, or what happens to it, must not be seen in another.

    Parameters
    ----------
    trainings
        One a job; each gets a name of its own.
    end_s
        Simulated seconds at which an operator ends a job, in turn; its workers begin it again.
    """

    slice_nbytes = 192

    def __init__(self, trainings: Sequence[Training], end_s: Sequence[float] = ()) -> None:
        self.trainings = {f"job-{i}": training for i, training in enumerate(trainings)}
        for name, training in self.trainings.items():
            training.name = name
        self.num_jobs = len(self.trainings)
        self._end_s = end_s
        self._views: dict[str, SimulatedCluster] = {}

    def job_of(self, number: int) -> str:
        """Spread the workers over the jobs in turn."""
        return list(self.trainings)[number % len(self.trainings)]

    def watch(self, simulation: SimulatedCluster) -> None:
        """Let each training listen to its own job."""
        jobs: dict[tuple[bytes, int], str] = {}  # by incarnation of the coordinator and epoch
        simulation.on_send.append(lambda sender, to, message: _note(jobs, sender, message))
        for name, training in self.trainings.items():
            self._views[name] = cast("SimulatedCluster", _View(simulation, name, jobs))
            training.watch(self._views[name])
        for number, seconds in enumerate(self._end_s):
            name = self.job_of(number)
            simulation.at(seconds, lambda name=name: _end(simulation, name))  # type: ignore[misc]

    def program(self, simulation: SimulatedCluster, worker: Node) -> Program:
        """Return the script of the worker's job."""
        name = worker.identity.job
        return self.trainings[name].program(self._views.get(name, simulation), worker)

    def check(self, simulation: SimulatedCluster, node: Node) -> None:
        """Assert what must hold of each job; of a worker, of its own."""
        for name, training in self.trainings.items():
            if node.identity.job in ("", name):
                training.check(self._views[name], node)

    def check_freed(self, simulation: SimulatedCluster, server: Node) -> None:
        """Assert what must hold of each job's shard."""
        for name, training in self.trainings.items():
            training.check_freed(self._views[name], server)

    def check_end(self, simulation: SimulatedCluster) -> None:
        """Assert what must hold of each job when all is over, and that nothing is kept of those that have ended."""
        for name, training in self.trainings.items():
            training.check_end(self._views[name])
        if not simulation.nodes["coordinator"].alive or simulation.restarting:
            return
        coordinator = simulation.coordinator
        epochs = {epoch for run in coordinator.runs.values() for epoch in run.startup.copies.by_epoch}
        for server in simulation.servers:
            machine = server.machine
            assert isinstance(machine, ServerKernel)
            if server.alive and server.identity.incarnation in coordinator.membership.members:
                kept = {epoch: tenant.name for epoch, tenant in machine.tenants.items() if epoch not in epochs}
                assert not kept, f"{server.name} still has shards of jobs that have ended: {kept}"

    def may_wait(self, simulation: SimulatedCluster, error: DeadlineError) -> bool:
        """Wait in vain only where some job may."""
        return any(training.may_wait(simulation, error) for training in self.trainings.values())

    def restarts(self, simulation: SimulatedCluster, worker: Node) -> bool:
        """Start a worker again if its job does."""
        name = worker.identity.job
        return self.trainings[name].restarts(self._views.get(name, simulation), worker)

    def shard(
        self, job: JobSpec, placement: Placement, index: int, room: Room, memory: ScarceMemory | None = None
    ) -> Shard:
        """Build a shard of whichever job."""
        return next(iter(self.trainings.values())).shard(job, placement, index, room, memory)


class _View:
    """A simulation as the training of one job sees it."""

    def __init__(self, simulation: SimulatedCluster, name: str, jobs: dict[tuple[bytes, int], str]) -> None:
        self._simulation = simulation
        self._name = name
        self._jobs = jobs
        self.on_send = _Hooks(simulation.on_send, self._concerns)
        self.on_receive = _Hooks(simulation.on_receive, self._concerns)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulation, name)

    @property
    def job_failed(self) -> bool:
        """Whether this job has lost a shard."""
        simulation = self._simulation
        if "coordinator" not in simulation.nodes or simulation.restarting:
            return False
        run = simulation.coordinator.runs.get(self._name)
        return run is not None and run.lost_shard is not None

    def _concerns(self, node: Node, other: str, message: Message) -> bool:
        there = self._simulation.nodes.get(other)
        names = {each.identity.job for each in (node, there) if each is not None} - {""}
        if names:
            return names == {self._name}
        coordinator = node if node.role == "coordinator" else there
        epoch = getattr(message, "epoch", 0)
        return coordinator is not None and self._jobs.get((coordinator.identity.incarnation, epoch)) == self._name


class _Hooks:
    """Adds hooks to a simulation that are called for what concerns one job."""

    def __init__(self, hooks: list[Hook], concerns: Callable[[Node, str, Message], bool]) -> None:
        self._hooks = hooks
        self._concerns = concerns

    def append(self, hook: Hook) -> None:
        """Add one."""
        concerns = self._concerns

        def filtered(node: Node, other: str, message: Message) -> None:
            if concerns(node, other, message):
                hook(node, other, message)

        self._hooks.append(filtered)


def _note(jobs: dict[tuple[bytes, int], str], sender: Node, message: Message) -> None:
    if isinstance(message, Assign):
        jobs[sender.identity.incarnation, message.epoch] = message.name


def _end(simulation: SimulatedCluster, name: str) -> None:
    """Let an operator end a job, without waiting for the answer."""
    coordinator = simulation.nodes.get("coordinator")
    if coordinator is not None and coordinator.alive:
        simulation.note("an operator", f"ends {name}")
        order = proved(coordinator.identity.end_key, EndJob(1, name))
        simulation.event(coordinator, Received(b"@operator", order))
