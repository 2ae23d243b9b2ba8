"""Who trains a job, who came to it after its workers had left, and since when nobody is there."""

from __future__ import annotations

from collections.abc import Mapping

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import MemberInfo, Roster


class Occupancy:
    """Of one job, what its members have begun."""

    def __init__(
        self, name: str, before: str, members: Mapping[bytes, MemberInfo], workers: Roster, lease: float
    ) -> None:
        self.training: set[bytes] = set()  # workers that have begun
        self.idle_since: float | None = None  # since when nobody is there
        self.is_closing = False  # it ends once it is saved once more: nobody has to come back in time
        self._name = name
        self._before = before  # how the job that had this name before has ended; empty: there was none
        self._members = members
        self._workers = workers
        self._lease = lease  # seconds that a job is kept without anybody there; 0: for ever
        self._left_alone = False  # its workers have gone, and no other one has begun since
        self._returned: set[bytes] = set()  # workers that came to it then and have not begun yet

    def come(self, member: MemberInfo) -> None:
        if self._left_alone and member.role == "worker":
            self._returned.add(member.incarnation)
        self.idle_since = None

    def begin(self, member: MemberInfo) -> None:
        """A worker begins to train."""
        self.training.add(member.incarnation)
        self._returned.discard(member.incarnation)
        self._left_alone = False

    def go(self, member: MemberInfo, now: float, *, ready: bool) -> None:
        """Somebody has gone, and is no member any more; ``ready``: the job can be trained."""
        self._returned.discard(member.incarnation)
        if not self._members:
            self.idle_since = now
        trained = member.incarnation in self.training
        self.training.discard(member.incarnation)
        if ready and not self.training and (trained or not len(self._workers)):
            self._left_alone = True  # who is there already, as in a notebook's next cell, has come to it, too
            self._returned |= {worker.incarnation for worker in self._workers}

    @property
    def is_abandoned(self) -> bool:
        """Whether its workers have gone, and nobody is there who looks at what they trained, or trains it again."""
        return self._left_alone and self._returned == set(self._members)

    @property
    def ends_at(self) -> float | None:
        """When nobody has been there for so long that the job is not kept any more."""
        if self.idle_since is None or self.is_closing or not self._lease:
            return None
        return self.idle_since + self._lease

    def note(self, member: MemberInfo, owner: str) -> str:
        """Return what a member is told whose values are not those that its user may expect; else nothing."""
        name = self._name
        if member.incarnation in self._returned:
            return (
                f"the job {name!r} goes on with what was trained before its workers left, not with new initial "
                f"values; to begin anew: worker.finish() at its end, or zmqps jobs end {name}"
            )
        if self._before and member.title == owner:
            return f"the job {name!r} begins anew from the initial values given; the one before: {self._before}"
        return ""

    def dump(self) -> Plain:
        idle = self.idle_since is not None
        return [sorted(self.training), sorted(self._returned), self._left_alone, self._before, idle]

    def restore(self, kept: Plain, now: float) -> None:
        """Be what was kept; the lease of a job that nobody is there for begins again."""
        training, returned, self._left_alone, self._before, idle = kept
        self.training, self._returned = set(training), set(returned)
        self.idle_since = now if idle else None

    def validate(self) -> None:
        assert self._returned | self.training <= set(self._members)
