"""Workers that die and are started again by a supervisor, which gives all their lives one claim: each has one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.protocol.messages import Hello, Message

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from zmqps.core.coordinator.members.membership import MemberInfo, Roster


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker was when its next life came."""

    incarnation: bytes
    rank: int
    counted: bool


class Returns:
    """Asserts that a worker that comes back has the rank and the place that it had, and that no other has them.

    Parameters
    ----------
    simulation
        Whose workers have claims.
    """

    def __init__(self, simulation: SimulatedCluster) -> None:
        self.num_at_once = 0  # that came back before they were missed
        self.num_later = 0  # that came back to a rank that was free
        self._simulation = simulation
        self._before: tuple[bytes, Place | None, int | None] | None = (
            None  # the joining member, the one it replaces, or the rank
        )
        self._last: dict[
            int, tuple[Roster, dict[int, bytes]]
        ] = {}  # the last holder of each rank of a roster, by claim
        simulation.on_receive.append(self._received)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        machine = receiver.machine
        if not isinstance(machine, CoordinatorMachine) or not isinstance(message, Hello) or not message.claim:
            return
        members = machine.membership.members
        if message.incarnation in members:
            return  # said again
        before = next((m for m in members.values() if m.hello.claim == message.claim), None)
        if before is not None and before.hello.life > message.life:
            return  # an echo, which is refused
        free = None
        if before is None:
            free = self._free_rank(machine, message)
        self._before = message.incarnation, self._place(machine, before) if before is not None else None, free

    def _free_rank(self, machine: CoordinatorMachine, hello: Hello) -> int | None:
        """Return a worker's last rank, if no other has had it since; of the present job."""
        run = machine.runs.get(hello.job)
        if run is None or id(run.workers) not in self._last:
            return None
        taken = {worker.rank for worker in run.workers}
        last = self._last[id(run.workers)][1]
        return next((rank for rank, claim in last.items() if claim == hello.claim and rank not in taken), None)

    def _place(self, machine: CoordinatorMachine, member: MemberInfo) -> Place:
        counted = member.incarnation in machine.runs[member.job].attendance
        return Place(member.incarnation, member.rank, counted)

    def check(self, node: Node) -> None:
        """Assert what must hold after an event of the coordinator."""
        machine = node.machine
        if not isinstance(machine, CoordinatorMachine):
            return
        members = machine.membership.members
        by_rank: dict[tuple[str, str, int], MemberInfo] = {}
        for member in members.values():
            other = by_rank.setdefault((member.role, member.job, member.rank), member)
            assert other is member, f"{other.title} and {member.title} have one rank"
        joined, self._before = self._before, None
        if joined is not None and joined[0] in members:
            self._check_place(machine, members[joined[0]], joined[1], joined[2])
        for member in members.values():
            _, last = self._last.setdefault(id(member.roster), (member.roster, {}))
            last[member.rank] = member.hello.claim

    def _check_place(
        self, machine: CoordinatorMachine, member: MemberInfo, before: Place | None, free: int | None
    ) -> None:
        if before is not None:
            self.num_at_once += 1
            assert member.rank == before.rank, f"{member.title} has come back, and its rank was {before.rank}"
            assert before.incarnation not in machine.membership.members, f"{member.title} is there twice"
            counts = member.incarnation in machine.runs[member.job].attendance
            assert counts or not before.counted, f"{member.title} has come back, and does not count any more"
        elif free is not None:
            self.num_later += 1
            assert member.rank == free, f"{member.title} has come back, and its rank was {free}, which is free"
