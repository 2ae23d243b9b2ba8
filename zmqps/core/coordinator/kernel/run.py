"""One job that is trained: its workers, its start, its steps and barriers, until its end.

What else a job does extends this class: `zmqps.core.coordinator.run.JobRun`. Here each shard has one copy, and stays
where it is; a server that is lost takes the job with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import StrEnum
from typing import Any, ClassVar

from zmqps.core.coordinator.journal import OF_A_JOB, DirtyKeys, KeptDict, KeptRecord
from zmqps.core.coordinator.kernel.story import Story
from zmqps.core.coordinator.members.membership import Fleet, MemberInfo, Roster
from zmqps.core.coordinator.members.places import Occupancy, PlaceRequest, Places
from zmqps.core.coordinator.members.reach import check_in_reach
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.copies import Replica, ReplicaSet
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.coordinator.placement.startup import Beginning, Startup
from zmqps.core.coordinator.training.barrier import Barriers
from zmqps.core.coordinator.training.steps import Numbers, Steps
from zmqps.core.coordinator.training.waits import Waiter, Waiters
from zmqps.core.node.member import SILENT_BEATS
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import JournalBehindError, PeerLostError, PSError

#: What a server's loss means where no other copy of its shards is left.
LOSS_ADVICE = (
    "the values of its shard are lost, and there is no checkpoint of it to go back to; begin the job again once a "
    "server has joined in its place. With --checkpoint DIR --checkpoint-every 5min it goes back to the last one by "
    "itself, with --replicas 1 it loses nothing"
)


class JobState(StrEnum):
    """How far a job is, as the status says it: idle is one that is trained no more, and is kept."""

    FAILED, STARTING, GOING_BACK, TRAINING, IDLE = "failed", "starting", "going back", "training", "idle"


class JobKernel(KeptRecord):
    """What the coordinator knows of one job that it trains."""

    kept: ClassVar = {"lost_shard": "job"}

    def __init__(
        self,
        name: str,
        options: CoordinatorOptions,
        servers: Fleet,
        new_epoch: Callable[[], int],  # returns a number that no copy of a shard has had
        before: str,  # how the job that had this name before has ended; empty: there was none
        root: bytes,  # the coordinator's secret
        resumption: Resumption | None = None,
        changes: DirtyKeys | None = None,
    ) -> None:
        self._changes = changes = changes or DirtyKeys()
        self.name, mark = name, changes.of("job", name)
        self.story = Story(name)

        def changed(what: str) -> None:
            changes.add(what, name)

        self.changed = changed
        self.members: dict[bytes, MemberInfo] = KeptDict(mark)
        self.workers, self.observers = Roster(lambda: self.places.expected), Roster()
        self.lost_shard: PSError | None = None  # a server of this job is lost
        self._options = options
        self._servers = servers
        self.occupancy = Occupancy(name, before, self.members, self.workers, options.lease)
        self.rates = Numbers(changed)
        self.startup = Startup(
            self.story, options, lambda: ReplicaSet(root, new_epoch, changes.of("copies", name)), self._begin,
            self._count, lambda: self.num_workers, resumption, changed,
        )  # fmt: skip
        self.places = Places(
            self.startup, self.members, self.workers, lambda member, error: self.barriers.dismiss(member, error),
            mark,
        )  # fmt: skip
        self.attendance, self.spares, self.losses = self.places.attendance, self.places.spares, self.places.losses
        kept = changes.of("step", name)
        self.steps = Steps(self.members, self.attendance, kept, self.rates, replicated=options.replicas > 0)
        self.barriers = Barriers(self.members, lambda: self.places.awaited, self.steps.pause, self.steps.resume)
        self.waits = Waiters(self._waiters, self.story.explain)
        #: What extensions have under way, empty where nothing: copies that move; changes of where shards are that a
        #: member does not follow yet; data sets that may be waited for.
        self.moving: Collection[object] = ()
        self.not_followed: Collection[object] = ()
        self.data_sets: Collection[object] = ()
        #: What members say of their job.
        self.from_members: dict[type[m.Message], Callable[[MemberInfo, Any, float], list[Action]]] = {
            m.Resumed: self.resumed,
            m.Withdraw: self.withdraw,
            m.Arrive: self.arrive,
            m.Enter: self.enter,
            m.SetRates: self.set_rates,
        }
        #: What servers say of copies of its shards.
        self.of_copies: dict[type[m.Message], Callable[[Any, float], list[Action]]] = {
            m.Ready: self.built,
            m.Committed: self.committed,
            m.Measured: self.measured,
        }
        if resumption is not None:
            self.rates.begin_at(resumption.rates)

    @property
    def mode(self) -> str:
        """How it is synchronised; empty before the first ``init``."""
        return "" if self.startup.job is None else self.startup.job.mode

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on."""
        return self.places.num_workers

    @property
    def num_missing(self) -> int:
        """How many of the expected workers do not count yet; none, once all did."""
        return self.places.num_missing

    @property
    def is_whole(self) -> bool:
        """Whether all its values are on their servers."""
        return self.startup.ready and self.lost_shard is None

    @property
    def has_spare(self) -> bool:
        """Whether there are more copies than there should be."""
        return False

    @property
    def finished(self) -> bool:
        """Whether its workers are done and have left, and no lost member is due to be restarted."""
        done = not self.members and self.attendance.num_finished > 0 and not self.num_missing
        return done and self.is_whole and self.steps.commits.all_confirmed and not self.losses.to_return

    @property
    def vacant(self) -> bool:
        """Whether there is nothing to keep: it has no members, and no shards were placed or one is lost."""
        return not self.members and (self.startup.placement is None or self.lost_shard is not None)

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, and either no member is left or no lost server tells those that wait."""
        return self.lost_shard is not None and (self.vacant or not isinstance(self.lost_shard, PeerLostError))

    @property
    def state(self) -> JobState:
        if self.lost_shard is not None:
            return JobState.FAILED
        if not self.startup.ready:
            return JobState.STARTING
        return JobState.TRAINING if self.members else JobState.IDLE

    # --- members -------------------------------------------------------------------------------

    def join(self, member: MemberInfo, now: float) -> list[Action]:
        """A worker or observer has joined."""
        self._add(member)
        return self.move_on(now)

    def succeed(self, before: MemberInfo, member: MemberInfo) -> None:
        """A member has replaced another one, which departs next, and counts as that one did."""
        self._add(member)
        self.attendance.succeed(before, member)

    def _add(self, member: MemberInfo) -> None:
        self.occupancy.come(member)
        self.members[member.incarnation] = member

    def depart(self, member: MemberInfo, how: DepartureCause, now: float, error: PSError | None = None) -> list[Action]:
        """Remove a worker or observer; ``error`` is the answer to requests that wait for it."""
        awaited = member.role == "worker" and self.places.counts(member)
        if awaited and how is not DepartureCause.FINISHED:
            self.story.tell(f"{member.title} has left ({how})")
        actions = self.barriers.lose(member, error) if error is not None and awaited else []
        self.barriers.withdraw(member)
        del self.members[member.incarnation]
        self.places.leave(member, how)
        self.steps.leave(member)
        actions += self._left(member, how, now)
        actions += self.startup.withdraw(member.incarnation)
        self.occupancy.go(member, now, ready=self.startup.ready)
        return actions + self.move_on(now)

    def _left(self, member: MemberInfo, how: DepartureCause, now: float) -> list[Action]:
        """Continue without a member that takes part in steps and barriers no more: here there is nothing else."""
        return []

    def forget(self) -> None:
        """The job has ended."""
        for what in OF_A_JOB:
            self._changes.add(what, self.name)

    def move_on(self, now: float) -> list[Action]:
        """Place what can be placed now: called when a member has joined or left."""
        self.places.note_joined()
        return [*self._place(self._servers, now), *self._fill(now), *self.places.name_chief(self.acknowledge)]

    def settle(self, now: float, *, tell: bool = True) -> list[Action]:
        """Do what has become possible; called after every event that touches this job, for any may make it so.

        ``tell``: the members that others wait for may have changed.
        """
        # first: a worker that a barrier releases may be one that the step waits for
        actions = self.steps.advance(self.places, now)
        if self.barriers.by_name:
            actions += self.barriers.release(self.num_missing)
        if self.story.new:
            self.story.settle(now)
        if tell and self.anybody_waits():
            self.waits.tell_soon(now)
        return actions

    def _place(self, servers: Iterable[MemberInfo], now: float) -> list[Action]:
        """Place the job as soon as all servers are here: on those that are heard, and on spares if it must."""
        silent = now - SILENT_BEATS * self._options.heartbeat_interval
        self.startup.num_servers = self._servers.wanted
        there = sorted(servers, key=lambda s: (s.seen_at < silent, s.is_spare, s.rank))
        actions = self.startup.place([server for server in there if not server.leaving])
        if actions and self.startup.job is not None:
            job, copies = self.startup.job, self.startup.copies
            clock = self.startup.resumption.version if self.startup.resumption else 0
            self.steps.start(job, copies, waits_for_all=self.places.expected is not None, clock=clock)
        return actions

    def _begin(self, member: MemberInfo) -> Beginning:
        """Say what a member begins with, now that the job can be trained."""
        clock, is_chief = self.steps.begin(member), self.places.find_chief() is member
        beginning = Beginning(clock, self.num_workers, self._note(member), self.rates.terms, is_chief)
        self.changed("job")
        if member.role == "worker":
            self.occupancy.begin(member)
            self.places.begin(member)
        return beginning

    def _count(self, member: MemberInfo, named: bool, first: bool) -> list[Action]:
        """A member takes part; the first that names the job begins another one than those that could not be started."""
        self.changed("job")
        return self.places.count(member, named, first)

    def _fill(self, now: float) -> list[Action]:
        """Let spares take the places that are free, and do what they have asked for."""
        actions: list[Action] = []
        for member in (filled := self.places.fill(self.occupancy.training)):
            text = f"{member.title} is no longer a spare: it counts in job {self.name!r}"
            actions.append(Log("info", text, job=self.name, peer=member.hello.name))
            if member.incarnation in self.occupancy.training:
                self.steps.begin(member)
        for member in filled:
            for message in self.spares.take(member):
                try:
                    actions += self._take_part(member, message, now)
                except PSError as error:
                    actions.append(member.fail(message.request, error))
        return actions

    def _take_part(self, member: MemberInfo, message: PlaceRequest, now: float) -> list[Action]:
        if isinstance(message, m.Arrive):
            return self.arrive(member, message, now)
        assert isinstance(message, m.Enter)
        return self.enter(member, message, now)

    def _note(self, member: MemberInfo) -> str:
        if member.incarnation in self.attendance.spares:
            return (
                f"the job {self.name!r} has the workers that it expects ({self.places.expected}): this one is a spare, "
                "and takes the place of the first that leaves or is lost; its steps, barriers and data wait until then"
            )
        return self.occupancy.note(member, self.startup.owner)

    def acknowledge(self, member: MemberInfo) -> m.HeartbeatAck:
        """Return the answer to a member's sign of life."""
        places = self.places
        if places.chief is None:  # none was found yet, or this coordinator restarted
            places.chief = places.find_chief()
        return m.HeartbeatAck(places.num_workers, int(member is places.chief), self.rates.terms)

    # --- requests ------------------------------------------------------------------------------

    def init(self, member: MemberInfo, message: m.Init, now: float) -> list[Action]:
        """A worker names what it trains, or a member asks for it."""
        if self.lost_shard is not None:
            raise self.lost_shard.again()
        check_in_reach(member.role, member.origin.address, self._servers)
        actions = self.startup.init(member, message)
        actions += self.move_on(now)
        if (member.incarnation, message.request) in self.startup.parked:
            text = self.startup.waiting_for(self._servers.staying)
            actions.append(Send(member.peer, m.Waiting(message.request, text)))
        return actions

    def arrive(self, member: MemberInfo, message: m.Arrive, now: float) -> list[Action]:
        """A worker has completed a step: that is noted; `settle` commits it, and answers."""
        if self.lost_shard is not None:  # no step can be applied to the whole model any more
            raise self.lost_shard.again()
        if (self.startup.held or self.not_followed) and self._is_moot(member):
            return []  # of a lost step: the worker stops asking once it is informed
        if member.incarnation not in self.attendance.here and (kept := self.places.keep(member, message)) is not None:
            return kept
        self.steps.arrive(member, message, now)
        return []

    def _is_moot(self, member: MemberInfo) -> bool:
        """Whether a worker's message about steps may be about lost ones."""
        return False

    def enter(self, member: MemberInfo, message: m.Enter, now: float) -> list[Action]:
        if (kept := self.places.keep(member, message)) is not None:
            return kept
        return self.barriers.enter(member, message, self.num_missing)

    def set_rates(self, member: MemberInfo, message: m.SetRates, now: float) -> list[Action]:
        """Take numbers of the optimizer from the chief only."""
        told = list[MemberInfo]()
        if self.places.find_chief() is member and message.terms[1:] != self.rates.latest:
            self.rates.set(message.step, self.steps.clock, message.terms[1:])
            told = [other for other in self.members.values() if other is not member]
        answer = member.answer(message.request, m.RatesSet(message.request, self.rates.terms))
        return [answer, *(Send(other.peer, self.acknowledge(other)) for other in told)]

    def withdraw(self, member: MemberInfo, message: m.Withdraw, now: float) -> list[Action]:
        """A member no longer waits for a request."""
        self.barriers.withdraw(member, message.request)
        self.spares.withdraw(member, message.request)
        return self.startup.withdraw(member.incarnation, message.request)

    # --- servers -------------------------------------------------------------------------------

    def is_on(self, server: MemberInfo) -> bool:
        """Whether a server has a shard of this job, or is about to."""
        return self.startup.copies.are_on(server)

    def built(self, message: m.Ready, now: float) -> list[Action]:
        """A server has built its copy of a shard, or has all its values."""
        return self.progress(self.startup.copies[message.epoch], bool(message.loaded), now)

    def committed(self, message: m.Committed, now: float) -> list[Action]:
        """A server has applied a step."""
        if self.steps.lacks(message.step):
            return self.fall_behind(self.startup.copies[message.epoch].server, message.step, now)
        return self.steps.confirmed(message.epoch, message.step)

    def measured(self, message: m.Measured, now: float) -> list[Action]:
        """A server has found out how large its part of a step's mean is."""
        return self.steps.measured(message)

    def progress(self, copy: Replica, loaded: bool, now: float) -> list[Action]:
        """A copy is built, or has all its values."""
        return [] if self.startup.ready else self.startup.progress(copy, loaded)

    def fail(self, error: PSError, now: float, epoch: int = 0) -> list[Action]:
        """A server could not build its shard: tell every parked init; a job that runs already is not touched.

        ``epoch``: of its copy.
        """
        if self.startup.ready:
            return []
        self.steps.stop()
        return self.startup.fail(error)

    def lose_server(self, server: MemberInfo, error: PSError, now: float) -> list[Action]:
        """A server with copies of shards of this job has left: what was not begun begins on others."""
        self.story.tell(f"{server.title} has left")
        if self.startup.ready:
            return self._lose_copies(server, error, now)
        others = [other for other in self._servers if other is not server]
        if len(others) < self.startup.num_servers or not self.startup.begin_again():
            return self.fail(error, now)
        self.steps.stop()
        return self._place(others, now)

    def _lose_copies(self, server: MemberInfo, error: PSError, now: float) -> list[Action]:
        """A server with copies of shards of a job in training has left."""
        return self._fall_back(self.startup.copies.of(server), error, now)

    def _fall_back(self, lost: list[Replica], error: PSError, now: float) -> list[Action]:
        """Handle the loss of shards of which no copy is left, or none at the right step."""
        return self._lose_shards(error) if self.lost_shard is None else []

    def _lose_shards(self, error: PSError) -> list[Action]:
        """Fail the job: the values of a shard are lost, and it cannot be trained any more."""
        self.lost_shard = error
        told: list[Action] = [worker.fail(n, error) for worker, n, _ in self.steps.waiters(self.num_missing)]
        self.steps.stop()
        told += [*self.spares.fail(error, arrivals_only=True), *self.startup.refuse(error)]
        return [self.story.log("error", str(error), "failed", error.number), *told]

    def fall_behind(self, server: MemberInfo, step: int, now: float) -> list[Action]:
        """Handle a server that has a step unknown to this coordinator's journal: its gradients cannot be attributed."""
        error = JournalBehindError(server=server.title, job=self.name, theirs=step + 1, ours=self.steps.clock)
        return self._fall_back([], error, now)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        dues = [0.0] if self.lost_shard is not None and self.has_failed else []
        ends_at = None if self.occupancy.idle_since is None else self.occupancy.ends_at
        for due in (self.steps.next_deadline(), self.waits.due, ends_at):  # without a call: asked after every event
            if due is not None:
                dues.append(due)
        startup = self.startup
        if self.moving or self.not_followed or startup.held or startup.copies.retry_due is not None:
            dues += self._move_dues()
        return min(dues, default=None)

    def _move_dues(self) -> list[float]:
        """Return when something in progress, besides training, is due."""
        return []

    def expired(self, now: float) -> bool:
        """Whether the job has had no member for so long that it is no longer kept."""
        return self.occupancy.ends_at is not None and now >= self.occupancy.ends_at

    def on_deadline(self, now: float) -> list[Action]:
        due = self.steps.next_deadline()
        actions = self.steps.on_deadline(now) if due is not None and now >= due else []
        if told := self.waits.on_deadline(now):
            self.steps.keep_arrivals()  # a worker told that its arrival is known will not repeat it
        return actions + told

    # --- a coordinator that was away -----------------------------------------------------------

    def resumed(self, member: MemberInfo, message: m.Resumed, now: float) -> list[Action]:
        """A member of a coordinator that was away has asked again all that it waits for."""
        self.steps.resumed(member, message.clock, now)
        return [*self.startup.resumed(member), *self.move_on(now)]

    def again(self, server: MemberInfo) -> list[Action]:
        """A server is back: say again what it may not have heard."""
        return [*self.startup.again(server), *self.steps.again(server)]

    # --- what others may look at ---------------------------------------------------------------

    def _waiters(self) -> Iterator[Waiter]:
        missing = self.num_missing
        yield from self.startup.waiters(self._servers.staying)
        yield from self.barriers.waiters(missing)
        yield from self.steps.waiters(missing)
        yield from self.spares.waiters(self.places.expected or 0)

    def anybody_waits(self) -> bool:
        waits = self.startup.parked or self.barriers.by_name or self.steps.trainees.waiting or self.spares
        return bool(waits) or (bool(self.data_sets) and self._wait_for_data())

    def _wait_for_data(self) -> bool:
        """Whether a worker waits for a range of data."""
        return False

    def validate(self) -> None:
        self.places.validate(self.occupancy.training)
        self.occupancy.validate()
        self.barriers.validate()
        self.steps.validate()
        assert {incarnation for incarnation, _ in self.startup.parked} <= set(self.members)
        assert not (self.startup.ready and self.startup.parked) or self.startup.held or self.startup.cutting
        assert {member.incarnation for member in (*self.workers, *self.observers)} == set(self.members)
        assert {member.job for member in self.members.values()} <= {self.name}
