"""The places of a job's workers: the expected number, the workers with a place, and requests of waiting spares."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import MAX_MEMBERS, MemberInfo, Roster
from zmqps.core.coordinator.training.waits import Waiter
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Action, Exit, Log, Send
from zmqps.core.protocol.messages import Arrive, Enter, HeartbeatAck, Take, Waiting
from zmqps.core.protocol.messages.hello import check_name
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import JobError, LimitError, PSError, counted, listed

if TYPE_CHECKING:
    from zmqps.core.coordinator.placement.startup import Startup
#: How a job ends when its workers are done.
FINISHED = "its workers have finished"
ASKED = "ended by zmqps jobs end"
DOWN = "ended by zmqps down"
#: The departures after which members may come back.
BROKEN_OFF = (DepartureCause.LOST, DepartureCause.RESTARTED)
#: The most lost workers to name.
MOST_NAMED = 3
#: The text about them is bounded, because the status has it for each ended job.
MAX_CHARS = 600
#: A worker completes one step at a time, and waits at a few barriers and for ranges of a few data sets.
MAX_KEPT = 32

PlaceRequest = Arrive | Enter | Take


class Attendance:
    """The workers of a job that count: towards the expected number, and as awaited by others.

    Joining is not enough. If a number of workers is expected, a worker counts when its ``init`` names the job and there
    is a place: there are as many places as expected workers, kept until they leave. Others that name it are *spares*,
    which take free places in the order in which they joined. Taking the job as it is gives no claim: any process can do
    that. If no number is expected, a worker counts when it takes the job, completes a step, enters a barrier or takes a
    range of data.
    """

    def __init__(self, changed: Changed = nothing) -> None:
        self._changed = changed
        self.here: dict[bytes, MemberInfo] = {}
        self.spares: dict[bytes, MemberInfo] = {}
        self.num_finished = 0
        self._names: set[str] = set()  # of all that ever counted

    def __len__(self) -> int:
        return len(self.here)

    def __iter__(self) -> Iterator[MemberInfo]:
        """Yield those that count, in the order in which they began to."""
        return iter(self.here.values())

    def __contains__(self, incarnation: bytes) -> bool:
        return incarnation in self.here

    @property
    def num_joined(self) -> int:
        """The number of workers that have counted so far: a restarted one of the same name is not counted twice.

        Workers that all have the same name are counted while they are here, and when they have finished.
        """
        return max(len(self._names), len(self) + self.num_finished)

    def name(self, member: MemberInfo, places: int | None) -> bool:
        """A worker has named the job; return whether it counts. ``places``: how many may; None: any."""
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
        """Let spares count for which there is a place now, and return them."""
        filled = []
        while self.spares and (places is None or len(self.here) < places):
            member = next(iter(self.spares.values()))
            self.count(member)
            filled.append(member)
        return filled

    def succeed(self, before: MemberInfo, member: MemberInfo) -> None:
        """A worker replaces one that is about to leave: it counts as that one does, and is not a spare."""
        if before.incarnation in self.here:
            self.count(member)

    def leave(self, member: MemberInfo, how: DepartureCause) -> None:
        self.spares.pop(member.incarnation, None)
        if self.here.pop(member.incarnation, None) is not None:
            self.num_finished += how == DepartureCause.FINISHED

    def begin_anew(self) -> None:
        """Another job has this name now: no worker counts yet."""
        self.here.clear()
        self.spares.clear()
        self._names.clear()
        self.num_finished = 0

    def dump(self) -> Plain:
        return [[*self.here], [*self.spares], sorted(self._names), self.num_finished]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> None:
        here, spares, names, self.num_finished = kept
        self.here = {who: members[who] for who in here}
        self.spares = {who: members[who] for who in spares}
        self._names = set(names)


def unnamed(job: str, expected: int) -> JobError:
    """Return the error of a worker that takes part in a job that it has not named."""
    workers = counted(expected, "worker")
    return JobError(f"the job {job!r} expects {workers}, and counts those that name it: call worker.init(...) first")


class Losses:
    """The lost workers of a job that were not replaced; those of one name are one worker."""

    def __init__(self) -> None:
        self._lost: OrderedDict[str, tuple[int, str, bool]] = OrderedDict()  # name -> rank, title, has a claim
        self._here: Counter[str] = Counter()  # the training ones, by name
        self._finished: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lost)

    def began(self, worker: MemberInfo, *, by_rank: bool, places: int | None = None) -> None:
        """A worker begins: by its name it is a lost one, or it takes the place of one, by its rank.

        If this many ``places`` are empty, at most that many are missing: it replaces one. Not if it is the restart of a
        worker that is not lost yet: that one will not be missed, but the one whose place it has is.
        """
        name = worker.hello.name
        self._here[name] += 1
        if self._lost.pop(name, None) is not None or self._here[name] > 1:
            return  # it was, or is yet to be, lost
        same = [lost for lost, (rank, _, _) in self._lost.items() if rank == worker.rank] if by_rank else []
        if same:
            del self._lost[same[0]]
        elif places is not None and len(self._lost) > places:
            self._lost.popitem()

    def left(self, worker: MemberInfo, how: DepartureCause) -> None:
        """A worker that had begun has departed; a restarted one of its name may be there already."""
        name = worker.hello.name
        self._here[name] -= 1
        if how == DepartureCause.FINISHED:
            self._finished[name] = None
        elif how in BROKEN_OFF and not self._here[name] and name not in self._finished:
            self._lost[name] = worker.rank, worker.title, bool(worker.hello.claim)
        if not self._here[name]:
            del self._here[name]
        for names in (self._lost, self._finished):
            if len(names) > MAX_MEMBERS:
                names.popitem(last=False)

    def dump(self) -> Plain:
        lost = [[name, *facts] for name, facts in self._lost.items()]
        return [lost, dict(self._here), list(self._finished)]

    def restore(self, kept: Plain) -> None:
        lost, here, finished = kept
        self._lost = OrderedDict((name, (rank, title, has_claim)) for name, rank, title, has_claim in lost)
        self._here = Counter(here)
        self._finished = OrderedDict.fromkeys(finished)

    @property
    def to_return(self) -> bool:
        """Whether one of them may be restarted by its supervisor: then its loss does not end the job."""
        return any(has_claim for _, _, has_claim in self._lost.values())

    @property
    def text(self) -> str:
        """The lost workers, in words; empty if there are none."""
        if not self._lost:
            return ""
        titles = [title for _, title, _ in self._lost.values()]
        were = "was" if len(titles) == 1 else "were"
        return f"{listed(titles, MOST_NAMED)[:MAX_CHARS]} {were} lost, and none came instead"

    @property
    def outcome(self) -> str:
        """How a job has ended whose workers are done."""
        return f"{FINISHED}, but {self.text}" if self._lost else FINISHED


def end_of_cluster(how: str, losses: Losses, lost_shard: PSError | None) -> Exit:
    """Return how a cluster ends that was started for one job, which has ended; ``how`` is how."""
    if lost_shard is not None:
        return Exit(exits.FAILED, f"the job has failed: {lost_shard}")
    if how.startswith(FINISHED) and losses:
        return Exit(exits.WORKERS_FAILED, f"the job is finished, but {losses.text}: its part of the data may be unused")
    if how.startswith(FINISHED):
        return Exit(exits.OK, "the job is finished")
    return Exit(exits.OK if how == ASKED else exits.IDLE, f"the job has ended: {how}")


class Spares(dict[bytes, dict[int, PlaceRequest]]):
    """Requests of workers without a place: by incarnation and request, in order of arrival."""

    def __init__(self, members: Mapping[bytes, MemberInfo]) -> None:
        super().__init__()
        self._members = members

    def keep(self, member: MemberInfo, message: PlaceRequest) -> None:
        """Store a request; of completed steps the last one counts.

        Raises `LimitError`: there are too many; `ProtocolError`: it would also be refused from a worker that counts.
        """
        if isinstance(message, Enter):
            check_name("a barrier's name", message.barrier)
        kept = self.get(member.incarnation, {})
        others = {n: m for n, m in kept.items() if n != message.request and not (_arrives(m) and _arrives(message))}
        if len(others) >= MAX_KEPT:
            raise LimitError(what="number of requests of a spare worker", got=len(others) + 1, limit=MAX_KEPT)
        self[member.incarnation] = {**others, message.request: message}

    def take(self, member: MemberInfo) -> list[PlaceRequest]:
        """Return and remove the requests of a worker that counts now, or has departed."""
        return list(self.pop(member.incarnation, {}).values())

    def withdraw(self, member: MemberInfo, request: int) -> None:
        """A worker no longer waits for a request."""
        kept = self.get(member.incarnation, {})
        if kept.pop(request, None) is not None and not kept:
            del self[member.incarnation]

    def fail(self, error: PSError, *, arrivals_only: bool = False) -> list[Action]:
        """Answer stored requests, or only completed steps, by an error."""
        actions: list[Action] = []
        for who, kept in list(self.items()):
            for request, message in list(kept.items()):
                if not arrivals_only or _arrives(message):
                    self.withdraw(self._members[who], request)
                    actions.append(self._members[who].fail(request, error))
        return actions

    def go_back(self) -> None:
        """Completed steps are lost; workers that had requested the next one ask again."""
        for who, kept in list(self.items()):
            for request in [request for request, message in kept.items() if _arrives(message)]:
                self.withdraw(self._members[who], request)

    def waiters(self, expected: int) -> Iterator[Waiter]:
        """Yield the waiting workers, with the request, and a function that says what it waits for."""
        text = waiting_for(expected)

        def say() -> str:
            return text

        for who, kept in self.items():
            for request in kept:
                yield self._members[who], request, say

    def validate(self, spares: Mapping[bytes, MemberInfo]) -> None:
        """Assert that they are spares, and that no entry is empty."""
        assert set(self) <= set(spares) <= set(self._members)
        assert all(kept and len(kept) <= MAX_KEPT for kept in self.values())


def waiting_for(expected: int) -> str:
    """Return what a spare waits for."""
    return f"a place among the {counted(expected, 'worker')} that the job expects: it is a spare"


def _arrives(message: PlaceRequest) -> bool:
    return isinstance(message, Arrive)


class Occupancy:
    """The activity of one job's members."""

    def __init__(
        self, name: str, before: str, members: Mapping[bytes, MemberInfo], workers: Roster, lease: float
    ) -> None:
        self.training: set[bytes] = set()  # workers that have begun
        self.idle_since: float | None = None  # since when it has no members
        self.is_closing = False  # it ends once it is saved once more: its members need not come back in time
        self._name = name
        self._before = before  # how the previous job of this name has ended; empty: there was none
        self._members = members
        self._workers = workers
        self._lease = lease  # seconds that a job is kept without members; 0: forever
        self._left_alone = False  # its workers have left, and no other one has begun since
        self._returned: set[bytes] = set()  # workers that joined it then and have not begun yet

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
        """A member has departed; ``ready``: the job can be trained."""
        self._returned.discard(member.incarnation)
        if not self._members:
            self.idle_since = now
        trained = member.incarnation in self.training
        self.training.discard(member.incarnation)
        if ready and not self.training and (trained or not len(self._workers)):
            self._left_alone = True  # workers already here, as in a notebook's next cell, count as returned, too
            self._returned |= {worker.incarnation for worker in self._workers}

    @property
    def is_abandoned(self) -> bool:
        """Whether its workers have left, without any member that looks at what they trained, or trains it again."""
        return self._left_alone and self._returned == set(self._members)

    @property
    def ends_at(self) -> float | None:
        """When a job without members ends."""
        if self.idle_since is None or self.is_closing or not self._lease:
            return None
        return self.idle_since + self._lease

    def note(self, member: MemberInfo, owner: str) -> str:
        """Return the note for a member whose values may not be those its user expects; else nothing."""
        name = self._name
        if member.incarnation in self._returned:
            return (
                f"the job {name!r} continues with what was trained before its workers left, not with new initial "
                f"values; to start from scratch: worker.finish() at its end, or zmqps jobs end {name}"
            )
        if self._before and member.title == owner:
            return f"the job {name!r} starts again from the initial values given; the one before: {self._before}"
        return ""

    def dump(self) -> Plain:
        idle = self.idle_since is not None
        return [sorted(self.training), sorted(self._returned), self._left_alone, self._before, idle]

    def restore(self, kept: Plain, now: float) -> None:
        """Restore the journaled state; the lease of a job without members starts again."""
        training, returned, self._left_alone, self._before, idle = kept
        self.training, self._returned = set(training), set(returned)
        self.idle_since = now if idle else None

    def validate(self) -> None:
        assert self._returned | self.training <= set(self._members)


class Places:
    """The members that take part in a job, and those that are missed if lost."""

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
        self._dismiss = dismiss  # fails the waits of a worker that does not count any more
        self._changed = changed
        self.chief: MemberInfo | None = None  # the worker informed that it is the chief
        self._all_joined = 0  # the largest expected number of workers that joined
        self._missed: set[bytes] = set()  # workers that count and have begun: if one is lost, the job has lost a worker

    @property
    def expected(self) -> int | None:
        """The expected number of workers; None: any."""
        job = self._startup.job
        return self._startup.options.workers if job is None or job.workers is None else job.workers

    @property
    def num_workers(self) -> int:
        """The number of workers the job counts on: the expected ones without those lost, or the present ones."""
        if (expected := self.expected) is None:
            return len(self._workers)
        return max(expected - len(self.losses), len(self.attendance))

    @property
    def num_missing(self) -> int:
        """The number of expected workers that do not count yet; none, once all did."""
        expected = self.expected or 0
        return 0 if expected <= self._all_joined else max(0, expected - self.attendance.num_joined)

    @property
    def awaited(self) -> Roster | Attendance:
        """The workers that barriers wait for: those that count or, if any may train, all workers that are here."""
        return self._workers if self.expected is None else self.attendance

    def counts(self, member: MemberInfo) -> bool:
        """Whether others wait for a worker, and it is missed if it is lost."""
        return self.expected is None or member.incarnation in self.attendance

    def lasts(self, member: MemberInfo) -> bool:
        """Whether a member's description of the data is binding for others: it is one of the job's workers."""
        return member.telling.named if self.expected is None else member.incarnation in self.attendance

    def count(self, member: MemberInfo, named: bool, first: bool) -> list[Action]:
        """Count a worker that names the job, if there is a place; one that takes it as it is, if any may count.

        The first worker to name it has begun another job than those that could not be started, for which others may
        have been counted.
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
        """Return the chief of the job: the counting worker with the lowest rank.

        While some have yet to join for the first time, it can only be that with rank 0.
        """
        first = next(iter(self._workers), None)  # by rank; not all are examined for each joining worker
        if first is None or first.incarnation not in self.attendance:
            first = min(self.attendance, key=lambda member: member.rank, default=None)
        return None if first is None or (first.rank and self.num_missing) else first

    def name_chief(self, acknowledge: Callable[[MemberInfo], HeartbeatAck]) -> list[Action]:
        """Inform the new chief, and the old one, if it is here."""
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
        """A member has joined or left: perhaps all expected ones have joined."""
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
        if member.incarnation not in self._missed:  # an expected one replaces no other
            places = None if self.expected is None else self.expected - num_counted
            self.losses.began(member, by_rank=(self.expected or 0) <= self._all_joined, places=places)
            self._missed.add(member.incarnation)
            self._changed()

    def leave(self, member: MemberInfo, how: DepartureCause) -> None:
        if member.incarnation in self._missed:
            self.losses.left(member, how)
            self._missed.remove(member.incarnation)
        self.attendance.leave(member, how)
        self.spares.take(member)

    def keep(self, member: MemberInfo, message: PlaceRequest) -> list[Action] | None:
        """Return None for a worker that takes part; store a spare's request, and refuse others.

        Raises `JobError`: a number of workers is expected, and this one has not named the job.
        """
        expected = self.expected
        if expected is None or (self._startup.job is None and len(self.attendance) < expected):
            self.attendance.count(member)  # if there is no job yet: until one is named
        if expected is None or member.incarnation in self.attendance:
            return None
        if member.incarnation not in self.attendance.spares:
            raise unnamed(self._startup.name, expected)
        self.spares.keep(member, message)
        return [Send(member.peer, Waiting(message.request, waiting_for(expected)))]

    def fill(self, training: Collection[bytes]) -> list[MemberInfo]:
        """Let spares take free places, and return them; ``training``: workers that have begun, by incarnation."""
        filled = self.attendance.fill(self.expected)
        for num_counted, member in enumerate(filled, len(self.attendance) - len(filled) + 1):
            if member.incarnation in training:
                self._miss(member, num_counted)
        return filled

    def dump(self) -> Plain:
        """Return the journaled state; spares repeat their requests."""
        named = sorted(who for who, member in self._members.items() if member.telling.named)
        return [self.attendance.dump(), self.losses.dump(), self._all_joined, sorted(self._missed), named]

    def restore(self, kept: Plain) -> None:
        attendance, losses, self._all_joined, missed, named = kept
        self.attendance.restore(attendance, self._members)
        self.losses.restore(losses)
        self._missed = set(missed)
        for who in named:
            self._members[who].telling.named = True

    def validate(self, training: Collection[bytes]) -> None:
        """Assert that counted workers are here, and that only workers that have begun are missed."""
        self.spares.validate(self.attendance.spares)
        assert set(self.attendance.here) <= set(self._members)
        assert self.chief is None or self.chief.incarnation in self.attendance
        assert not set(self.attendance.here) & set(self.attendance.spares)
        assert self._missed <= set(training)
