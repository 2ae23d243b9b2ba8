"""Operators that ask, while jobs are trained, for the health of all nodes, the threads of one, and the waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulator.engine import Node
from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training
from tests.simulator.simulation import END_KEY
from tests.simulator.watching.watchers import Watchers
from zmqps.core.coordinator.watching.probes import PROBE_S, ProbeOutcome
from zmqps.core.node.inquiry import Inquiry
from zmqps.core.node.member import Identity
from zmqps.core.protocol.messages import Error, Examine, Examined, Message, Probe, Probed, Status, Watch
from zmqps.core.protocol.security.guard import proved
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.core.server.machine import ServerKernel
from zmqps.core.worker.session import SessionKernel
from zmqps.errors import IdentityError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: How often one of them comes, from when on, and how many of them want to know about one node.
RATE, FIRST_S, NAMES_ONE = 1.2, 1.0, 0.4
#: How many of the others watch, and for how many seconds they look back.
WATCH, SPAN_S = 0.5, 5.0
#: So many of them have the proof that they may.
KNOW = 0.7
#: Rounding of times.
EPSILON_S = 1e-6

#: `tests.simulator.scenarios.Scenario`.
S = TypeVar("S")


class Operators:
    """Asks, and asserts that what is answered is true.

    Parameters
    ----------
    simulation
        Where they are.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self.num_answered = 0
        self.num_refused = 0
        self._simulation = simulation
        self.watchers = Watchers(simulation, SPAN_S)
        self._rng = Random(f"operators {simulation.rng.random()}")
        self._num_asked = 0
        self._may: dict[str, bool] = {}  # by operator
        self._taken: dict[str, tuple[object, float]] = {}  # by operator: which coordinator was asked, and when
        self._there: dict[str, set[str]] = {}  # by operator: the members at that time
        self._last = ""  # the operator whose question the coordinator deals with
        self._number_of: dict[str, int] = {}
        self._came: dict[tuple[object, int], dict[str, float]] = {}  # answers of members, by name and when
        self._asked: set[tuple[object, str, int]] = set()  # coordinator, operator, and request
        self._owed: set[tuple[str, int]] = set()  # nodes that were asked, and have not answered
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        simulation.at(FIRST_S, self._ask)

    def check_end(self) -> None:
        """Assert that no operator is left without an answer."""
        simulation = self._simulation
        coordinator = simulation.nodes["coordinator"]
        for operator, (machine, began_at) in self._taken.items():
            now = simulation.time_of(coordinator)
            late = machine is coordinator.machine and coordinator.alive and now > began_at + PROBE_S
            assert not late or simulation.now < coordinator.stopped_until, f"{operator} was not told how the nodes are"

    def _ask(self) -> None:
        simulation, rng = self._simulation, self._rng
        if not simulation.coordinator_alive:
            return
        members = [n.machine.member for n in [*simulation.workers, *simulation.servers] if _is_member(n)]  # type: ignore[union-attr]
        name = f"operator-{self._num_asked}"
        self._num_asked += 1
        self._may[name] = rng.random() < KNOW
        question: Examine | Watch = Examine(1)
        if members and rng.random() < NAMES_ONE:
            chosen = rng.choice(members)
            named, nonce = f"{chosen.identity.role}-{chosen.rank}", rng.randbytes(KEY_NBYTES)
            question = proved(END_KEY if self._may[name] else b"", Examine(1, named, nonce))
        elif rng.random() < WATCH:
            question = Watch(1, SPAN_S, 100)
        identity = Identity(
            role="operator", incarnation=rng.randbytes(16), name=name, host="simulated", pid=len(simulation.nodes)
        )
        machine = Inquiry("sim://coordinator", question=question)
        simulation.start(Node(name=name, role="operator", identity=identity, machine=machine))
        if simulation.num_workers:
            simulation.at(simulation.now + rng.expovariate(RATE), self._ask)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        simulation = self._simulation
        if isinstance(message, Examine):
            self._last = sender
            if self._taken.get(sender, (None,))[0] is not receiver.machine:  # else it asks again
                self._taken[sender] = receiver.machine, simulation.time_of(receiver)
                self._number_of.pop(sender, None)  # that is what a coordinator before this one called it
                names = {node.identity.incarnation: node.name for node in simulation.nodes.values()}
                self._there[sender] = {names[who] for who in simulation.coordinator.membership.members}
        elif isinstance(message, Probed) and self._counts(receiver, sender, message.number):
            self._came.setdefault((receiver.machine, message.number), {})[sender] = simulation.time_of(receiver)
        elif isinstance(message, Probe) and _is_member(receiver):
            self._owed.add((receiver.name, message.number))

    def _counts(self, coordinator: Node, name: str, number: int) -> bool:
        """Return whether an answer is to what this life of the coordinator has asked, of a node that is still there.

        A member that stood still answers what the life before has asked when it wakes up; numbers begin again.
        """
        who = self._simulation.nodes[name].identity.incarnation
        members = self._simulation.coordinator.membership.members
        return (coordinator.machine, name, number) in self._asked and who in members

    def _sent(self, sender: Node, to: str, message: Message) -> None:
        if isinstance(message, Probed):
            self._owed.discard((sender.name, message.number))
        elif isinstance(message, Probe):
            self._number_of[self._last] = message.number
            self._asked.add((sender.machine, to, message.number))
            assert self._may[self._last] or not message.stacks, "the threads of a node are shown to anybody"
        elif isinstance(message, Examined):
            self._check(sender, to, message.findings)
        elif isinstance(message, Status):
            self.watchers.check(sender, message.status)
        elif isinstance(message, Error) and to in self._taken and sender.role == "coordinator":
            del self._taken[to]
            if message.code == IdentityError.code:
                assert not self._may[to], "an operator that may see the threads of a node is refused"
                self.num_refused += 1

    def _check(self, coordinator: Node, operator: str, findings: Mapping[str, Any]) -> None:
        simulation = self._simulation
        _, began_at = self._taken.pop(operator)
        over_at = max(began_at + PROBE_S + EPSILON_S, simulation.woke_at(coordinator))
        assert simulation.time_of(coordinator) <= over_at, f"{operator} waits for nodes that do not answer"
        names = {(node.identity.name, node.identity.pid): node for node in simulation.nodes.values()}
        nodes = [(names[row["name"], row["pid"]], row) for row in findings["nodes"]]
        found = {node.name for node, _ in nodes}
        assert len(found) == len(nodes), "a node has answered twice"
        if "stacks" in findings:
            assert self._may[operator], "the threads of a node are shown to anybody"
            assert len(found) == 1
        else:
            left_out = self._there[operator] - found
            assert not left_out, f"it was not checked whether {left_out} answer"
        number = self._number_of.get(operator, 0)
        came = self._came.get((coordinator.machine, number), {})
        members = simulation.coordinator.membership.members
        for node, row in nodes:
            state = row["state"]
            agrees = (state == ProbeOutcome.ANSWERED) == (node.name in came)
            assert agrees, f"{node.name} has not answered, or has, and is {state}"
            assert (state == ProbeOutcome.GONE) <= (node.identity.incarnation not in members), f"{node.name} is there"
            if state == ProbeOutcome.ANSWERED:
                seconds = came[node.name] - began_at
                assert abs(row["latency_s"] - seconds) < EPSILON_S, f"{node.name} took {seconds} s to answer"
            runs = node.alive and simulation.now >= node.stopped_until
            if state == ProbeOutcome.SILENT and runs and _is_member(node):
                assert (node.name, number) not in self._owed, f"{node.name} was asked and says nothing"
        self.num_answered += 1


def _is_member(node: Node) -> bool:
    machine = node.machine
    return isinstance(machine, ServerKernel | SessionKernel) and machine.member.joined and not machine.member.unsure


class OperatedTraining(Training):
    """Training beside which there are operators."""

    operators: Operators | None = None

    def watch(self, simulation: SimulatedCluster) -> None:
        """Let operators come, too."""
        super().watch(simulation)
        self.operators = Operators(simulation)

    def check_end(self, simulation: SimulatedCluster) -> None:
        """Assert that they were told."""
        super().check_end(simulation)
        assert self.operators is not None
        self.operators.check_end()


class ProbedSync(OperatedTraining, SyncTraining):
    """Synchronous training beside which there are operators."""


class ProbedAsync(OperatedTraining, AsyncTraining):
    """Asynchronous training beside which there are operators."""


def probed_scenarios(found: Mapping[str, S]) -> Mapping[str, S]:
    """Return scenarios with operators, made of those without."""
    asynchronous = partial(ProbedAsync, steps=6, parameters=4, size=32, lives=16, compute_s=0.6)
    synchronous = partial(ProbedSync, steps=8, compute_s=0.6)
    probed: dict[str, S] = {}
    for mode, training in (("async", asynchronous), ("sync", synchronous)):
        for kind in ("loss", "stops", "freezes", "crashes", "partitions", "restarts", "everything", "returned"):
            probed[f"{mode}-probed-{kind}"] = replace(found[f"{mode}-{kind}"], training=training)  # type: ignore[type-var]
    return probed
