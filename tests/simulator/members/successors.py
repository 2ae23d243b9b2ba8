"""A coordinator that dies and is started again at its address, and what members of the first one learn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from zmqps.core.protocol import exits
from zmqps.core.server.machine import ServerKernel
from zmqps.core.worker.operations import Operation
from zmqps.core.worker.session import SessionKernel
from zmqps.errors import CoordinatorRestartedError, NotJoinedError, PSError, VersionError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: When it dies.
DIES_S = (2.0, 8.0)
#: Somebody may wait for so long once the second one is there: for its next heartbeat, for its answer, and for servers
#: that have ended meanwhile.
MARGIN_S = 7.0


class Successors:
    """Kills the coordinator once, and asserts that its members soon learn that the present one is another.

    Parameters
    ----------
    simulation
        Whose; it starts the coordinator again.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self._simulation = simulation
        self._left_behind: set[str] = set()  # nodes that had joined the first one
        self._again_at: float | None = None  # when the second one was there
        simulation.at(simulation.rng.uniform(*DIES_S), self._die)

    def _die(self) -> None:
        nodes = self._simulation.nodes
        if nodes["coordinator"].alive:
            for node in nodes.values():
                joined = isinstance(node.machine, (ServerKernel, SessionKernel)) and node.machine.member.joined
                if node.alive and joined:
                    self._left_behind.add(node.name)
            self._simulation.kill(nodes["coordinator"])

    def check(self, node: Node) -> None:
        """Assert that no member of the first one waits long for the second one."""
        if not self._left_behind or not self._simulation.nodes["coordinator"].alive:
            return
        now = self._simulation.now
        self._again_at = now if self._again_at is None else self._again_at
        if node.name not in self._left_behind:
            return
        if node.role == "server":
            assert now - self._again_at <= MARGIN_S, f"{node.name} stays although its coordinator is another one"
        for operation in node.pending:
            waits_s = now - max(self._again_at, operation.started_at)
            assert waits_s <= MARGIN_S, f"{node.name} waits for another coordinator than its own: {operation.title}"

    def resolved(self, worker: Node, operation: Operation, value: object) -> None:
        """Assert that a member of the first one learns that there is another one now."""
        machine = worker.machine
        assert isinstance(machine, SessionKernel)
        told = not isinstance(value, NotJoinedError)
        if machine.member.restarted and isinstance(value, PSError):
            told = isinstance(value, (CoordinatorRestartedError, VersionError))
        assert told, f"{worker.name} is not told that its coordinator is another one: {value!r}"

    def check_end(self) -> None:
        """Assert that servers have ended for this reason."""
        for server in self._simulation.servers:
            if server.name in self._left_behind and self._again_at is not None and server.exit is not None:
                told = server.exit.code == exits.COORDINATOR_LOST and "is a new one" in server.exit.reason
                assert told, f"{server.name} does not say that its coordinator is another one: {server.exit}"
