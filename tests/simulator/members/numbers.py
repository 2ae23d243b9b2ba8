"""Clusters whose nodes have numbers of a launcher, and come in any order: each has its number as its rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from tests.simulator.engine import Node
from tests.simulator.network import Faults
from tests.simulator.simulation import Simulation
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.member import Identity
from zmqps.core.protocol.messages import Hello, Message

S = TypeVar("S")

NUMBERED = {
    "": Faults(delay=0.004, crash=0.3),
    "-restarts": Faults(delay=0.005, crash=0.15, server_crash=0.05, coordinator_crash=0.1),
    "-everything": Faults(
        delay=0.005, loss=0.002, duplication=0.05, reordering=0.05, partition=0.08, partition_s=6.0, crash=0.15,
        stop=0.1,
    ),
}  # fmt: skip


class NumberedSimulation(Simulation):
    """A simulation whose servers and workers are numbered, but for servers that are spares, which come by hand.

    They come in any order, and those that die are started again under their name and number. As soon as one has joined
    it has that as its rank, unless another one of another name had it then.
    """

    def __init__(self, seed: int, servers: int, workers: int, *facts: Any, **options: Any) -> None:
        self.num_numbered = 0  # nodes that have joined with a number
        self.doubted: set[bytes] = set()  # nodes that came before their old process was missed
        self._numbers = {"server": servers, "worker": workers}
        self._last: dict[str, Node] = {}  # by role and number: the life that has been started last
        self._is_by_hand = False  # whether the next server is
        self._excused: set[bytes] = set()  # nodes that could not have their number
        self._rivals: dict[bytes, MemberInfo | None] = {}  # its holder when a newcomer last said Hello
        super().__init__(seed, servers, workers, *facts, **options)
        self.on_receive.append(self._received)

    def _identity(self, role: str, name: str, known_as: str = "", job: str = "") -> Identity:
        number, last = None, self._last.get(known_as)
        if last is not None and not last.alive:
            number = int(known_as.rpartition("-")[2])  # a worker that is started again
        elif role in self._numbers and not self._is_by_hand:
            free = [n for n in range(self._numbers[role]) if self._is_due(f"{role}-{n}")]
            number = self.rng.choice(free) if free else None
        if number is None:
            by_hand = f"{name}-by-hand" if role == "server" else known_as
            return super()._identity(role, name, by_hand, job)
        identity = super()._identity(role, name, f"{role}-{number}", job)
        return replace(identity, index=number)

    def start_server(self, spare: bool = False) -> Node:
        """Start one more server: a spare by hand, else in the place of one that has died, or has not come yet."""
        self._is_by_hand = spare
        try:
            return super().start_server(spare)
        finally:
            self._is_by_hand = False

    def start(self, node: Node) -> Node:
        """Start a node."""
        if node.identity.index is not None:
            self._last[node.identity.name] = node
        return super().start(node)

    def _is_due(self, name: str) -> bool:
        """Whether a node of this name is to be started: it was never, or has died."""
        last = self._last.get(name)
        return last is None or (last.role == "server" and not last.alive)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        machine = receiver.machine
        if not isinstance(machine, CoordinatorMachine) or not isinstance(message, Hello) or not message.wish:
            return
        if message.incarnation not in machine.membership.members:
            rival = self._rivals[message.incarnation] = _of_rank(machine, message)
            if rival is not None and rival.hello.name == message.name:
                self.doubted.add(message.incarnation)

    def check(self, node: Node) -> None:
        """Assert what must hold after an event of a node."""
        super().check(node)
        if isinstance(node.machine, CoordinatorMachine):
            self._check_numbers(node.machine)

    def _check_numbers(self, machine: CoordinatorMachine) -> None:
        members = machine.membership.members
        for who in [who for who in self._rivals if who in members]:
            member, rival = members[who], self._rivals.pop(who)
            self.num_numbered += 1
            if rival is not None and self._lives_beside(rival, member):
                self._excused.add(who)
        for member in members.values():
            wish = member.hello.wish
            if wish and member.incarnation not in self._excused:
                assert member.rank == wish - 1, f"{member.title} has another rank than its number, {wish - 1}"
            if not wish and member.role == "server":
                assert member.rank >= self._numbers[member.role], f"{member.title} has the number of another"

    def _lives_beside(self, rival: MemberInfo, member: MemberInfo) -> bool:
        """Whether a member that had the number of another is no life of it that is over."""
        node = next((n for n in self.nodes.values() if n.identity.incarnation == rival.incarnation), None)
        return rival.hello.name != member.hello.name or (node is not None and node.alive)


def _of_rank(machine: CoordinatorMachine, hello: Hello) -> MemberInfo | None:
    """Return the member that has the number that a node wishes."""
    members = machine.membership.members.values()
    job = "" if hello.role == "server" else hello.job
    return next((m for m in members if (m.role, m.job, m.rank) == (hello.role, job, hello.wish - 1)), None)


def numbered_scenarios(found: Mapping[str, S]) -> Mapping[str, S]:
    """Return scenarios whose nodes are numbered, made of those in which nodes come back."""
    made: dict[str, S] = {}
    for mode in ("async", "sync"):
        for kind, faults in NUMBERED.items():
            made[f"{mode}-numbered{kind}"] = replace(  # type: ignore[type-var]
                found[f"{mode}-returns"], faults=faults, claimed=False, numbered=True, spares=1, servers=3
            )
        made[f"{mode}-numbered-claimed"] = replace(found[f"{mode}-returns"], numbered=True)  # type: ignore[type-var]
        made[f"{mode}-numbered-returned"] = replace(found[f"{mode}-returned-claimed"], numbered=True)  # type: ignore[type-var]
        made[f"{mode}-numbered-replicas"] = replace(found[f"{mode}-replicas"], numbered=True)  # type: ignore[type-var]
    return made
