"""The nodes of a simulated cluster, and what can be asked about them."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from random import Random

from tests.simulator.engine import Engine, Node
from tests.simulator.members.chiefs import Chiefs
from tests.simulator.network import Network
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol.messages import Assign, Lead, Message, View
from zmqps.core.server.machine import ServerKernel


def token_of(incarnation: bytes) -> bytes:
    """Return the secret token that a supervisor has given a node."""
    return incarnation[::-1]


class SimulatedCluster(Engine):
    """A coordinator, servers and workers in one `Engine`.

    Parameters
    ----------
    rng, network, message_s
        As for `Engine`.
    options
        The coordinator's.
    workers
        How many are to come.
    """

    def __init__(
        self, rng: Random, network: Network, message_s: float, options: CoordinatorOptions, workers: int
    ) -> None:
        super().__init__(rng, network, message_s)
        self.options = options
        self.restarting = False  # the coordinator is dead and will be started again
        self.workers_to_come = workers
        self.copies_move = options.replicas > 0  # or where servers are drained, or shards are loaded from checkpoints
        self.num_started = 0  # workers
        self._jobs_of_copies: dict[tuple[bytes, int], int] = {}  # by incarnation of the coordinator and epoch
        self._tracks: dict[tuple[bytes, int], int] = {}  # the same; how often the job's steps had gone back
        self.num_back: Counter[tuple[bytes, int]] = Counter()  # by life of the job: how often they have
        self._live: dict[tuple[bytes, int], set[int]] = {}  # by life of the job: the last copies it had
        self.on_send.append(self._note_copy)
        self._chiefs = Chiefs(self)

    def _note_copy(self, sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, Assign):
            machine, name, who = self.coordinator, message.name, sender.identity.incarnation
            run, ended = machine.runs.get(name), machine.ended.by_name.get(name)
            now = self.time_of(sender)
            if run is None or (ended is not None and ended.at == now and message.epoch < run.startup.epoch):
                run = None  # it has ended in the same breath, and another may have begun
            job = run.startup.epoch if run is not None else machine.ended.by_name[name].epoch
            self._jobs_of_copies[who, message.epoch] = job
            back = self.num_back[who, job]
            if run is not None and run.mode == "sync":  # which has perhaps gone back in the same breath
                back = run.fallback.times + run.fallback.active
            self._tracks.setdefault((who, message.epoch), back)
        elif isinstance(message, (Lead, View)) and self.copies_move:
            self.note_copies()  # it may die before it is looked at again

    def note_copies(self) -> None:
        """Note which copies of shards there are, as the coordinator sees it: what was acknowledged must be in them."""
        machine = self.coordinator
        for run in machine.runs.values():
            copies = {copy.epoch for copy in run.startup.copies if copy.whole or not copy.backup}
            self._live[machine.identity.incarnation, run.startup.epoch] = copies

    def is_live(self, server: Node, epoch: int) -> bool:
        """Whether a copy of a shard counts: it was not replaced, and its server not given up, before its job ended."""
        if not self.copies_move:
            return True
        machine = server.machine
        assert isinstance(machine, ServerKernel)
        assert machine.member.welcome is not None
        return epoch in self._live.get(self.life_of_copy(machine.member.welcome.incarnation, epoch), ())

    def life_of_copy(self, coordinator: bytes, epoch: int) -> tuple[bytes, int]:
        """Return the life of the job that has the copy of a shard of this number: its coordinator, and its epoch."""
        return coordinator, self._jobs_of_copies.get((coordinator, epoch), 0)

    def track_of_copy(self, coordinator: bytes, epoch: int) -> int:
        """Return how often the steps of a job had gone back to a checkpoint for the copy of a shard of this number."""
        return self._tracks.get((coordinator, epoch), 0)

    @property
    def many_go(self) -> bool:
        """Whether several members go at this moment: what is said between them is said of a state that is over."""
        gone, now = self.coordinator.membership.gone, self.time_of(self.nodes["coordinator"])
        return sum(departure.at == now for departure in islice(reversed(gone), 8)) > 1

    def partition(self, node: Node, seconds: float) -> None:
        """Cut a node off from all others for some time."""
        self.note(node.name, f"is cut off for {seconds:.3f} s")
        self.network.partition([node.name], seconds, self.now)

    @property
    def num_workers(self) -> int:
        """How many workers there were or are to come."""
        return self.num_started + self.workers_to_come

    @property
    def coordinator_alive(self) -> bool:
        """Whether there is anything left to join, or will be."""
        return self.restarting or ("coordinator" in self.nodes and self.nodes["coordinator"].alive)

    @property
    def coordinator(self) -> CoordinatorMachine:
        """The machine of the coordinator, dead or alive."""
        machine = self.nodes["coordinator"].machine
        assert isinstance(machine, CoordinatorMachine)
        return machine

    @property
    def job_failed(self) -> bool:
        """Whether a job has lost a shard: it can be trained no more."""
        runs = self.coordinator.runs.values() if "coordinator" in self.nodes and not self.restarting else ()
        return any(run.lost_shard is not None for run in runs)

    @property
    def workers(self) -> list[Node]:
        """All workers there were, dead ones included."""
        return [node for node in self.nodes.values() if node.role == "worker"]

    @property
    def servers(self) -> list[Node]:
        """All servers there were."""
        return [node for node in self.nodes.values() if node.role == "server"]
