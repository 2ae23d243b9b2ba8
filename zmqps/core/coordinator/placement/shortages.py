"""Which shards of a job lack backups: that follows from its copies; noted is only since when, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zmqps.core.coordinator.journal import KeptDict, Plain
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.errors import counted


@dataclass(slots=True)
class Shortage:
    """Since when a shard has fewer backups than it should, and why."""

    since: float
    why: str
    anywhere: bool = False  # it may get them on servers that lead shards


class Shortages:
    """The shards that have fewer whole copies than they should: a leader, and ``replicas`` backups."""

    def __init__(self, startup: Startup, replicas: int) -> None:
        self._startup = startup
        self.replicas = replicas
        self._noted: dict[int, Shortage] = KeptDict(lambda: self._startup.copies.changed())  # by shard

    def lacks(self, shard: int) -> bool:
        """Whether a shard has fewer whole copies than it should; one of them is its leader, or about to be."""
        whole = sum(copy.whole for copy in self._startup.copies if copy.shard == shard)
        return bool(self.replicas) and whole <= self.replicas

    def note(self, shard: int, why: str, now: float, *, anywhere: bool = False) -> None:
        """A shard has lost a copy: if it lacks one by that, note since when; it may have had more than it should."""
        if self.lacks(shard):
            before = self._noted.get(shard)
            self._noted[shard] = Shortage(now, why, anywhere) if before is None or anywhere else before

    def is_over(self, shard: int) -> bool:
        """Whether a shard did lack backups, and has them all again: said once."""
        return not self.lacks(shard) and self._noted.pop(shard, None) is not None

    def forget(self, shard: int) -> None:
        """No copy of a shard is left that counts."""
        self._noted.pop(shard, None)

    def begin(self, now: float) -> None:
        """The job can be trained, or has other shards: note where backups are missing from the start."""
        self._noted.clear()
        for shard, _, _ in self._startup.copies.leaders():
            self.note(shard, "there are too few servers", now)

    def __bool__(self) -> bool:
        """Whether any shard lacks backups."""
        return any(map(self.lacks, self._noted))

    def __iter__(self) -> Iterator[tuple[int, Shortage]]:
        """Yield the shards that lack backups, in their order, with what is noted of each."""
        return ((shard, self._noted[shard]) for shard in sorted(self._noted) if self.lacks(shard))

    def texts(self, now: float) -> Iterator[str]:
        """Yield which shards have too few backups, since when and why, and what one more loss would cost."""
        for shard, short in self:
            since = f"since {now - short.since:.0f} s ago ({short.why})"
            whole = [copy for copy in self._startup.copies if copy.shard == shard and copy.whole]
            filling = [copy.server.title for copy in self._startup.copies.backups(shard) if not copy.whole]
            soon = f"; {', '.join(filling)} is being filled" if filling else ""
            if len(whole) == 1:
                cost = f"if {whole[0].server.title} were lost, its values would be lost, too"
            else:
                cost = f"{counted(max(0, len(whole) - 1), 'more loss')} would cost nothing"
            has = counted(sum(copy.backup for copy in whole), "backup")
            yield f"shard {shard} has {has} of {self.replicas} {since}: {cost}{soon}"

    def dump(self) -> Plain:
        """Return what is kept of them."""
        return [[shard, short.since, short.why, short.anywhere] for shard, short in sorted(self._noted.items())]

    def restore(self, kept: Plain, now: float) -> None:
        """Restore the journaled state; times are clamped, as the clock may have started again since."""
        self._noted.update({shard: Shortage(min(since, now), why, where) for shard, since, why, where in kept})

    def validate(self) -> None:
        """Assert that every shortage noted still has a cause."""
        assert all(map(self.lacks, self._noted)), "a shard is noted that has all its backups"
