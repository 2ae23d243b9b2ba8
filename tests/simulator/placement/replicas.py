"""Servers that are lost where shards have backups: at any moment, but never the last one that has what was trained."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.simulator.engine import Node, as_kept
from tests.simulator.network import RECONNECT_S, Connection
from zmqps.core.coordinator.journal import key_of
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.copies import Order
from zmqps.core.coordinator.remembered import dump_all
from zmqps.core.protocol import messages as m
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.machine import ServerKernel
from zmqps.errors import JobError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: What is said of copies, and what must be in them: any of these may be the last that a server hears or says.
MESSAGES = (
    m.Assign, m.Ready, m.Lead, m.Leading, m.Replicate, m.Replicated, m.View,
    m.Followed, m.Commit, m.Committed, m.Save, m.Saved, m.Yield, m.Yielded,
)  # fmt: skip
#: A server that could not be heard is there again so many heartbeat timeouts after that, or known to be lost.
DOUBT = 3.0


def replicated(options: CoordinatorOptions, replicas: int) -> CoordinatorOptions:
    """Return what a coordinator is told that keeps so many backups, and soon notices that a server is lost."""
    if not replicas:
        return options
    return replace(options, replicas=replicas, heartbeat_interval=0.5, heartbeat_timeout=2.0)


class LostServers:
    """Lets a server be lost whenever others have all that it has, and asserts that no job notices.

    Parameters
    ----------
    simulation
        Whose servers.
    copying
        Probability that a server dies as it sends or takes a message about copies.
    """

    def __init__(self, simulation: SimulatedCluster, copying: float) -> None:
        self.promotions = 0
        self._simulation = simulation
        self._copying = copying
        self._absent: dict[str, float] = {}  # servers that may be presumed lost, until when
        self._deaf: dict[str, float] = {}  # whose heartbeats are lost, until when
        self._promoted: set[tuple[bytes, int, int]] = set()
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        simulation.swallows.append(self._swallows)
        simulation.network.may_break = self._may_break

    def may_lose(self, server: Node) -> bool:
        """Whether the coordinator knows another place of all that this server has, which is there to be heard."""
        simulation = self._simulation
        if not simulation.coordinator_alive or (simulation.restarting and not simulation.options.patience):
            return False
        if simulation.restarting and not self._is_written():
            return False  # it comes back as it was before; else as it was when it died
        there = {
            node.identity.incarnation
            for node in simulation.servers
            if node.alive and node is not server and not self._is_absent(node)
        }
        runs = simulation.coordinator.runs.values()
        is_placed = bool(runs) and all(len(run.startup.copies) > 0 for run in runs)
        if not is_placed and any(node is not server and self._is_absent(node) for node in simulation.servers):
            return False  # a job may begin on both
        servers = simulation.coordinator.servers
        asked = {node.identity.incarnation for node in simulation.servers if _is_leaving(node)}
        staying = [other for other in servers.staying if other.incarnation not in asked]  # its word may be on its way
        if len(staying) < len(servers) and not any(other.incarnation in there for other in staying):
            return False  # where no server stays, drained ones end at once with all that they have
        for run in runs:
            copies = list(run.startup.copies)
            shards = {copy.shard for copy in copies if copy.server.incarnation == server.identity.incarnation}
            if copies and not run.startup.ready:
                return False
            kept = {copy.shard for copy in copies if copy.whole and copy.server.incarnation in there}
            for copy in copies:
                if copy.server.incarnation == server.identity.incarnation and copy.order is Order.PROMOTE:
                    # if it has taken over, and its word of that is on its way, the others count no more
                    assert isinstance(server.machine, ServerKernel)
                    tenant = server.machine.tenants.get(copy.epoch)
                    kept -= {copy.shard} if tenant is not None and not tenant.follows else set()
            if not shards <= kept:
                return False
        return True

    def _is_absent(self, server: Node) -> bool:
        """Whether some node may not hear a server now."""
        return self._absent.get(server.name, 0.0) > self._simulation.now

    def _is_written(self) -> bool:
        """Whether the journal has all that the coordinator knew when it died."""
        found = dump_all(self._simulation.coordinator).items()
        return {key_of(*key): as_kept(data) for key, data in found} == self._simulation.journals["coordinator"]

    def absent(self, server: Node, seconds: float) -> None:
        """Some node does not hear a server for so long: it counts as lost until it can be back."""
        until = self._simulation.now + seconds + DOUBT * self._simulation.options.heartbeat_timeout
        self._absent[server.name] = max(self._absent.get(server.name, 0.0), until)

    def deafen(self, server: Node, seconds: float) -> None:
        """The heartbeats of a server are lost for so long, and nothing else is."""
        self._deaf[server.name] = self._simulation.now + seconds
        self.absent(server, seconds)

    def _may_break(self, connection: Connection) -> bool:
        """Whether it does no harm if this connection is away for so long that a server is presumed lost."""
        opener = self._simulation.nodes[connection.ends[0]]
        if not connection.control or opener.role != "server":
            return True
        may = self.may_lose(opener)
        if may:
            self.absent(opener, RECONNECT_S[1])
        return may

    def check(self, node: Node) -> None:
        """Assert that no job has failed, unless a worker was lost together with a server."""
        if node.role == "coordinator" and not self._simulation.restarting:
            for run in self._simulation.coordinator.runs.values():
                torn = isinstance(run.lost_shard, JobError)  # by a step whose gradients are lost with a worker
                assert torn or run.lost_shard is None, f"all was on two servers, and yet: {run.lost_shard}"

    # --- what travels --------------------------------------------------------------------------

    def _sent(self, sender: Node, receiver: str, message: m.Message) -> None:
        if isinstance(message, m.Lead) and "rows" not in message.backups:
            promoted = sender.identity.incarnation, message.epoch, message.generation
            self.promotions += promoted not in self._promoted
            self._promoted.add(promoted)
        self._perhaps(sender, message)

    def _received(self, receiver: Node, sender: str, message: m.Message) -> None:
        self._perhaps(receiver, message)

    def _perhaps(self, node: Node, message: m.Message) -> None:
        if node.role == "server" and isinstance(message, MESSAGES) and self._simulation.network.happens(self._copying):
            if self.may_lose(node):
                self._simulation.kill(node)

    def _swallows(self, sender: Node, receiver: str, message: m.Message) -> bool:
        deaf = self._simulation.now < self._deaf.get(sender.name, 0.0) and not self._simulation.network.quiet
        return deaf and receiver == "coordinator" and isinstance(message, m.Heartbeat)


def _is_leaving(server: Node) -> bool:
    """Whether a server has been asked to go, which the coordinator may not know yet."""
    return isinstance(server.machine, ServerMachine) and server.machine.leaving.due is not None
