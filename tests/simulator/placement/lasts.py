"""Simulated jobs that end: each is saved once more before, or its coordinator says that it could not be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tests.simulator.engine import Node
from tests.simulator.jobs.training import Life, life_of
from tests.simulator.placement.stores import SavedJob
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.places import ASKED, FINISHED
from zmqps.core.coordinator.run import JobRun
from zmqps.core.protocol.events import Log, Stop
from zmqps.core.protocol.messages import Ack, EndJob, Message, Save
from zmqps.core.worker.session import SessionKernel

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

NEVER = float("-inf")
#: An operator that asks a coordinator to end checks so much later whether it does, and asks its successor.
ASKS_AGAIN_S = 0.5
#: How jobs end whose members have all gone before.
LEFT = (FINISHED, "no worker for", "left by its workers")


class Seen(NamedTuple):
    """A job that can be trained."""

    run: JobRun
    life: Life
    mode: str
    clock: int

    @property
    def begun_with(self) -> int:
        """The version of the checkpoint that it has begun from."""
        return self.run.startup.resumption.version if self.run.startup.resumption is not None else 0


class Newest(NamedTuple):
    """The newest checkpoint of a job."""

    path: str
    begun_at: float
    version: int


class LastSaves:
    """What was trained when, what of it is saved, and how jobs have ended.

    Parameters
    ----------
    simulation
        Whose.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self._simulation = simulation
        self._seen: dict[str, Seen] = {}  # the jobs as they were after the coordinator's last event
        self._begun_at: dict[str, float] = {}  # by path of a checkpoint
        self._kept_at: dict[tuple[str, str], float] = {}  # by path and server: since when it keeps its part
        self._saved: dict[Life, Newest] = {}
        # by server: when it has acknowledged a push last; a worker that stands still takes that later
        self._trained_at: defaultdict[Life, dict[str, float]] = defaultdict(dict)
        self._failed_at: dict[str, float] = {}  # by job: when the coordinator has said last that it is not saved
        self._asked_at: dict[str, float] = {}  # by job, "" for all: when it was to end
        self._ending: Callable[[], None] = lambda: None
        self._ends = False  # all members learn that the cluster ends
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        simulation.on_log.append(self._logged)

    @property
    def is_asked(self) -> bool:
        """Whether the cluster is to end."""
        return "" in self._asked_at

    def begun(self, path: str) -> None:
        """A checkpoint is begun."""
        self._begun_at[path] = self._simulation.now

    def published(self, saved: SavedJob, life: Life) -> None:
        """It is there."""
        self._saved[life] = Newest(saved.path, self._begun_at[saved.path], saved.version)

    def end_at(self, time: float, ending: Callable[[], None]) -> None:
        """Ask the coordinator to end its cluster at some time, as SIGTERM does; ``ending`` is called when it does."""
        self._ending = ending
        self._simulation.at(time, self._ask)

    def _ask(self) -> None:
        simulation, node = self._simulation, self._simulation.nodes.get("coordinator")
        if node is not None and node.alive:
            assert isinstance(node.machine, CoordinatorMachine)
            if node.machine.cluster_end.asked is None:
                self._asked_at[""] = simulation.now
                simulation.event(node, Stop("SIGTERM"))
        if not self._ends and (simulation.coordinator_alive or node is None):
            simulation.at(simulation.now + ASKS_AGAIN_S, self._ask)

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, Ack) and sender.role == "server":
            worker = self._simulation.nodes[receiver]
            if isinstance(worker.machine, SessionKernel) and worker.machine.member.welcome is not None:
                self._trained_at[life_of(worker)][sender.name] = self._simulation.now

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, EndJob):
            self._asked_at[message.job] = self._simulation.now
        elif isinstance(message, Save):
            self._kept_at.setdefault((message.path, receiver.name), self._simulation.now)

    def _logged(self, node: Node, line: Log) -> None:
        if line.kind == "checkpoint failed":
            self._failed_at[line.job] = self._simulation.now
        elif line.kind == "ending" and line.text.startswith("ending: "):
            self._all_end(node)

    def check(self, coordinator: Node) -> None:
        """Assert that jobs that have ended since the last event were saved, or that it says why they are not.

        Of a cluster whose servers are told to end nothing else is saved.
        """
        machine = coordinator.machine
        assert isinstance(machine, CoordinatorMachine)
        for run in machine.runs.values() if machine.ending is not None else ():
            made = machine.checkpoints.status(run, self._simulation.now).get("under_way", {})
            assert made.get("stage", "published") == "published", f"job {run.name!r} is saved although its cluster ends"
        for name, seen in self._seen.items():
            if machine.runs.get(name) is not seen.run and (ended := machine.ended.by_name.get(name)) is not None:
                if ended.how.startswith(LEFT):  # a synchronous one has no step after the one that is saved
                    self._check(seen, self._simulation.now if seen.mode == "sync" else self._unsaved_since(seen.life))
                elif ended.how == ASKED:
                    self._check(seen, self._asked_at[name])
        who = machine.identity.incarnation
        self._seen = {
            name: Seen(run, (who, run.startup.epoch), run.mode, run.steps.clock)
            for name, run in machine.runs.items()
            if run.startup.ready
        }

    def _all_end(self, coordinator: Node) -> None:
        """Assert the same where the coordinator tells all members that the cluster ends."""
        self.check(coordinator)
        assert isinstance(coordinator.machine, CoordinatorMachine)
        if self.is_asked:
            for seen in self._seen.values():
                self._check(seen, self._asked_at[""])
            self._ends = True
            self._ending()

    def _unsaved_since(self, life: Life) -> float:
        """Return when a server has acknowledged a push last that it got after its part was kept."""
        saved = self._saved.get(life, Newest("", NEVER, 0))
        trained = self._trained_at[life].items()
        late = [at for server, at in trained if at > self._kept_at.get((saved.path, server), saved.begun_at)]
        return max(late, default=NEVER)

    def _check(self, seen: Seen, due: float) -> None:
        saved = self._saved.get(seen.life, Newest("", NEVER, seen.begun_with))
        if saved.begun_at < due and not (seen.mode == "sync" and saved.version == seen.clock):
            failed_at = self._failed_at.get(seen.run.name, NEVER)
            assert failed_at >= due, f"job {seen.run.name!r} ends, and is not saved before"
