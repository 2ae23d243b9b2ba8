"""Which workers of a job count: those that have named it, or have brought something."""

from __future__ import annotations

from collections.abc import Iterator

from zmqps.core.coordinator.membership import MAX_MEMBERS, MemberInfo


class Attendance:
    """The workers of a job that count towards those it expects.

    Joining is not enough, nor, where a number of workers is expected, is taking the job as it is, as one does that only
    reads: anybody can do that. A worker counts when its ``init`` names the job, or it completes a step, enters a
    barrier or takes a range of data.
    """

    def __init__(self) -> None:
        self.here: dict[bytes, MemberInfo] = {}
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

    def count(self, member: MemberInfo) -> None:
        """A member counts from now on, if it is a worker."""
        if member.role == "worker":
            self.here[member.incarnation] = member
            if len(self._names) < MAX_MEMBERS:
                self._names.add(member.hello.name)

    def leave(self, member: MemberInfo, how: str) -> None:
        """A member has gone."""
        if self.here.pop(member.incarnation, None) is not None:
            self.num_finished += how == "finished"
