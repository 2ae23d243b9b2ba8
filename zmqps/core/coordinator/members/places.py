"""The places of a job's workers: how many it expects, who has one, and what those ask for who wait for one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.attendance import Attendance, unnamed
from zmqps.core.coordinator.members.losses import Losses
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.members.spares import Kept, Spares, waiting_for
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import HeartbeatAck, Waiting
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import PSError

if TYPE_CHECKING:
    from zmqps.core.coordinator.placement.startup import Startup


class Places:
    """Who takes part in a job, and who is missed if it is lost."""

    def __init__(
        self,
        startup: Startup,
        members: Mapping[bytes, MemberInfo],
        workers: Roster,
        dismiss: Callable[[MemberInfo, PSError], list[Action]],
        changed: Changed = nothing,
    ) -> None:
        self.attendance = Attendance(changed)
        self.spares = Spares(members)
        self.losses = Losses()
        self._startup = startup
        self._members = members
        self._workers = workers
        self._dismiss = dismiss  # lets what a worker waits for fail that counts no more
        self._changed = changed
        self.chief: MemberInfo | None = None  # the worker that was told that it is the chief
        self._all_joined = 0  # the largest number of workers that was expected and came
        self._missed: set[bytes] = set()  # workers that count and have begun: if lost, the job has lost a worker

    @property
    def expected(self) -> int | None:
        """How many workers the job expects; None: whoever comes."""
        job = self._startup.job
        return self._startup.options.workers if job is None or job.workers is None else job.workers

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: as many as expected, less those who were lost, or as many as are here."""
        if (expected := self.expected) is None:
            return len(self._workers)
        return max(expected - len(self.losses), len(self.attendance))

    @property
    def num_missing(self) -> int:
        """How many of the expected workers do not count yet; none, once all did."""
        expected = self.expected or 0
        return 0 if expected <= self._all_joined else max(0, expected - self.attendance.num_joined)

    @property
    def awaited(self) -> Roster | Attendance:
        """Whom barriers wait for: who counts or, where whoever comes trains, all workers that are here."""
        return self._workers if self.expected is None else self.attendance

    def counts(self, member: MemberInfo) -> bool:
        """Whether others wait for a worker, and it is missed if it is lost."""
        return self.expected is None or member.incarnation in self.attendance

    def lasts(self, member: MemberInfo) -> bool:
        """Whether what a member says of the data goes for others: it is one of those the job is for."""
        return member.telling.named if self.expected is None else member.incarnation in self.attendance

    def count(self, member: MemberInfo, named: bool, first: bool) -> list[Action]:
        """Count a worker that names the job, if there is a place; one that takes it as it is, if whoever comes counts.

        Whoever is the first to name it has begun another job than those that could not be started, for which
        others may have been counted.
        """
        actions = self._begin_anew() if first else []
        if named and self.attendance.name(member, self.expected):
            if self.expected is not None:
                self._workers.promote(member, self.expected, self.attendance.here)
        elif self.expected is None:
            self.attendance.count(member)
        elif named and member.role == "worker":
            text = f"{member.title} is a spare: job {self._startup.name!r} has the workers that it expects"
            actions.append(Log("info", text, job=self._startup.name, peer=member.hello.name))
        return actions

    def _begin_anew(self) -> list[Action]:
        for member in self._members.values():
            member.telling.named = False
        if self.expected is None:
            return []
        error, everybody = unnamed(self._startup.name, self.expected), list(self.attendance)
        self.attendance.begin_anew()
        self._all_joined = 0
        told = self.spares.fail(error)
        for member in everybody:
            told += self._dismiss(member, error)
        return told

    def find_chief(self) -> MemberInfo | None:
        """Return the worker that does for its job what only one is to do: the one with the lowest rank that counts.

        While some have yet to come for the first time, it can only be that with rank 0.
        """
        first = next(iter(self._workers), None)  # by rank; nobody looks at all for each that comes, if it counts
        if first is None or first.incarnation not in self.attendance:
            first = min(self.attendance, key=lambda member: member.rank, default=None)
        return None if first is None or (first.rank and self.num_missing) else first

    def name_chief(self, acknowledge: Callable[[MemberInfo], HeartbeatAck]) -> list[Action]:
        """Tell a new chief that it is that, and the old one, if it is here, that it is that no more."""
        before, self.chief = self.chief, self.find_chief()
        if self.chief is before:
            return []
        told = [member for member in (before, self.chief) if member is not None and member.incarnation in self._members]
        actions: list[Action] = [Send(member.peer, acknowledge(member)) for member in told]
        if before is not None and self.chief is not None:
            text = f"{self.chief.title} is the chief of job {self._startup.name!r} now, in the place of {before.title}"
            actions.append(Log("info", text, job=self._startup.name, peer=self.chief.hello.name))
        return actions

    def note_joined(self) -> None:
        """Somebody has come or gone: perhaps all who are expected have come."""
        expected = self.expected or 0
        if self.attendance.num_joined >= expected > self._all_joined:
            self._all_joined = expected
            self._changed()

    def begin(self, member: MemberInfo) -> None:
        """A worker begins to train: one that counts is missed from now on."""
        if self.counts(member):
            self._miss(member, len(self.attendance))

    def _miss(self, member: MemberInfo, num_counted: int) -> None:
        """A worker is missed from now on if it is lost; ``num_counted``: how many have places."""
        if member.incarnation not in self._missed:  # who was expected anyway comes in nobody's place
            places = None if self.expected is None else self.expected - num_counted
            self.losses.began(member, by_rank=(self.expected or 0) <= self._all_joined, places=places)
            self._missed.add(member.incarnation)
            self._changed()

    def leave(self, member: MemberInfo, how: DepartureCause) -> None:
        """A member has gone."""
        if member.incarnation in self._missed:
            self.losses.left(member, how)
            self._missed.remove(member.incarnation)
        self.attendance.leave(member, how)
        self.spares.take(member)

    def keep(self, member: MemberInfo, message: Kept) -> list[Action] | None:
        """Return None for a worker that takes part; keep what a spare asks for, and refuse others.

        Raises `JobError`: so many workers are expected, and this one has not named the job.
        """
        expected = self.expected
        if expected is None or (self._startup.job is None and len(self.attendance) < expected):
            self.attendance.count(member)  # where there is no job yet: until somebody names one
        if expected is None or member.incarnation in self.attendance:
            return None
        if member.incarnation not in self.attendance.spares:
            raise unnamed(self._startup.name, expected)
        self.spares.keep(member, message)
        return [Send(member.peer, Waiting(message.request, waiting_for(expected)))]

    def fill(self, training: Collection[bytes]) -> list[MemberInfo]:
        """Let spares take the places that are free, and return them; ``training``: who has begun, by incarnation."""
        filled = self.attendance.fill(self.expected)
        for num_counted, member in enumerate(filled, len(self.attendance) - len(filled) + 1):
            if member.incarnation in training:
                self._miss(member, num_counted)
        return filled

    def dump(self) -> Plain:
        """Return what is kept of them; what spares ask for they ask again."""
        named = sorted(who for who, member in self._members.items() if member.telling.named)
        return [self.attendance.dump(), self.losses.dump(), self._all_joined, sorted(self._missed), named]

    def restore(self, kept: Plain) -> None:
        """Be what was kept."""
        attendance, losses, self._all_joined, missed, named = kept
        self.attendance.restore(attendance, self._members)
        self.losses.restore(losses)
        self._missed = set(missed)
        for who in named:
            self._members[who].telling.named = True

    def validate(self, training: Collection[bytes]) -> None:
        """Assert that who is counted is here, and only who has begun is missed."""
        self.spares.validate(self.attendance.spares)
        assert set(self.attendance.here) <= set(self._members)
        assert self.chief is None or self.chief.incarnation in self.attendance
        assert not set(self.attendance.here) & set(self.attendance.spares)
        assert self._missed <= set(training)
