"""Servers that die one at a time, and what must hold where shards have backups: nothing is lost by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zmqps.core.protocol.messages import Ack, Assign, Committed, Message, Promote, Push, Values
from zmqps.core.server.machine import ServerMachine
from zmqps.errors import JobError
from zmqps.testing.engine import Node

if TYPE_CHECKING:
    from zmqps.testing.cluster import SimulatedCluster


class OneAtATime:
    """Lets a server be lost only when the loss before it is made good, and asserts that no job notices.

    Parameters
    ----------
    simulation
        Which it watches.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self.promotions = 0
        self._cut_until = 0.0
        self._simulation = simulation
        self._shards: dict[tuple[bytes, int], tuple[bytes, int, int]] = {}  # of copies: the job's life, and the shard
        self._generations: dict[tuple[bytes, int], int] = {}  # in which copies were promoted
        self._pushed: dict[tuple[str, bytes, int], int] = {}  # epoch, by server, worker and request
        self._acknowledged: dict[tuple[bytes, int, int], int] = {}  # the newest generation that has, by shard
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)

    def may_lose(self, server: Node) -> bool:
        """Whether all that this server has is elsewhere, too, and nobody else is missing."""
        simulation = self._simulation
        if not simulation.coordinator_alive or (simulation.restarting and not simulation.options.patience):
            return False  # else: as it was when the coordinator died
        machine = simulation.coordinator
        there = {other.incarnation for other in machine.servers}
        alive = {node.identity.incarnation for node in simulation.servers if node.alive}
        if simulation.now < self._cut_until or there != alive or len(there) < machine.options.servers:
            return False
        runs = [run for run in machine.runs.values() if run.startup.placement is not None]
        return all(run.startup.ready and run.replication.settled for run in runs)

    def cut(self, seconds: float) -> None:
        """A server is cut off for so long: it counts as lost until it can be back."""
        self._cut_until = self._simulation.now + seconds + 3 * self._simulation.options.heartbeat_timeout

    def check(self, node: Node) -> None:
        """Assert that no job has failed, unless a worker was lost together with a server."""
        if node.role == "coordinator" and not self._simulation.restarting:
            for run in self._simulation.coordinator.runs.values():
                torn = isinstance(run.lost_shard, JobError)  # by a step whose gradients are lost with a worker
                assert torn or run.lost_shard is None, f"one server at a time was lost, and yet: {run.lost_shard}"

    # --- what travels --------------------------------------------------------------------------

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        life, simulation = sender.identity.incarnation, self._simulation
        if isinstance(message, Assign):
            self._shards[life, message.epoch] = *simulation.life_of_copy(life, message.epoch), message.shard
            self._generations.setdefault((life, message.epoch), -1 if message.backup else 0)
        elif isinstance(message, Promote):
            self.promotions += self._generations.get((life, message.epoch)) != message.generation
            self._generations[life, message.epoch] = message.generation
        elif isinstance(message, (Ack, Values)) and sender.role == "server":
            self._check_acknowledged(sender, receiver, message.request)
        elif isinstance(message, Committed) and sender.role == "server":
            self._check_committed(sender, message)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if (
            isinstance(message, Push) and receiver.role == "server" and not message.attempt
        ):  # of a step: kept till its end
            self._pushed[receiver.name, sender.encode(), message.request] = message.epoch

    def _check_acknowledged(self, server: Node, worker: str, request: int) -> None:
        """Assert that no other copy has been promoted since and has acknowledged a push."""
        epoch = self._pushed.get((server.name, worker.encode(), request))
        coordinator = self._simulation.nodes["coordinator"].identity.incarnation
        shard = self._shards.get((coordinator, epoch or 0))
        if epoch is None or shard is None:
            return
        generation = self._generations[coordinator, epoch]
        newest = self._acknowledged.get(shard, 0)
        assert generation >= newest, f"{server.name} acknowledges a push, and has another primary of shard {shard[2]}"
        self._acknowledged[shard] = max(newest, generation)

    def _check_committed(self, server: Node, message: Committed) -> None:
        """Assert that the backups of a shard have a step that its primary says is over."""
        simulation = self._simulation
        runs = simulation.coordinator.runs.values()
        copies = next((run.startup.copies for run in runs if message.epoch in run.startup.copies.by_epoch), None)
        if copies is None:
            return
        alive = {node.identity.incarnation: node.machine for node in simulation.servers if node.alive}
        for backup in copies.backups(copies.by_epoch[message.epoch].shard):
            machine = alive.get(backup.server.incarnation)
            if not backup.whole or not isinstance(machine, ServerMachine):
                continue
            shard = machine.tenants[backup.epoch].built()
            has = shard.version > message.step
            assert has, f"{server.name} says that step {message.step} is over, and its backup has {shard.version} steps"
