"""Supervisors that see nodes end and tell the coordinator so, and what must hold of what they say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, TypeVar

from tests.simulator.cluster import token_of
from tests.simulator.engine import Node
from tests.simulator.network import Faults
from tests.simulator.simulation import Simulation
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.node.inquiry import Inquiry
from zmqps.core.node.member import Identity
from zmqps.core.protocol.messages import Exited, ExitNoted, Message
from zmqps.core.protocol.security.keys import process_of

#: `tests.simulator.scenarios.Scenario`.
S = TypeVar("S")

#: A supervisor sees the end of a node so soon after it; some say it once more, when another life may be there.
SEEN_S, AGAIN_S, AGAIN = (0.0, 0.2), (0.5, 6.0), 0.3
#: Where no message is lost, the coordinator knows of the end of a node this soon.
KNOWN_S = 1.0

REPORTS = {
    "reported": Faults(delay=0.004, crash=0.8, report=1.0),
    "reported-servers": Faults(delay=0.004, crash=0.1, server_crash=0.15, report=1.0),
    "reported-restarts": Faults(delay=0.005, crash=0.1, server_crash=0.05, coordinator_crash=0.1, report=0.9),
    "reported-freezes": Faults(delay=0.004, crash=0.4, report=1.0, freeze=0.3),
    "reported-everything": Faults(
        delay=0.005, loss=0.002, duplication=0.05, reordering=0.05, partition=0.08, partition_s=6.0, crash=0.1,
        stop=0.1, report=0.7,
    ),
}  # fmt: skip


class Reported(Simulation):
    """A run in which supervisors report the ends of their nodes."""

    def __init__(self, seed: int, *args: Any, **kwargs: Any) -> None:
        self.num_reports = 0  # that the coordinator has taken
        self.num_lost = 0  # and members lost by these
        self._own = Random(f"supervisors {seed}")
        self._ended: dict[bytes, object] = {}  # processes of whose end some coordinator has said that it knows
        self._taken: tuple[bytes, set[bytes]] | None = (
            None  # a process whose end is being reported, and the members present
        )
        self._told_by: dict[str, bytes] = {}  # the processes reported
        super().__init__(seed, *args, **kwargs)
        self.on_receive.append(self._received)
        self.on_send.append(self._sent)

    def ended(self, node: Node) -> None:
        """A supervisor has seen the end of a node; whether it was a good one is not looked at."""
        if isinstance(node.machine, Inquiry):
            return
        super().ended(node)
        if node.role == "coordinator" or self._own.random() >= self.faults.report:
            return
        told_at = self.now + self._own.uniform(*SEEN_S)
        self.at(told_at, partial(self._tell, node))
        if self._own.random() < AGAIN:
            self.at(told_at + self._own.uniform(*AGAIN_S), partial(self._tell, node))
        coordinator = self.nodes.get("coordinator")
        if coordinator is not None and coordinator.alive:
            self.at(told_at + KNOWN_S, partial(self._check_known, node, coordinator))

    def _tell(self, node: Node) -> None:
        if not self.coordinator_alive:
            return
        name = f"supervisor-{sum(isinstance(other.machine, Inquiry) for other in self.nodes.values())}"
        identity = Identity(
            role="operator", incarnation=self._own.randbytes(16), name=name, host="simulated", pid=len(self.nodes)
        )
        machine = Inquiry("sim://coordinator", question=Exited(1, token_of(node.identity.incarnation), "killed"))
        self.start(Node(name=name, role="operator", identity=identity, machine=machine))

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        machine = receiver.machine
        if isinstance(message, Exited) and isinstance(machine, CoordinatorMachine):
            process = process_of(message.token)
            self.num_reports += 1
            self._told_by[sender] = process
            self._taken = process, set(machine.membership.members)

    def _sent(self, sender: Node, to: str, message: Message) -> None:
        if isinstance(message, ExitNoted):
            self._ended[self._told_by[to]] = sender.machine

    def check(self, node: Node) -> None:
        """Assert what must hold of reports, besides the rest."""
        super().check(node)
        machine = node.machine
        if not isinstance(machine, CoordinatorMachine):
            return
        members = machine.membership.members
        if self._taken is not None:
            (process, before), self._taken = self._taken, None
            lost = [d.member for d in machine.membership.gone if d.member.incarnation in before - set(members)]
            for member in lost:
                theirs = member.hello.process == process
                with_job = member.job and member.job not in machine.runs  # which has ended with the one that is lost
                assert theirs or with_job, f"{member.title} is lost, and it is another process that has ended"
            self.num_lost += len(lost)
        for member in members.values():
            known = self._ended.get(member.hello.process) is machine
            assert not known, f"{member.title} is there, and its process is known to have ended"

    def _check_known(self, node: Node, coordinator: Node) -> None:
        """Assert that the coordinator that was there when a node ended has heard of it, if it still is."""
        f = self.faults
        if f.loss or f.partition or f.stop or f.freeze or not coordinator.alive:
            return
        who = node.identity.incarnation
        assert who not in self.coordinator.membership.members, f"{node.name} has ended, and is not known to be lost"


def reported_scenarios(found: Mapping[str, S]) -> Mapping[str, S]:
    """Return scenarios in which the ends of nodes are told, made of those without reports."""
    made: dict[str, S] = {}
    for mode in ("async", "bounded", "sync", "jobs"):
        for kind, faults in REPORTS.items():
            if not faults.server_crash or mode != "jobs":
                made[f"{mode}-{kind}"] = replace(found[f"{mode}-restarts"], faults=faults)  # type: ignore[type-var]
    for mode in ("async", "sync"):
        copied = found[f"{mode}-replicas"]
        made[f"{mode}-reported-replicas"] = replace(copied, faults=REPORTS["reported-servers"])  # type: ignore[type-var]
        kept = found[f"{mode}-returned"]
        made[f"{mode}-reported-returned"] = replace(kept, faults=REPORTS["reported"])  # type: ignore[type-var]
    return made
