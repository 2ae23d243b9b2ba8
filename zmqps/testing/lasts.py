"""Simulated jobs that end: each is saved once more before, or its coordinator says that it could not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from zmqps.core.coordinator.losses import ASKED, FINISHED
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.run import JobRun
from zmqps.core.protocol.events import Log, Stop
from zmqps.core.protocol.messages import Ack, EndJob, Message
from zmqps.core.worker.session import SessionMachine
from zmqps.testing.engine import Node
from zmqps.testing.stores import SavedJob
from zmqps.testing.training import Life, life_of

if TYPE_CHECKING:
    from zmqps.testing.cluster import SimulatedCluster

NEVER = float("-inf")
#: Who asks a coordinator to end that is away asks again so much later.
ASKS_AGAIN_S = 0.5
#: How jobs end of which everybody has gone before.
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
        self._saved: dict[Life, tuple[float, int]] = {}  # the newest: when it was begun, and its version
        self._trained_at: dict[Life, float] = {}  # when a push was acknowledged last
        self._failed_at: dict[str, float] = {}  # by job: when the coordinator has said last that it is not saved
        self._asked_at: dict[str, float] = {}  # by job, "" for all: when it was to end
        self._ending: Callable[[], None] = lambda: None
        simulation.on_receive.append(self._received)
        simulation.on_log.append(self._logged)

    def begun(self, path: str) -> None:
        """A checkpoint is begun."""
        self._begun_at[path] = self._simulation.now

    def published(self, saved: SavedJob, life: Life) -> None:
        """It is there."""
        self._saved[life] = self._begun_at[saved.path], saved.version

    def end_at(self, time: float, ending: Callable[[], None]) -> None:
        """Ask the coordinator to end its cluster at some time, as SIGTERM does; ``ending`` is called when it does."""
        self._ending = ending
        self._simulation.at(time, self._ask)

    def _ask(self) -> None:
        simulation, node = self._simulation, self._simulation.nodes.get("coordinator")
        if node is not None and node.alive:
            self._asked_at.setdefault("", simulation.now)
            simulation.event(node, Stop("SIGTERM"))
        elif simulation.coordinator_alive or node is None:
            simulation.at(simulation.now + ASKS_AGAIN_S, self._ask)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, EndJob):
            self._asked_at[message.job] = self._simulation.now
        elif isinstance(message, Ack) and isinstance(machine := receiver.machine, SessionMachine):
            if machine.member.welcome is None:
                return
            self._trained_at[life_of(receiver)] = self._simulation.now

    def _logged(self, node: Node, line: Log) -> None:
        if line.kind == "checkpoint failed":
            self._failed_at[line.job] = self._simulation.now
        elif line.kind == "ending" and line.text.startswith("ending: "):
            self._all_end(node)

    def check(self, coordinator: Node) -> None:
        """Assert that jobs that have ended since the last event were saved, or that it says why they are not."""
        machine = coordinator.machine
        assert isinstance(machine, CoordinatorMachine)
        for name, seen in self._seen.items():
            if machine.runs.get(name) is not seen.run and (ended := machine.ended.by_name.get(name)) is not None:
                if ended.how.startswith(LEFT):  # a synchronous one has no step after the one that is saved
                    trained_at = self._trained_at.get(seen.life, NEVER)
                    self._check(seen, self._simulation.now if seen.mode == "sync" else trained_at)
                elif ended.how == ASKED:
                    self._check(seen, self._asked_at[name])
        who = machine.identity.incarnation
        self._seen = {
            name: Seen(run, (who, run.startup.epoch), run.mode, run.steps.clock)
            for name, run in machine.runs.items()
            if run.startup.ready
        }

    def _all_end(self, coordinator: Node) -> None:
        """Assert the same where the coordinator tells everybody that the cluster ends."""
        self.check(coordinator)
        assert isinstance(coordinator.machine, CoordinatorMachine)
        if "" in self._asked_at:
            for seen in self._seen.values():
                self._check(seen, self._asked_at[""])
            self._ending()

    def _check(self, seen: Seen, due: float) -> None:
        begun_at, version = self._saved.get(seen.life, (NEVER, seen.begun_with))
        if begun_at < due and not (seen.mode == "sync" and version == seen.clock):
            failed_at = self._failed_at.get(seen.run.name, NEVER)
            assert failed_at >= due, f"job {seen.run.name!r} ends, and is not saved before"
