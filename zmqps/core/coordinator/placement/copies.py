"""The copies of a job's shards: which server has which, under which number, and what others need to talk to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from zmqps.core.coordinator.journal import Changed, KeptDict, KeptRecord, Plain, nothing, unkept
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Lead
from zmqps.core.protocol.security.keys import LOADER, proof_of, shard_key, ticket_of

#: A server answers within milliseconds; one that did not may not have received it.
RETRY_S = 1.0


class Order(StrEnum):
    """What a leader was sent, and has not confirmed: which backups it has, or to take over its shard."""

    REPLICAS, PROMOTE = "replicas", "promote"


@dataclass(slots=True, eq=False, kw_only=True)
class Replica(KeptRecord):
    """One copy of one shard on one server; ``epoch`` is its number, which no other copy of any job ever has.

    The leader answers workers; backups follow it. ``generation`` counts how often the shard has had another leader or
    other backups. ``built`` and ``whole`` say whether it is there and has all values, as far as is known.
    """

    kept: ClassVar = dict.fromkeys(("backup", "generation", "built", "whole", "order"), "copies")

    changed: Callable[[str], None] = unkept
    shard: int
    epoch: int
    server: MemberInfo
    backup: bool = False
    generation: int = 0
    built: bool = False
    whole: bool = False
    moved: bool = False  # it is given up, and another one takes its place
    order: Order | None = None
    yielded: bool = False  # it has given up its place, for a copy that is yet to say that it has taken it

    @property
    def progress(self) -> float:
        """How much of it is filled, as far as its server has said, in percent."""
        counted = self.server.reported.by_epoch.get(str(self.epoch), {})
        filled, slices = counted.get("slices_filled"), counted.get("slices")
        if self.whole or not isinstance(filled, int) or not isinstance(slices, int) or not slices:
            return 100.0 * self.whole
        return 100.0 * filled / slices


class ReplicaSet:
    """The live copies of one job, and what their servers were sent about them and have not confirmed."""

    def __init__(self, root: bytes, new_epoch: Callable[[], int], changed: Changed = nothing) -> None:
        self.by_epoch: dict[int, Replica] = {}  # in the order of the shards at first
        self.coming: dict[int, Replica] = {}  # the copies once the shards are recut
        #: Why servers, by incarnation, could not keep a copy of a shard.
        self.unfit: dict[tuple[bytes, int], str] = KeptDict(changed)
        self.retry_due: float | None = None  # when what is not confirmed is sent again
        self.revision = 0
        self.changed = changed
        self._root = root
        self._new_epoch = new_epoch

    def __len__(self) -> int:
        return len(self.by_epoch)

    def __iter__(self) -> Iterator[Replica]:
        """Yield all of them."""
        return iter(self.by_epoch.values())

    def place(self, servers: Sequence[MemberInfo], replicas: int = 0) -> int:
        """Give each server the shard of its place, and backups of others; return the first number of the first shard.

        That number identifies the job.
        """
        leaders = [self.add(shard, server) for shard, server in enumerate(servers)]
        for copy in leaders:
            for _ in range(replicas):
                around = [*servers[copy.shard + 1 :], *servers[: copy.shard]]
                if (server := self.best(copy.shard, around)) is not None:
                    self.add(copy.shard, server, backup=True)
        return leaders[0].epoch

    def add(self, shard: int, server: MemberInfo, *, backup: bool = False) -> Replica:
        """Enter a copy under a new number."""
        copy = self._new(shard, server, backup)
        self.by_epoch[copy.epoch] = copy
        self._note()
        return copy

    def prepare(self, shard: int, server: MemberInfo, *, backup: bool = False) -> Replica:
        """Enter a copy of a planned shard."""
        copy = self._new(shard, server, backup)
        self.coming[copy.epoch] = copy
        return copy

    def _new(self, shard: int, server: MemberInfo, backup: bool) -> Replica:
        epoch = self._new_epoch()
        return Replica(changed=self._mark, shard=shard, epoch=epoch, server=server, backup=backup)

    def _mark(self, what: str) -> None:
        self.changed()

    def find(self, epoch: int) -> Replica | None:
        """Return the copy of a number, planned ones included."""
        return self.by_epoch.get(epoch) or self.coming.get(epoch)

    def __getitem__(self, epoch: int) -> Replica:
        """Return the copy of a number that there is."""
        found = self.find(epoch)
        assert found is not None
        return found

    def are_on(self, server: MemberInfo) -> bool:
        """Whether a server has any copy, or is to."""
        return any(copy.server is server for copies in (self.by_epoch, self.coming) for copy in copies.values())

    def remove(self, copy: Replica) -> None:
        """A copy is lost, or no longer needed."""
        del self.by_epoch[copy.epoch]
        self._note()

    def _note(self) -> None:
        self.revision += 1
        self.changed()

    def switch(self) -> None:
        """Replace all copies by the planned ones."""
        self.by_epoch, self.coming = self.coming, {}
        self.unfit.clear()
        self._note()

    def best(self, shard: int, servers: Iterable[MemberInfo], going: Replica | None = None) -> MemberInfo | None:
        """Return where one more copy of a shard is best: on a host that has none, and on a server that has few backups.

        ``going``: the copy whose place it takes; its host is as good as another one, and leaders count as backups do.
        Of several servers that are as good, the first; None: each of them has a copy, or could not keep one.
        """
        having = {copy.server.incarnation: copy.server for copy in self if copy.shard == shard}
        hosts = {server.hello.host for server in having.values() if going is None or server is not going.server}
        loads = Counter(copy.server.incarnation for copy in self if copy.backup or going is not None)
        free = [s for s in servers if s.incarnation not in having and (s.incarnation, shard) not in self.unfit]
        return min(free, key=lambda s: (s.hello.host in hosts, loads[s.incarnation]), default=None)

    @property
    def promoting(self) -> dict[int, Replica]:
        """The copies that should lead and have not confirmed it, by shard."""
        return {copy.shard: copy for copy in self if copy.order is Order.PROMOTE}

    def can_fill(self, shard: int) -> bool:
        """Whether a shard has a leader that can fill other copies."""
        leader = next((copy for copy in self if copy.shard == shard and not copy.backup), None)
        return leader is not None and leader.whole and leader.order is not Order.PROMOTE

    def inform(self, shard: int, now: float) -> list[Action]:
        """Tell the leader of a shard which backups it has now.

        One that has yet to take over is informed when it has; so is the heir of one that gave up its place, which
        would keep it after all if it learned of other backups, and the heir would lack what it does then.
        """
        leader = next((copy for copy in self if copy.shard == shard and not copy.backup), None)
        if leader is None or leader.order is Order.PROMOTE or leader.yielded:
            return []
        leader.generation += 1
        return [self.tell(leader, Order.REPLICAS, now)]

    def tell(self, leader: Replica, order: Order, now: float) -> Action:
        """Tell a leader something, and again until it has confirmed it."""
        leader.order, self.retry_due = order, now + RETRY_S
        return self.told(leader)

    def told(self, leader: Replica) -> Action:
        """Return what a leader was sent and has not confirmed."""
        backups = {} if leader.order is Order.PROMOTE else {"rows": [], **self.rows_of_backups(leader)}
        return Send(leader.server.peer, Lead(leader.epoch, leader.generation, backups))

    def leader(self, shard: int) -> Replica:
        """Return the copy of a shard that answers workers."""
        return next(copy for copy in self if copy.shard == shard and not copy.backup)

    def backups(self, shard: int) -> list[Replica]:
        """Return the copies of a shard that follow its leader."""
        return [copy for copy in self if copy.shard == shard and copy.backup]

    def homes(self, shard: int) -> list[MemberInfo]:
        """Return the servers of a shard's whole copies, that of the leader first."""
        whole = [backup.server for backup in self.backups(shard) if backup.whole]
        return [self.leader(shard).server, *whole]

    def leaders(self) -> Iterator[tuple[int, int, MemberInfo]]:
        """Yield shard, epoch and server of each copy that answers workers, in the order of the shards."""
        for copy in sorted(self, key=lambda copy: copy.shard):
            if not copy.backup:
                yield copy.shard, copy.epoch, copy.server

    def of(self, server: MemberInfo) -> list[Replica]:
        """Return what a server has of the job."""
        return [copy for copy in self if copy.server.incarnation == server.incarnation]

    def epochs_by_server(self) -> dict[bytes, tuple[MemberInfo, frozenset[int]]]:
        """Return the servers that have copies, by incarnation, each with the numbers of these."""
        epochs: dict[bytes, tuple[MemberInfo, frozenset[int]]] = {}
        for copy in [*self, *self.coming.values()]:
            _, before = epochs.get(copy.server.incarnation, (copy.server, frozenset[int]()))
            epochs[copy.server.incarnation] = copy.server, before | {copy.epoch}
        return epochs

    def filling(self) -> Iterator[str]:
        """Yield which of them are being filled, and how far that is."""
        for copy in self:
            if not copy.whole:
                yield f"shard {copy.shard} is copied to {copy.server.hello.name}, {copy.progress:.0f}%"

    def dump(self) -> Plain:
        """Return what is kept of them, in their order."""
        return [[c.shard, c.epoch, c.server.incarnation, c.backup, c.generation, c.built, c.whole] for c in self]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> None:
        """Have the copies that were kept; their servers are members, or they would not have been."""
        for shard, epoch, who, backup, generation, built, whole in kept:
            self.by_epoch[epoch] = Replica(
                changed=self._mark, shard=shard, epoch=epoch, server=members[who], backup=backup,
                generation=generation, built=built, whole=whole,
            )  # fmt: skip

    def key(self, copy: Replica) -> bytes:
        """Return what the server of a copy knows tickets by, and proves itself with."""
        return shard_key(self._root, copy.epoch, copy.server.incarnation)

    def row(self, copy: Replica, member: MemberInfo, *, load: bool = False) -> dict[str, Any]:
        """Return what a member needs to talk to the server of a copy: where it is, and how they know each other."""
        key, hello = self.key(copy), copy.server.hello
        return {
            "name": hello.name,
            "endpoint": hello.endpoint,
            "rank": copy.server.rank,
            "epoch": copy.epoch,
            "ticket": ticket_of(key, LOADER if load else member.role, member.incarnation).hex(),
            "proof": proof_of(key, member.role, member.incarnation).hex(),
        }

    def rows(self, member: MemberInfo, *, load: bool = False) -> list[dict[str, Any]]:
        """Return that of each shard, for a worker or observer."""
        return [self.row(self.by_epoch[epoch], member, load=load) for _, epoch, _ in self.leaders()]

    def rows_of_backups(self, leader: Replica) -> dict[str, Any]:
        """Return those of a shard's backups, for the server of its leader; nothing where there are none.

        Those of a planned shard begin with the same content as their leader, which need not fill them.
        """
        if leader.epoch in self.coming:
            same = [copy for copy in self.coming.values() if copy.shard == leader.shard and copy.backup]
            rows = [{**self.row(copy, leader.server), "number": 0} for copy in same]
        else:
            rows = [self.row(copy, leader.server) for copy in self.backups(leader.shard)]
        return {"rows": rows} if rows else {}

    def rows_of_equals(self, heir: Replica, numbers: Mapping[int, int]) -> dict[str, Any]:
        """Return those of the other backups that have all that a backup has, with the last record of each."""
        equals = [copy for copy in self.backups(heir.shard) if copy.whole and copy is not heir]
        rows = [{**self.row(c, heir.server), "number": numbers[c.epoch]} for c in equals if c.epoch in numbers]
        return {"rows": rows} if rows else {}
