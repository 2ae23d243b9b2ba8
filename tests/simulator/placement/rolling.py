"""Servers that are asked to go while jobs are trained, others that come in their place, and what must hold then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from zmqps.core.protocol.events import Exit, Stop
from zmqps.core.server.machine import ServerKernel

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.network import Faults

#: Seconds that a server may take to hand over what it has: more than any run takes.
GRACE_S = 1e6
#: Where no node is lost it takes no longer; where messages are lost with their connections, a coordinator is away, or
#: checkpoints are made one after the other, in which nothing moves.
LONGEST_S, LONGEST_OF_ALL_S = 12.0, 60.0
#: The same where shards are cut anew, which waits for a step to end before, and again after.
WHILE_SCALED_S = 30.0
#: How long it takes until another server is started.
AGAIN_S = 0.5, 5.0


class Rolling:
    """Asks one server after the other to go.

    Parameters
    ----------
    simulation
        Whose servers.
    faults
        What else goes wrong.
    again
        Starts another server, unless all is over.
    saved
        Whether checkpoints are made meanwhile.
    """

    def __init__(
        self, simulation: SimulatedCluster, faults: Faults, again: Callable[[], object], *, saved: bool = False
    ) -> None:
        self.num_drained = 0
        self._simulation = simulation
        self._faults = faults
        self._again = again
        self._saved = saved
        self._asked: dict[str, float] = {}  # when, by name

    def ask(self) -> None:
        """Ask some server to go, if another one stays; as SIGTERM does."""
        simulation = self._simulation
        if "coordinator" not in simulation.nodes or not simulation.nodes["coordinator"].alive:
            return
        there = {server.incarnation for server in simulation.coordinator.servers.staying}
        alive = [node for node in simulation.servers if node.alive and node.name not in self._asked]
        alive = [node for node in alive if simulation.now >= node.stopped_until]
        alive = [node for node in alive if node.identity.incarnation in there and _has_joined(node)]
        if len(alive) < 2 or simulation.coordinator.scales.wanted == 1:
            return
        node = simulation.rng.choice(alive)
        self._asked[node.name] = simulation.now
        simulation.note(node.name, "is asked to go")
        simulation.event(node, Stop("SIGTERM", GRACE_S))

    def ended(self, node: Node) -> None:
        """A server has gone: of those that were asked to, each has handed over all, unless the cluster ends."""
        if node.name not in self._asked or not isinstance(node.exit, Exit):
            return
        simulation = self._simulation
        self.num_drained += node.exit.done
        ending = not simulation.coordinator_alive or simulation.coordinator.ending is not None
        assert node.exit.done or ending or self._faults.may_lose, f"{node.name} was asked to go, and has not drained"
        if not ending:
            pause = simulation.rng.uniform(*AGAIN_S)
            simulation.at(simulation.now + pause, self._again)

    def check(self) -> None:
        """Assert that no job has lost anything by it."""
        simulation, faults = self._simulation, self._faults
        impatient = simulation.options.replicas and faults.loss  # a server is lost before its connection is back
        if not (faults.server_crash or faults.partition or faults.coordinator_crash or faults.freeze or impatient):
            assert not simulation.job_failed, "servers were asked to go, and a job has lost a shard"
        if not faults.may_lose and simulation.coordinator.cluster_end.asked is None:
            rough = faults.loss or faults.drop or simulation.options.patience or self._saved
            before = simulation.now - (LONGEST_OF_ALL_S if rough else WHILE_SCALED_S if faults.scale else LONGEST_S)
            late = [name for name, at in self._asked.items() if simulation.nodes[name].alive and at < before]
            assert not late, f"{late[0]} was asked to go at {self._asked[late[0]]:.1f}, and is still there"


def _has_joined(server: Node) -> bool:
    """Whether a server knows that it has."""
    return isinstance(server.machine, ServerKernel) and server.machine.member.joined
