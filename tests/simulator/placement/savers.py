"""Simulated clusters that are saved while they train: requests for checkpoints, what goes wrong, and what must hold."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.training import Life, Training
from tests.simulator.members.attackers import PLANTED
from tests.simulator.placement.lasts import LastSaves
from tests.simulator.placement.stores import Disk, SavedJob
from zmqps.core.coordinator.saving.checkpoints import HOLD_S
from zmqps.core.protocol.events import Log
from zmqps.core.protocol.messages import Assign, Checkpointed, Hold, Holding, Message, Save, Saved, Unsave
from zmqps.core.worker.operations import Exchange, SavedCheckpoint, SaveJob
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfers import PAUSE_S
from zmqps.errors import PSError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: What a checkpoint is made of.
MESSAGES = (Save, Saved, Unsave, Hold, Holding, Checkpointed)
#: Probability that a worker asks for a checkpoint before it reads or pushes.
ASKS = 0.04
#: … and once the cluster is to end, as scripts do that hear of it: some wait behind the last checkpoint then.
ASKS_AT_END = 0.5
#: Requests wait for so long.
ASKED_S = 30.0
#: Rounding of times.
EPSILON_S = 1e-6
#: A worker is paused for no longer, whatever is lost: it may be asked for once more just before it goes on by itself.
#: A coordinator that comes back asks anew, for checkpoints of its own.
LONGEST_PAUSE_S = 2 * PAUSE_S


class Savers:
    """Lets workers ask for checkpoints, breaks what makes them, and looks at each that is published.

    Parameters
    ----------
    simulation
        Whose.
    training
        What must hold of them.
    disk
        Where they are.
    crash
        Probability that a node dies as it sends or takes a message of a checkpoint.
    training
        What is trained.
    """

    def __init__(self, simulation: SimulatedCluster, disk: Disk, crash: float, training: Training) -> None:
        self._simulation = simulation
        self._training = training
        self._disk = disk
        self._crash = crash
        self._lives: dict[str, Life] = {}  # by path: of the job that is saved there
        self._paused_at: dict[str, tuple[float, int]] = {}
        self._held_at: dict[tuple[object, int], float] = {}  # by coordinator and checkpoint: when workers were to pause
        self._let_go: list[float] = []  # for how long they were waited for that may go on, in the event under way
        self._gives_up = False  # in that event, because they did not pause in time
        self.lasts = LastSaves(simulation)
        disk.on_publish = self._published
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        simulation.on_log.append(self._logged)

    def program(self, worker: Node, program: Program) -> Program:
        """Let a worker ask for checkpoints now and then."""
        rng, value = self._simulation.rng, None
        ask = partial(next, program)
        while True:
            try:
                item = ask()
            except StopIteration:
                return
            asks = ASKS_AT_END if self.lasts.is_asked else ASKS
            if isinstance(item, tuple) and isinstance(item[0], Exchange) and rng.random() < asks:
                yield from self._save(worker)
            try:
                value = yield item
            except Exception as error:
                ask = partial(program.throw, error)
            else:
                ask = partial(program.send, value)

    def _save(self, worker: Node) -> Program:
        state = {"saved by": worker.name}
        consistent = self._simulation.rng.random() < 0.7
        try:
            made: SavedCheckpoint = yield SaveJob(0.0, consistent=consistent, state=state), ASKED_S
        except PSError:
            return
        saved = next((saved for saved in self._disk.published if saved.path == made.path), None)
        assert saved is not None, f"{worker.name} is told of a checkpoint that is not there: {made.path}"
        assert saved.manifest["state"] == state, f"{worker.name} finds another's state: {saved.manifest['state']}"
        assert saved.version == made.version, f"{worker.name} is told of version {made.version}, not {saved.version}"

    # --- what goes wrong ----------------------------------------------------------------------

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, Save):
            first = message.path not in self._lives
            ours = self._simulation.life_of_copy(sender.identity.incarnation, message.epoch)
            life = self._lives.setdefault(message.path, ours)
            assert life == ours, "two jobs are saved to one place"
            if first:
                self.lasts.begun(message.path)
                self._training.saving(self._simulation, message.path, life)
        elif isinstance(message, Assign) and message.restore and not self._goes_back(message):
            saved = next(saved for saved in self._disk.published if saved.path == message.restore["path"])
            life = self._simulation.life_of_copy(sender.identity.incarnation, message.epoch)
            self._training.resume(life, saved)
        if isinstance(message, Hold | Save) and sender.role == "coordinator":
            now = self._simulation.time_of(sender)
            held_at = self._held_at.setdefault((sender.machine, message.number), now)
            self._let_go += [now - held_at] if isinstance(message, Hold) and message.ends else []
        self._perhaps(sender, message)

    def _goes_back(self, message: Assign) -> bool:
        """Whether a copy is one of a job that is under way already."""
        run = self._simulation.coordinator.runs.get(message.name)
        # where its job has ended in the same breath nothing begins, also if another one did
        return run is None or run.startup.ready or message.epoch < run.startup.epoch

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        self._perhaps(receiver, message)

    def _perhaps(self, node: Node, message: Message) -> None:
        if isinstance(message, MESSAGES) and self._simulation.network.happens(self._crash):
            self._simulation.kill(node)

    # --- what must hold -----------------------------------------------------------------------

    def _published(self, saved: SavedJob) -> None:
        assert PLANTED not in saved.manifest["state"], "an observer has planted a checkpoint"
        self.lasts.published(saved, self._lives[saved.path])
        self._training.check_saved(self._simulation, saved, self._lives[saved.path])

    def check(self, node: Node) -> None:
        """Assert that no worker stays paused, and that no job ends unsaved."""
        if node.role == "coordinator":
            self._check_let_go()
            self.lasts.check(node)
            return
        if not isinstance(node.machine, SessionKernel) or node.machine.transfers.pace.paused is None:
            self._paused_at.pop(node.name, None)
            return
        now, life = (
            self._simulation.time_of(node),
            node.machine.transfers.pace.paused.number >> 32,
        )  # of the coordinator
        if self._paused_at.get(node.name, (now, -1))[1] != life:
            self._paused_at[node.name] = now, life
        paused_at = max(self._paused_at[node.name][0], self._simulation.woke_at(node))
        assert now - paused_at <= LONGEST_PAUSE_S, f"{node.name} stays paused for a checkpoint"

    def _logged(self, node: Node, line: Log) -> None:
        self._gives_up |= "did not pause for it in" in line.text

    def _check_let_go(self) -> None:
        """Assert that workers that have not paused were waited for, by a coordinator that was awake."""
        if self._gives_up and self._let_go:
            waited_s, hold_s = max(self._let_go), min(HOLD_S, self._simulation.options.heartbeat_timeout)
            text = f"a checkpoint for which workers were to pause is given up after {waited_s:.1f} s of {hold_s:g}"
            assert waited_s >= hold_s - EPSILON_S, f"{text}: it is judged by the coordinator's sleep"
        self._gives_up, self._let_go = False, []

    def check_end(self) -> None:
        """Assert that all cuts were cuts, now that it is known what became of the pushes."""
        for saved in self._disk.published:
            if saved.path in self._lives:
                self._training.check_cut(self._simulation, saved, self._lives[saved.path])
