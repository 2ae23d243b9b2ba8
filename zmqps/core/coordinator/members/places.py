"""The places of a job's workers: how many it expects, who has one, and what those ask for who wait for one."""

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
#: How a job ends whose workers are done.
FINISHED = "its workers have finished"
ASKED = "ended by zmqps jobs end"
DOWN = "ended by zmqps down"
#: How those have gone who may come back.
BROKEN_OFF = (DepartureCause.LOST, DepartureCause.RESTARTED)
#: Of those who were lost so many are named.
MOST_NAMED = 3
#: What is said of them has a bound, for the status tells it of each job that has ended.
MAX_CHARS = 600
#: A worker completes one step at a time, and waits at a few barriers and for ranges of a few data sets.
MAX_KEPT = 32

PlaceRequest = Arrive | Enter | Take


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
        return [[*self.here], [*self.spares], sorted(self._names), self.num_finished]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> None:
        here, spares, names, self.num_finished = kept
        self.here = {who: members[who] for who in here}
        self.spares = {who: members[who] for who in spares}
        self._names = set(names)


def unnamed(job: str, expected: int) -> JobError:
    """Return the error of a worker that wants to take part in a job that it has not named."""
    workers = counted(expected, "worker")
    return JobError(f"the job {job!r} expects {workers}, and counts those that name it: call worker.init(...) first")


class Losses:
    """The workers of a job that were lost, and in whose place nobody has come; those of one name are one worker."""

    def __init__(self) -> None:
        self._lost: OrderedDict[str, tuple[int, str, bool]] = OrderedDict()  # name -> rank, title, has a claim
        self._here: Counter[str] = Counter()  # those who train, by name
        self._finished: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lost)

    def began(self, worker: MemberInfo, *, by_rank: bool, places: int | None = None) -> None:
        """A worker begins: it is one that was lost, by its name, or takes the place of one, by its rank.

        Where so many ``places`` are left empty, no more than so many are missed: it has come instead of one. Not so if
        it is the restart of a worker that is not lost yet: that one will not be missed, but whose place it has is.
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
        """A worker that had begun has gone; one that was restarted under its name before it was lost is there."""
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
        """Whether one of them is started again by its supervisor, perhaps: that it is lost is no end of the job."""
        return any(has_claim for _, _, has_claim in self._lost.values())

    @property
    def text(self) -> str:
        """Who was lost, in words; empty if nobody was."""
        if not self._lost:
            return ""
        titles = [title for _, title, _ in self._lost.values()]
        were = "was" if len(titles) == 1 else "were"
        return f"{listed(titles, MOST_NAMED)[:MAX_CHARS]} {were} lost, and nobody came instead"

    @property
    def outcome(self) -> str:
        """How a job has ended whose workers are done."""
        return f"{FINISHED}, but {self.text}" if self._lost else FINISHED


def end_of_cluster(how: str, losses: Losses, lost_shard: PSError | None) -> Exit:
    """Return how a cluster ends that was there for one job, which has ended; ``how`` is how."""
    if lost_shard is not None:
        return Exit(exits.FAILED, f"the job has failed: {lost_shard}")
    if how.startswith(FINISHED) and losses:
        return Exit(exits.WORKERS_FAILED, f"the job is finished, but {losses.text}: its part of the data may be unused")
    if how.startswith(FINISHED):
        return Exit(exits.OK, "the job is finished")
    return Exit(exits.OK if how == ASKED else exits.IDLE, f"the job has ended: {how}")


class Spares(dict[bytes, dict[int, PlaceRequest]]):
    """Requests of workers for which a job has no place yet: by incarnation and request, in the order they came."""

    def __init__(self, members: Mapping[bytes, MemberInfo]) -> None:
        super().__init__()
        self._members = members

    def keep(self, member: MemberInfo, message: PlaceRequest) -> None:
        """Keep a request; of steps that are completed the last one counts.

        Raises `LimitError`: these are too many; `ProtocolError`: it would be refused of a worker that
        counts, too.
        """
        if isinstance(message, Enter):
            check_name("a barrier's name", message.barrier)
        kept = self.get(member.incarnation, {})
        others = {n: m for n, m in kept.items() if n != message.request and not (_arrives(m) and _arrives(message))}
        if len(others) >= MAX_KEPT:
            raise LimitError(what="number of requests of a spare worker", got=len(others) + 1, limit=MAX_KEPT)
        self[member.incarnation] = {**others, message.request: message}

    def take(self, member: MemberInfo) -> list[PlaceRequest]:
        """Return what a worker has asked for that counts now, or has gone, and forget it."""
        return list(self.pop(member.incarnation, {}).values())

    def withdraw(self, member: MemberInfo, request: int) -> None:
        """A worker no longer waits for a request."""
        kept = self.get(member.incarnation, {})
        if kept.pop(request, None) is not None and not kept:
            del self[member.incarnation]

    def fail(self, error: PSError, *, arrivals_only: bool = False) -> list[Action]:
        """Answer what is kept, or completed steps alone, by an error."""
        actions: list[Action] = []
        for who, kept in list(self.items()):
            for request, message in list(kept.items()):
                if not arrivals_only or _arrives(message):
                    self.withdraw(self._members[who], request)
                    actions.append(self._members[who].fail(request, error))
        return actions

    def go_back(self) -> None:
        """Steps that were completed are gone; whoever had asked for the next one asks again."""
        for who, kept in list(self.items()):
            for request in [request for request, message in kept.items() if _arrives(message)]:
                self.withdraw(self._members[who], request)

    def waiters(self, expected: int) -> Iterator[Waiter]:
        """Yield who waits, with the request, and what says for what."""
        text = waiting_for(expected)

        def say() -> str:
            return text

        for who, kept in self.items():
            for request in kept:
                yield self._members[who], request, say

    def validate(self, spares: Mapping[bytes, MemberInfo]) -> None:
        """Assert that they are spares, and nothing is kept for nobody."""
        assert set(self) <= set(spares) <= set(self._members)
        assert all(kept and len(kept) <= MAX_KEPT for kept in self.values())


def waiting_for(expected: int) -> str:
    """Say what a spare waits for."""
    return f"a place among the {counted(expected, 'worker')} that the job expects: it is a spare"


def _arrives(message: PlaceRequest) -> bool:
    return isinstance(message, Arrive)


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
        if member.incarnation in self._missed:
            self.losses.left(member, how)
            self._missed.remove(member.incarnation)
        self.attendance.leave(member, how)
        self.spares.take(member)

    def keep(self, member: MemberInfo, message: PlaceRequest) -> list[Action] | None:
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
