"""Which workers of a job count: as many as it expects, of those that have named it; else whoever comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import MAX_MEMBERS, MemberInfo
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import JobError, counted


class Attendance:
    """The workers of a job that count: towards those it expects, and as whom others wait for.

    Joining is not enough. Where a number of workers is expected, a worker counts when its ``init`` names the job and
    there is a place: as many as are expected have one, and keep it until they go. Others that name it are *spares*,
    which take the places of those who go, in the order in which they came. Taking the job as it is gives no claim:
    anybody can do that. Where no number is expected, a worker counts when it takes the job, completes a step, enters a
    barrier or takes a range of data.
    """

    def __init__(self, changed: Changed = nothing) -> None:
        self._changed = changed
        self.here: dict[bytes, MemberInfo] = {}
        self.spares: dict[bytes, MemberInfo] = {}
        self.num_finished = 0
        self._names: set[str] = set()  # of all who ever counted

    def __len__(self) -> int:
        return len(self.here)

    def __iter__(self) -> Iterator[MemberInfo]:
        """Yield those who count, in the order in which they came to."""
        return iter(self.here.values())

    def __contains__(self, incarnation: bytes) -> bool:
        return incarnation in self.here

    @property
    def num_joined(self) -> int:
        """How many have counted so far: one that is restarted under its name is not counted twice.

        Those that all have the same name are counted while they are here, and when they have finished.
        """
        return max(len(self._names), len(self) + self.num_finished)

    def name(self, member: MemberInfo, places: int | None) -> bool:
        """A worker has named the job; return whether it counts. ``places``: how many may; None: whoever comes."""
        if member.role != "worker":
            return False
        member.telling.named = True
        if member.incarnation not in self.here and places is not None and len(self.here) >= places:
            self.spares[member.incarnation] = member
            self._changed()
            return False
        self.count(member)
        return True

    def count(self, member: MemberInfo) -> None:
        """A member counts from now on, if it is a worker."""
        if member.role == "worker":
            if member.incarnation not in self.here:
                self._changed()
            self.spares.pop(member.incarnation, None)
            self.here[member.incarnation] = member
            if len(self._names) < MAX_MEMBERS:
                self._names.add(member.hello.name)

    def fill(self, places: int | None) -> list[MemberInfo]:
        """Let spares count for whom there is a place now, and return them."""
        filled = []
        while self.spares and (places is None or len(self.here) < places):
            member = next(iter(self.spares.values()))
            self.count(member)
            filled.append(member)
        return filled

    def succeed(self, before: MemberInfo, member: MemberInfo) -> None:
        """A worker has come in the place of one that is about to go: it counts as that one does, and is no spare."""
        if before.incarnation in self.here:
            self.count(member)

    def leave(self, member: MemberInfo, how: DepartureCause) -> None:
        """A member has gone."""
        self.spares.pop(member.incarnation, None)
        if self.here.pop(member.incarnation, None) is not None:
            self.num_finished += how == DepartureCause.FINISHED

    def begin_anew(self) -> None:
        """Another job has this name now: nobody counts yet."""
        self.here.clear()
        self.spares.clear()
        self._names.clear()
        self.num_finished = 0

    def dump(self) -> Plain:
        """Return what is kept of it."""
        return [[*self.here], [*self.spares], sorted(self._names), self.num_finished]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> None:
        """Be what was kept."""
        here, spares, names, self.num_finished = kept
        self.here = {who: members[who] for who in here}
        self.spares = {who: members[who] for who in spares}
        self._names = set(names)


def unnamed(job: str, expected: int) -> JobError:
    """Return the error of a worker that wants to take part in a job that it has not named."""
    workers = counted(expected, "worker")
    return JobError(f"the job {job!r} expects {workers}, and counts those that name it: call worker.init(...) first")
