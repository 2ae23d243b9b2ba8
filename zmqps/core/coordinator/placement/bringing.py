"""Gradients of the open step that a lost leader had, and that workers bring to its heir again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView, Mapping

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.training.commits import Commits
from zmqps.core.protocol.messages import Commit


class Bringing:
    """Which shards have another leader, and who may have to bring it gradients again.

    Parameters
    ----------
    commits
        Those that servers have not confirmed.
    members
        The live members of the job by incarnation.

    Attributes
    ----------
    behind
        By shard that has moved: who may have to bring again.
    moving
        Those of them whose new server is yet to take over.
    torn
        A shard that can never have the gradients of a step that others have; None: there is none.
    """

    def __init__(self, commits: Commits, members: Mapping[bytes, MemberInfo]) -> None:
        self.behind: dict[int, set[bytes]] = {}
        self.moving: set[int] = set()
        self.torn: int | None = None
        self._commits = commits
        self._members = members

    def clear(self) -> None:
        """Nobody is to bring anything again."""
        self.behind.clear()
        self.moving.clear()

    def dump(self) -> dict[str, Plain]:
        """Return what is kept of it."""
        moved: list[Plain] = [[shard, sorted(who)] for shard, who in self.behind.items()]
        return {"moved": moved, "moving": sorted(self.moving)}

    def restore(self, kept: dict[str, Plain]) -> None:
        """Be what was kept."""
        self.behind = {shard: set(who) for shard, who in kept["moved"]}
        self.moving = set(kept["moving"])

    def begin(self, shard: int, told: Iterable[bytes]) -> None:
        """A backup is to take over a shard; whoever has been ``told`` the job may have brought some gradients."""
        self.behind[shard] = {who for who in told if who in self._members}
        self.moving.add(shard)

    def moved(self, shard: int, epoch: int) -> None:
        """The backup has taken over. Note it if it is to have a step of which one who has gone had the gradients."""
        self.moving.discard(shard)
        commits = self._commits.unconfirmed.get(epoch, [])
        if any(who not in self._members for commit in commits for who, _ in commit.contributors):
            self._tear(epoch)

    def brought(self, worker: bytes, shard: int) -> None:
        """A worker has brought again what it has of the open step."""
        self.behind.get(shard, set()).discard(worker)
        self._end(shard)

    def _end(self, shard: int) -> None:
        if not self.behind.get(shard) and shard not in self.moving:
            self.behind.pop(shard, None)

    def forget(self, worker: bytes) -> bool:
        """A worker has gone; return whether it had yet to bring gradients: they count no more, unless elsewhere."""
        lacked = False
        for shard, behind in list(self.behind.items()):
            if worker not in behind:
                continue
            lacked = True
            behind.discard(worker)
            for epoch, commits in list(self._commits.unconfirmed.items()):
                # one that is moving may have the step
                at_stake = self._commits.copies[epoch].shard == shard and shard not in self.moving
                if at_stake and any(worker in dict(commit.contributors) for commit in commits):
                    self._tear(epoch)
            self._end(shard)
        return lacked

    def _tear(self, epoch: int) -> None:
        self.torn = self._commits.copies[epoch].shard
        self._commits.lose(epoch)  # said again, it would make another step of it than the others have

    def blocks(self, arrived: KeysView[bytes]) -> bool:
        """Whether a shard has moved that may lack gradients of those who have arrived, or is about to."""
        if not self.behind:
            return False
        return bool(self.moving) or not all(arrived.isdisjoint(behind) for behind in self.behind.values())

    def sendable(self, shard: int | None = None) -> Iterator[tuple[MemberInfo, Commit]]:
        """Yield the commits that servers have not confirmed and can have the gradients of; ``shard``: of that only."""
        for epoch, commits in self._commits.unconfirmed.items():
            copy = self._commits.copies[epoch]
            if copy.shard in self.moving or shard not in (None, copy.shard):
                continue
            behind = self.behind.get(copy.shard, set())
            for commit in commits:
                if any(who in behind for who, _ in commit.contributors):
                    break
                yield copy.server, commit
