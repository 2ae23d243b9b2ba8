"""Listens to what is said of members that have gone, and asserts that servers keep and take nothing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from tests.simulator.network import Connection
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.protocol import exits
from zmqps.core.protocol.messages import Ack, Assign, Commit, Departed, Forgotten, Job, Message, Proceed, Values
from zmqps.core.server.machine import ServerKernel

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: A server has forgotten a gone member so long after it can hear of it: it is told every second.
FORGETTING_S = 3.0


class Departures:
    """The members that have gone, the servers told of it, and those that have confirmed it.

    Parameters
    ----------
    simulation
        Which it listens to.
    loss
        Probability that the connection breaks over which a server is about to be told.
    calm_s
        When nothing goes wrong any more.
    """

    def __init__(self, simulation: SimulatedCluster, loss: float, calm_s: float) -> None:
        self._simulation = simulation
        self._loss = loss
        self._calm_s = calm_s
        self._told: dict[str, dict[bytes, float]] = {}  # server -> gone member -> when it was told first
        self._forgotten: set[tuple[str, bytes]] = set()
        self._begun: dict[bytes, int] = {}  # workers that train, and the epoch of their job
        self._reached: dict[bytes, int] = {}  # members that can reach the servers, and the epoch of their job
        self._assigned: dict[tuple[str, int], float] = {}  # when a server was given a copy of a shard
        simulation.on_send.append(self._sent)

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        if isinstance(message, Job):
            who = self._simulation.nodes[receiver].identity.incarnation
            self._reached[who] = message.epoch
            if not message.load:
                self._begun[who] = message.epoch
        elif isinstance(message, Assign):
            self._assigned.setdefault((receiver, message.epoch), self._simulation.time_of(sender))
        elif isinstance(message, Departed):
            self._told.setdefault(receiver, {}).setdefault(message.incarnation, self._simulation.now)
            network = self._simulation.network
            if network.happens(self._loss):
                network.reset(self._connection(sender, receiver), self._simulation.now)
        elif isinstance(message, Forgotten):
            self._forgotten.add((sender.name, message.incarnation))
        elif isinstance(message, (Ack, Values)):
            who = self._simulation.nodes[receiver].identity.incarnation
            assert (sender.name, who) not in self._forgotten, f"{sender.name} serves {receiver}, which it has forgotten"
        elif isinstance(message, (Commit, Proceed)):
            self._check_order(sender, [receiver] if isinstance(message, Commit) else list(self._told))

    def _check_order(self, coordinator: Node, servers: list[str]) -> None:
        """Assert that servers are told of whom a step has not waited for before that is said to be complete."""
        machine = coordinator.machine
        assert isinstance(machine, CoordinatorMachine)
        if self._simulation.many_go or machine.ending is not None:  # then servers may have gone
            return
        epochs = {run.startup.epoch: run for run in machine.runs.values()}
        for departure in machine.membership.gone:
            who = departure.member.incarnation
            run = epochs.get(self._reached.get(who, 0))
            copies = [] if run is None else [c for c in run.startup.copies if not c.server.absent]  # when they return
            names = [(copy.server.hello.name, copy.epoch) for copy in copies]
            assigned = {name: self._assigned.get((name, epoch), departure.at) for name, epoch in names}
            there = [name for name, at in assigned.items() if at < departure.at]  # others need not be
            for name in {*servers} & {*there}:
                assert who in self._told.get(name, {}), f"{name} is not told of {departure.member.title} before a step"

    def check(self, server: Node) -> None:
        """Assert that a server that could long have heard of a gone member keeps nothing of it."""
        machine, simulation = server.machine, self._simulation
        told = self._told.get(server.name)
        if told is None or not isinstance(machine, ServerKernel) or not simulation.coordinator_alive:
            return
        coordinator = simulation.nodes["coordinator"]
        if server.identity.incarnation not in simulation.coordinator.membership.members or not coordinator.alive:
            return
        connection = self._connection(coordinator, server.name)
        since = max(self._calm_s, server.stopped_until, coordinator.stopped_until)
        since = max(since, connection.up_at, *connection.blocked_until) + FORGETTING_S
        for who in machine.clients.by_incarnation.keys() & told.keys():
            assert simulation.now < max(since, told[who] + FORGETTING_S), f"{server.name} keeps a client that has gone"

    def check_end(self) -> None:
        """Assert that a cluster that was there for one job ends well only if no worker was lost that did not return."""
        node = self._simulation.nodes["coordinator"]
        if node.exit is None or not node.exit.reason.startswith("the job is finished"):
            return
        hows: dict[str, set[str]] = {}  # by name: one that was restarted may finish before its first life is lost
        epochs = {job.epoch for job in self._simulation.coordinator.ended.by_name.values()}
        for departure in self._simulation.coordinator.membership.gone:
            if self._begun.get(departure.member.incarnation) in epochs:
                hows.setdefault(departure.member.hello.name, set()).add(departure.how)
        gone = self._simulation.coordinator.membership.gone
        replaced = {d.member.rank for d in gone if d.how == "finished" and d.member.role == "worker"}
        ranks = {d.member.hello.name: d.member.rank for d in gone if d.how == "lost"}
        lost = [name for name, how in hows.items() if how == {"lost"} and ranks[name] not in replaced]
        assert not lost or node.exit.code == exits.WORKERS_FAILED, f"{lost} were lost, and the cluster ends well"

    def _connection(self, coordinator: Node, server: str) -> Connection:
        return next(c for c in coordinator.connections.values() if c.ends[0] == server)
