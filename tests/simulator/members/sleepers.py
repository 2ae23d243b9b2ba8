"""Nodes that stand still, and what those may make of it that judge them by their silence, or were asleep themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from tests.simulator.network import RECONNECT_S, Faults
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.membership import RETURN_S
from zmqps.core.coordinator.run import JobRun
from zmqps.core.node.awake import LOOK_S, SLACK_S
from zmqps.core.protocol.messages import Hello, Message
from zmqps.core.server.machine import ServerKernel
from zmqps.core.worker.connections.link import SHORT_S
from zmqps.core.worker.operations import Exchange, Operation
from zmqps.core.worker.session import SessionKernel
from zmqps.errors import ServerMemoryError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: So much of a silence, in seconds, may be that of messages on their way, or of a node that has much to do.
LATE_S = 0.3
#: Rounding of times.
EPSILON_S = 1e-6
#: So many departures are looked at: more do not happen at once.
NEWEST = 16


#: The start and end of each suspension of a node.
Stops = Sequence[tuple[float, float]]


def slept_s(stops: Stops, own: Stops, since: float, until: float) -> float:
    """Return how long of a span a node was suspended while the one that judges it was not."""
    slept = [(max(begin, since), min(end, until)) for begin, end in stops]
    both = [(max(begin, b), min(end, e)) for begin, end in slept for b, e in own]
    return sum(max(0.0, end - begin) for begin, end in slept) - sum(max(0.0, end - begin) for begin, end in both)


class Sleepers:
    """The suspensions of nodes; asserts that no node is lost because the one that judges it slept.

    Parameters
    ----------
    simulation
        Whose nodes.
    faults
        What else goes wrong: where nodes are silent for other reasons, nothing is asserted.
    """

    def __init__(self, simulation: SimulatedCluster, faults: Faults) -> None:
        self.num_judged = 0  # how often a live node was rightly presumed lost
        self._simulation = simulation
        others = faults.loss, faults.partition, faults.ways, faults.deaf, faults.veil, faults.departure
        self._asserts = not any(others)
        self._heard: dict[tuple[str, str], float] = {}  # when a node has heard another one last
        self._judged: set[tuple[str, bytes]] = set()
        self._idle: dict[str, tuple[JobRun, float]] = {}  # jobs without members: since when
        simulation.on_receive.append(self._received)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if "coordinator" not in (receiver.name, sender):
            return
        # a restarted coordinator takes no message as a sign of life before its sender has identified itself
        is_known = sender == "coordinator" or self._heard.get((receiver.name, sender), -1.0) >= receiver.started_at
        if is_known or isinstance(message, Hello):
            self._heard[receiver.name, sender] = self._simulation.now

    def check(self, node: Node) -> None:
        """Assert that whom a node has just given up was silent while it was awake."""
        machine = node.machine
        if isinstance(machine, CoordinatorMachine):
            self._check_leases(node, machine)
        if not self._asserts:
            return
        if isinstance(machine, CoordinatorMachine):
            for departure in islice(reversed(machine.membership.gone), NEWEST):
                who = departure.member.incarnation
                if departure.how == "lost" and (node.name, who) not in self._judged:
                    self._judged.add((node.name, who))
                    named = (n for n in self._simulation.nodes.values() if n.identity.incarnation == who)
                    silent_s = self._simulation.time_of(node) - departure.member.seen_at
                    if (other := next(named, None)) is not None and silent_s >= machine.membership.timeout:
                        self._check_silent(node, other, machine.membership.timeout)
        elif isinstance(machine, (ServerKernel, SessionKernel)):
            member = machine.member
            coordinator = self._simulation.nodes.get("coordinator")
            if coordinator is None or not member.lost or member.restarted or (node.name, b"") in self._judged:
                return
            self._judged.add((node.name, b""))
            self._check_silent(node, coordinator, member.patience)

    def _check_leases(self, coordinator: Node, machine: CoordinatorMachine) -> None:
        """Assert that a job that ends for want of workers has waited while its coordinator was awake."""
        now = self._simulation.time_of(coordinator)
        for name, (run, since) in list(self._idle.items()):
            if machine.runs.get(name) is run:
                continue
            del self._idle[name]
            ended, waited_s = machine.ended.by_name.get(name), now - since
            if ended is not None and ended.at == now and ended.how.startswith("no worker for"):
                lease_s = self._simulation.options.lease
                text = f"job {name!r} has ended after {waited_s:.1f} s of {lease_s:g} without a worker"
                assert waited_s >= lease_s - EPSILON_S, f"{text}: it is judged by the coordinator's sleep"
                self.num_judged += 1
        for name, run in machine.runs.items():
            if run.members:
                self._idle.pop(name, None)
            elif name not in self._idle:
                self._idle[name] = run, now

    def resolved(self, node: Node, operation: Operation, value: object) -> None:
        """Assert that a server has lacked the memory for as long as a worker, awake, asks it again."""
        if isinstance(operation, Exchange) and isinstance(value, ServerMemoryError):
            asked_s = self._simulation.time_of(node) - operation.started_at
            text = f"{node.name} has asked for memory for {asked_s:.1f} s of {SHORT_S:g}"
            assert asked_s >= SHORT_S - EPSILON_S, f"{text}: it has judged by its own sleep"

    def _check_silent(self, judge: Node, other: Node, timeout: float) -> None:
        """Assert that a node that lives, and was given up, has stood still for about as long as it was waited for."""
        heard_at = self._heard.get((judge.name, other.name), 0.0)
        since = max(heard_at, judge.started_at)
        if not other.alive or other.started_at > since or self._simulation.network.cut_until > since:
            return  # its predecessor was heard, or this one has yet to identify itself; or no node could be heard
        if isinstance(other.machine, (ServerKernel, SessionKernel)) and other.machine.member.lost:
            return  # it has given up its coordinator, which slept for that long, and says nothing to it any more
        if heard_at < judge.started_at:  # by a restarted coordinator: all members have had the time to come back
            timeout = max(timeout, RETURN_S)
        silent_s = slept_s(other.stops, judge.stops, since, self._simulation.now)
        own = [stop for stop in judge.stops if stop[1] > since]
        # what each of its own stops may have taken of its time, a heartbeat that was due, and a new connection
        unheard = LATE_S + self._simulation.options.heartbeat_interval + len(own) * (LOOK_S + SLACK_S)
        unheard += RECONNECT_S[1] * (timeout > 2 * RECONNECT_S[1])
        text = f"{judge.name} has given up {other.name}, which stood still for {silent_s:.1f} s of {timeout:g}"
        assert silent_s >= timeout - unheard, f"{text}: it has judged by its own sleep"
        self.num_judged += 1
