"""The copies of a job's shards: which server has which, under which number, and what others need to talk to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zmqps.core.coordinator.journal import Plain, packed, unpacked
from zmqps.core.coordinator.membership import ABSENT, MemberInfo, Roster
from zmqps.core.protocol.keys import LOADER, proof_of, shard_key, ticket_of


@dataclass(slots=True, eq=False, kw_only=True)
class Copy:
    """One copy of one shard on one server; ``epoch`` is its number, which no other copy of any job ever has."""

    shard: int
    epoch: int
    server: MemberInfo


class Copies:
    """The live copies of one job.

    Parameters
    ----------
    root
        The coordinator's secret: what keys and tickets are made of.
    new_epoch
        Returns a number that no copy has had.

    Attributes
    ----------
    by_epoch
        The copies by their numbers, in the order of the shards at first.
    """

    def __init__(self, root: bytes, new_epoch: Callable[[], int]) -> None:
        self.by_epoch: dict[int, Copy] = {}
        self._root = root
        self._new_epoch = new_epoch

    def __len__(self) -> int:
        return len(self.by_epoch)

    def __iter__(self) -> Iterator[Copy]:
        """Yield all of them."""
        return iter(self.by_epoch.values())

    def place(self, servers: Sequence[MemberInfo]) -> int:
        """Give each server the shard of its place; return the number of the first one, which stands for the job."""
        for shard, server in enumerate(servers):
            epoch = self._new_epoch()
            self.by_epoch[epoch] = Copy(shard=shard, epoch=epoch, server=server)
        return next(iter(self.by_epoch))

    def primaries(self) -> Iterator[tuple[int, int, MemberInfo]]:
        """Yield shard, epoch and server of each copy that answers workers, in the order of the shards."""
        for copy in sorted(self, key=lambda copy: copy.shard):
            yield copy.shard, copy.epoch, copy.server

    def of(self, server: MemberInfo) -> list[Copy]:
        """Return what a server has of the job."""
        return [copy for copy in self if copy.server.incarnation == server.incarnation]

    def epochs_by_server(self) -> dict[bytes, tuple[MemberInfo, frozenset[int]]]:
        """Return the servers that have copies, by incarnation, each with the numbers of these."""
        epochs: dict[bytes, tuple[MemberInfo, frozenset[int]]] = {}
        for copy in self:
            _, before = epochs.get(copy.server.incarnation, (copy.server, frozenset[int]()))
            epochs[copy.server.incarnation] = copy.server, before | {copy.epoch}
        return epochs

    def dump(self) -> Plain:
        """Return what is kept of them, in their order: also of servers that are gone, for errors name those."""
        return [[c.shard, c.epoch, c.server.rank, packed(c.server.hello)] for c in self]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo], now: float) -> None:
        """Have the copies that were kept."""
        for shard, epoch, rank, data in kept:
            hello = unpacked(data)
            gone = MemberInfo(
                hello=hello, peer=ABSENT + hello.incarnation, roster=Roster(), rank=rank, seen_at=now
            )  # fmt: skip
            server = members.get(hello.incarnation, gone)
            self.by_epoch[epoch] = Copy(shard=shard, epoch=epoch, server=server)

    def key(self, copy: Copy) -> bytes:
        """Return what the server of a copy knows tickets by, and proves itself with."""
        return shard_key(self._root, copy.epoch, copy.server.incarnation)

    def row(self, copy: Copy, member: MemberInfo, *, load: bool = False) -> dict[str, Any]:
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
        """Return that of each shard."""
        return [self.row(self.by_epoch[epoch], member, load=load) for _, epoch, _ in self.primaries()]
