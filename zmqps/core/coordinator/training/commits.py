"""The commits of a job's steps that servers have not confirmed, in order for each shard's leader."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.protocol.fields import Contributor
from zmqps.core.protocol.limits import OPEN_STEPS
from zmqps.core.protocol.messages import Commit


class Commits:
    """What was committed, and which leaders have yet to say that they have it.

    Attributes
    ----------
    copies
        The leaders of the shards, by epoch.
    unconfirmed
        Of each of them that counts the commits, in order.
    measuring
        Whether servers are yet to say how large the mean of the last step is; no other one is committed before.
    """

    def __init__(self) -> None:
        self.copies: dict[int, Replica] = {}
        self.unconfirmed: dict[int, list[Commit]] = {}
        self.measuring = False
        self._squares: dict[int, float] = {}  # of that mean, by shard

    def start(self, copies: Iterable[Replica]) -> None:
        """These are the copies, of which the leaders take commits; nothing is committed yet."""
        self.copies = {copy.epoch: copy for copy in copies if not copy.backup}
        self.unconfirmed = {epoch: [] for epoch in self.copies}
        self.measuring = False

    def forget(self) -> None:
        """What was committed does not count any more."""
        self.measuring = False
        self.unconfirmed = {epoch: [] for epoch in self.unconfirmed}

    def add(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float] = (), *, measure: bool = False,
        examples: int = 0, left_out: bool = False,
    ) -> list[tuple[Replica, Commit]]:  # fmt: skip
        """A step is committed; return who is to be told what. ``measure``: they are asked how large its mean is."""
        made: list[tuple[Replica, Commit]] = []
        self.measuring = measure
        self._squares.clear()
        for epoch, commits in self.unconfirmed.items():
            commit = Commit(epoch, step, tuple(contributors), terms, int(measure), examples, int(left_out))
            commits.append(commit)
            made.append((self.copies[epoch], commits[-1]))
        return made

    def measured(self, epoch: int, step: int, squares: float) -> float | None:
        """A leader has said how large its part of a step's mean is; return the whole one's squares when all have."""
        commits = self.unconfirmed.get(epoch, [])
        if not self.measuring or not commits or commits[-1].step != step:
            return None  # said again
        self._squares[self.copies[epoch].shard] = squares
        shards = sorted(self.copies[epoch].shard for epoch in self.unconfirmed)
        if any(shard not in self._squares for shard in shards):
            return None
        return sum(self._squares[shard] for shard in shards)

    def settle(self, terms: Sequence[float]) -> None:
        """The last step is to be applied on these terms."""
        self.measuring = False
        for commits in self.unconfirmed.values():
            commits[-1:] = [replace(commit, terms=terms, measure=0) for commit in commits[-1:] if commit.measure]

    def drop_measured(self) -> None:
        """The last step is not committed, if nobody has been told yet on which terms."""
        self.measuring = False
        for commits in self.unconfirmed.values():
            commits[:] = [commit for commit in commits if not commit.measure]

    def confirmed(self, epoch: int, before: int) -> None:
        """A leader has all steps before this one."""
        commits = self.unconfirmed.get(epoch, [])
        commits[:] = [commit for commit in commits if commit.step >= before]

    @property
    def settled(self) -> bool:
        """Whether every leader has said that it has all steps."""
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

    def move(self, old: int, heir: Replica) -> None:
        """A shard has another leader, which is to have what the old one has not confirmed."""
        self.copies.pop(old, None)
        self.copies[heir.epoch] = heir
        commits = self.unconfirmed.pop(old, [])
        self.unconfirmed[heir.epoch] = [replace(commit, epoch=heir.epoch) for commit in commits]

    def dump(self) -> dict[str, Plain]:
        """Return what is kept of them."""
        commits = {commit.step: commit for queue in self.unconfirmed.values() for commit in queue}
        kept: list[Plain] = [
            [
                step, [[who, list(attempts)] for who, attempts in c.contributors], list(c.terms), c.measure,
                c.examples, c.left_out,
            ]
            for step, c in sorted(commits.items())
        ]  # fmt: skip
        return {
            "commits": kept,
            "unconfirmed": [[epoch, [c.step for c in queue]] for epoch, queue in self.unconfirmed.items()],
        }

    def restore(self, kept: dict[str, Plain]) -> None:
        """Have what was kept, of the copies that there are."""
        commits = {entry[0]: commit_of(entry) for entry in kept["commits"]}
        for epoch, steps in kept["unconfirmed"]:
            if epoch in self.unconfirmed:
                self.unconfirmed[epoch] = [replace(commits[step], epoch=epoch) for step in steps]
        self.measuring = any(queue[-1].measure for queue in self.unconfirmed.values() if queue)


def commit_of(entry: Sequence[Any]) -> Commit:
    """Return a commit as it was kept (`Commits.dump`), of no epoch."""
    step, contributors, terms, measure, examples, left_out = entry
    brought = tuple((who, tuple(attempts)) for who, attempts in contributors)
    return Commit(0, step, brought, tuple(terms), measure, examples, left_out)
