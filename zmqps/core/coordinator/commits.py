"""The commits of a job's steps that servers have not confirmed, in order for each shard's primary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zmqps.core.coordinator.copies import Copy
from zmqps.core.coordinator.journal import Plain
from zmqps.core.protocol.fields import Contributor
from zmqps.core.protocol.limits import OPEN_STEPS
from zmqps.core.protocol.messages import Commit


class Commits:
    """What was committed, and which primaries have yet to say that they have it.

    Attributes
    ----------
    copies
        The primaries of the shards, by epoch.
    unconfirmed
        Of each of them that counts the commits, in order.
    """

    def __init__(self) -> None:
        self.copies: dict[int, Copy] = {}
        self.unconfirmed: dict[int, list[Commit]] = {}

    def start(self, copies: Iterable[Copy]) -> None:
        """These are the copies, of which the primaries take commits; nothing is committed yet."""
        self.copies = {copy.epoch: copy for copy in copies if not copy.backup}
        self.unconfirmed = {epoch: [] for epoch in self.copies}

    def forget(self) -> None:
        """What was committed does not count any more."""
        self.unconfirmed = {epoch: [] for epoch in self.unconfirmed}

    def add(self, step: int, contributors: Sequence[Contributor]) -> list[tuple[Copy, Commit]]:
        """A step is committed; return who is to be told what."""
        made: list[tuple[Copy, Commit]] = []
        for epoch, commits in self.unconfirmed.items():
            commits.append(Commit(epoch, step, tuple(contributors)))
            made.append((self.copies[epoch], commits[-1]))
        return made

    def confirmed(self, epoch: int, before: int) -> None:
        """A primary has all steps before this one."""
        commits = self.unconfirmed.get(epoch, [])
        commits[:] = [commit for commit in commits if commit.step >= before]

    @property
    def settled(self) -> bool:
        """Whether every primary has said that it has all steps."""
        return not any(self.unconfirmed.values())

    def may_go_on(self, *, replicated: bool) -> bool:
        """Whether gradients of the next step can be taken everywhere; with backups, once these have all steps."""
        behind = max(map(len, self.unconfirmed.values()), default=0)
        return behind < (1 if replicated else OPEN_STEPS)

    def late(self) -> list[str]:
        """Return who has not said so, as errors call it."""
        late = [self.copies[epoch].server.title for epoch, commits in self.unconfirmed.items() if commits]
        return list(dict.fromkeys(late))

    def lose(self, epoch: int) -> None:
        """A copy is told nothing any more."""
        self.unconfirmed.pop(epoch, None)

    def move(self, old: int, heir: Copy) -> None:
        """A shard has another primary, which is to have what the old one has not confirmed."""
        self.copies.pop(old, None)
        self.copies[heir.epoch] = heir
        commits = self.unconfirmed.pop(old, [])
        self.unconfirmed[heir.epoch] = [Commit(heir.epoch, commit.step, commit.contributors) for commit in commits]

    def dump(self) -> dict[str, Plain]:
        """Return what is kept of them."""
        commits = {commit.step: commit.contributors for queue in self.unconfirmed.values() for commit in queue}
        return {
            "commits": [[step, [[who, list(attempts)] for who, attempts in c]] for step, c in sorted(commits.items())],
            "unconfirmed": [[epoch, [c.step for c in queue]] for epoch, queue in self.unconfirmed.items()],
        }

    def restore(self, kept: dict[str, Plain]) -> None:
        """Have what was kept, of the copies that there are."""
        commits = {step: tuple((who, tuple(a)) for who, a in contributors) for step, contributors in kept["commits"]}
        for epoch, steps in kept["unconfirmed"]:
            if epoch in self.unconfirmed:
                self.unconfirmed[epoch] = [Commit(epoch, step, commits[step]) for step in steps]
