"""A coordinator that dies for good, and what must become of nodes that wait for it, or begin to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.engine import Node, Program
from zmqps.core.worker.operations import AskStatus, EnterBarrier, Exchange, Finish, Operation, StartJob
from zmqps.core.worker.ranges import TakeRange
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import PullTransfer, Target, plan
from zmqps.errors import PeerLostError, PSError, VersionError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: When it dies.
DIES_S = (5.0, 20.0)
#: Within so many seconds a server may die, too: before it notices, and so without a word.
SERVER_DIES_S = 12.0
#: Beyond the heartbeat timeout a node may wait for so long: to notice, and for servers that have ended themselves.
MARGIN_S = 7.0
#: Requests that are not awaited.
FOREVER_S = 1000.0


class Orphans:
    """Kills the coordinator, sometimes a server after it, and asserts that no node waits in vain for long.

    Parameters
    ----------
    simulation
        Whose.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self._simulation = simulation
        self._died_at = float("inf")
        self._lost_at: dict[str, float] = {}  # when a worker has noticed
        rng = simulation.rng
        dies_at = rng.uniform(*DIES_S)
        simulation.at(dies_at, self._die)
        if rng.random() < 0.5:
            simulation.at(dies_at + rng.uniform(0.0, SERVER_DIES_S), self._server_dies)

    def _die(self) -> None:
        self._simulation.kill(self._simulation.nodes["coordinator"])
        self._died_at = self._simulation.now

    def _server_dies(self) -> None:
        if alive := [server for server in self._simulation.servers if server.alive]:
            self._simulation.kill(self._simulation.rng.choice(alive))

    def program(self, worker: Node, program: Program) -> Program:
        """Let a worker ask for more of all kinds once it has been told of the loss."""
        try:
            yield from program
        except PeerLostError:
            for operation in self._all_kinds(worker):
                try:
                    yield operation, FOREVER_S
                except PeerLostError:
                    continue
            yield Finish(0.0), FOREVER_S

    def _all_kinds(self, worker: Node) -> Iterator[Operation]:
        machine = worker.machine
        assert isinstance(machine, SessionKernel)
        yield EnterBarrier(0.0, barrier="orphans")
        yield AskStatus(0.0)
        yield StartJob(0.0)
        if machine.attached is not None:
            cargoes = plan(machine.attached.placement)
            for ahead in (1, 0):
                out = [np.empty(p.size, p.storage_dtype) for p in machine.attached.job.parameters]
                version = machine.transfers.pace.version + ahead
                yield Exchange(pull=PullTransfer(cargoes=cargoes, target=Target(arrays=out), version=version))

    def check(self, worker: Node) -> None:
        """Assert that no node waits much longer than it takes to notice the death."""
        simulation, machine = self._simulation, worker.machine
        assert isinstance(machine, SessionKernel)
        if machine.member.lost:
            self._lost_at.setdefault(worker.name, simulation.now)
        noticed_at = self._died_at + simulation.options.heartbeat_timeout
        for operation in worker.pending:
            waits_s = simulation.now - max(noticed_at, operation.started_at)
            unheard = machine.member.welcome is None  # it waits for a coordinator that was never there
            assert unheard or waits_s <= MARGIN_S, f"{worker.name} waits for the dead: {operation.title}"

    def resolved(self, worker: Node, operation: Operation, value: object) -> None:
        """Assert that a waiting node learns what it waited for in vain; and at once, if that is known already."""
        machine = worker.machine
        assert isinstance(machine, SessionKernel)
        if isinstance(value, PeerLostError):
            assert value.role == "coordinator", f"{worker.name} is told that {value.name} is lost"
        if machine.member.lost and isinstance(value, PSError):
            told = isinstance(value, (PeerLostError, VersionError))
            assert told, f"{worker.name} is not told for whom it has waited in vain: {value!r}"
        if operation.started_at > self._lost_at.get(worker.name, float("inf")):
            at_once = operation.started_at == self._simulation.now or not _needs_coordinator(machine, operation)
            assert at_once, f"{worker.name} has waited for the dead: {operation.title}"


def _needs_coordinator(machine: SessionKernel, operation: Operation) -> bool:
    if not isinstance(operation, Exchange):
        return isinstance(operation, (AskStatus, EnterBarrier, StartJob, TakeRange))
    pace, pull = machine.transfers.pace, operation.pull
    return pace.mode == "sync" and pull is not None and pull.version > pace.version
