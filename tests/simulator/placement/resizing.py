"""Clusters that are to have more or fewer servers while jobs are trained, and what must hold then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulator.network import Faults
from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Scale
from zmqps.core.protocol.security.guard import proved

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: The operator, over a connection of its own; what it is answered goes nowhere, so it asks again.
OPERATOR = b"operator"
AGAIN_S = 1.0
#: So many servers at most.
MOST = 4
#: Where no node is lost it takes no longer: as long as several steps, because a move waits for one to end.
LONGEST_S = 45.0


class Resizing:
    """Asks for another number of servers again and again, one number at a time.

    Parameters
    ----------
    simulation
        Whose servers.
    faults
        What else goes wrong.
    another
        Starts one more server.
    end_key
        What shows that the operator may ask.
    """

    def __init__(
        self, simulation: SimulatedCluster, faults: Faults, another: Callable[[], object], end_key: bytes
    ) -> None:
        self.num_done = 0
        self._simulation = simulation
        self._faults = faults
        self._another = another
        self._end_key = end_key
        self._wanted = 0
        self._nonce = b""
        self._asked_at: float | None = None  # since when what was asked for is not done

    def ask(self) -> None:
        """Ask for some number of servers, unless one that was asked for is not there yet."""
        simulation = self._simulation
        if self._asked_at is not None or not self._alive:
            return
        least = simulation.coordinator.options.replicas + 1
        self._wanted, self._nonce = simulation.rng.randint(least, MOST), simulation.rng.randbytes(16)
        self._asked_at = simulation.now
        there = len(simulation.coordinator.servers.staying)
        simulation.note("the operator", f"wants {self._wanted} servers, of {there}")
        for _ in range(self._wanted - there):
            self._another()
        self._insist()

    @property
    def _alive(self) -> bool:
        nodes = self._simulation.nodes
        return "coordinator" in nodes and nodes["coordinator"].alive

    def _insist(self) -> None:
        simulation = self._simulation
        if self._asked_at is None or not simulation.coordinator_alive:
            return
        if self._alive and len(simulation.coordinator.servers.staying) >= self._wanted:
            message = proved(self._end_key, Scale(1, self._wanted, self._nonce))
            simulation.event(simulation.nodes["coordinator"], Received(OPERATOR, message))
        simulation.at(simulation.now + AGAIN_S, self._insist)

    def check(self) -> None:
        """Assert that jobs lie as was asked for once that is said, and that nothing is lost by it."""
        simulation, faults = self._simulation, self._faults
        scales = simulation.coordinator.scales
        if self._asked_at is not None and (ended := scales.ended(self._nonce)) is not None:
            self._asked_at = None
            if isinstance(ended, str):
                self.num_done += 1
                self._check_where()
        if not (faults.server_crash or faults.partition or faults.coordinator_crash or faults.freeze):
            assert not simulation.job_failed, "another number of servers was asked for, and a job has lost a shard"
        if not faults.may_lose and not faults.drain and self._asked_at is not None and not simulation.network.quiet:
            late = simulation.coordinator.ending is None and simulation.now > self._asked_at + LONGEST_S
            assert not late, f"{self._wanted} servers were asked for {LONGEST_S:g} s ago, and jobs do not lie there yet"

    def _check_where(self) -> None:
        for run in self._simulation.coordinator.runs.values():
            placement = run.startup.placement
            if placement is None or not run.is_whole or run.startup.copies.coming:
                continue
            wanted = Placement.balance(placement.keyspace, self._wanted, placement.slice_nbytes)
            assert placement.cuts == wanted.cuts, f"{self._wanted} servers are there, and a job is not cut for them"
            there = [server.incarnation for _, _, server in run.startup.leaders()]
            assert len(set(there)) == self._wanted, "a server has several shards of one job"
