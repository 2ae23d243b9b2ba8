"""One job under way: its workers, its start, its steps, barriers and data sets, until its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any

from zmqps.core.coordinator.journal import DirtyKeys, set_key
from zmqps.core.coordinator.members.membership import SILENT_BEATS, MemberInfo, Roster
from zmqps.core.coordinator.members.places import Kept, Occupancy, Places
from zmqps.core.coordinator.members.reach import check_in_reach
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.copies import Replica, ReplicaSet
from zmqps.core.coordinator.placement.fallback import Fallback, torn
from zmqps.core.coordinator.placement.fleet import Fleet
from zmqps.core.coordinator.placement.replication import Replication
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.coordinator.placement.startup import Beginning, Startup
from zmqps.core.coordinator.placement.views import ChangeKind
from zmqps.core.coordinator.training.barrier import Barriers
from zmqps.core.coordinator.training.data import DataSets
from zmqps.core.coordinator.training.steps import Numbers, Steps
from zmqps.core.coordinator.training.waits import Waiter, Waiters
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import (
    Arrive,
    Enter,
    Followed,
    HeartbeatAck,
    Init,
    Promoted,
    Ready,
    Resumed,
    Take,
    Waiting,
    Withdraw,
)
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import ConfigurationError, JournalBehindError, PeerLostError, PSError


class JobState(StrEnum):
    """How far a job is, as the status says it: idle is one that is trained no more, and is kept."""

    FAILED, STARTING, GOING_BACK, TRAINING, IDLE = "failed", "starting", "going back", "training", "idle"


class JobRun:
    """What the coordinator knows of one job."""

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
        changes = changes or DirtyKeys()
        self.name, self._changed = name, changes.of("job", name)
        self._changed()
        self.members: dict[bytes, MemberInfo] = {}
        self.workers, self.observers = Roster(lambda: self.places.expected), Roster()
        self.lost_shard: PSError | None = None  # a server of this job is gone
        self._options = options
        self._servers = servers
        self.occupancy = Occupancy(name, before, self.members, self.workers, options.lease)
        self.rates = Numbers(self._changed)

        def changed(what: str) -> None:
            changes.add(what, name)

        self.startup = Startup(
            name, options, lambda: ReplicaSet(root, new_epoch, changes.of("copies", name)), self._begin, self._count,
            lambda: self.num_workers, resumption, changed,
        )  # fmt: skip
        self.places = Places(
            self.startup, self.members, self.workers, lambda member, error: self.barriers.dismiss(member, error),
            self._changed,
        )  # fmt: skip
        self.attendance, self.spares, self.losses = self.places.attendance, self.places.spares, self.places.losses
        kept = changes.of("step", name)
        self.steps = Steps(self.members, self.attendance, kept, self.rates, replicated=options.replicas > 0)
        self.replication = Replication(self.startup, self.steps, self.members, options.replicas, changed)
        self.fallback = Fallback(
            self.startup, self.steps, self.replication, self.members, options.fallback_timeout,
            self._rewind, self._lose_shards, changed,
        )  # fmt: skip
        self.barriers = Barriers(self.members, lambda: self.places.awaited, self.steps.pause, self.steps.resume)
        self.data = DataSets(
            self.members, self.places.lasts, self.steps.pause, self.steps.resume,
            lambda data: changes.add("data", set_key(name, data)),
        )  # fmt: skip
        self.waits = Waiters(self._waiters)
        if resumption is not None:
            self.data.resume(resumption.data)
            self.rates.begin_at(resumption.rates)

    @property
    def mode(self) -> str:
        """How it is synchronised; empty where nobody has said so yet."""
        return "" if self.startup.job is None else self.startup.job.mode

    def saved(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it beside the shards, as plain data."""
        saved = {"data": self.data.saved(), "run": {"rates": list(self.rates.latest)}}
        return {"name": self.name, **self.startup.described(), **saved}

    @property
    def has_tables(self) -> bool:
        return self.startup.job is not None and bool(self.startup.job.tables)

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
        return self.startup.ready and self.lost_shard is None and not self.fallback.active

    @property
    def finished(self) -> bool:
        """Whether nobody is there any more and all is done: nobody who is lost is to be started again, either."""
        done = not self.members and self.attendance.num_finished > 0 and not self.num_missing
        return done and self.is_whole and self.steps.commits.settled and not self.losses.to_return

    @property
    def vacant(self) -> bool:
        """Whether there is nothing to keep: nobody is there and nothing was placed, or a part of it is lost."""
        return not self.members and (self.startup.placement is None or self.lost_shard is not None)

    @property
    def has_failed(self) -> bool:
        """Whether it has failed, and nobody is there, or its servers are: no loss of one tells those who wait."""
        return self.lost_shard is not None and (self.vacant or not isinstance(self.lost_shard, PeerLostError))

    # --- members -------------------------------------------------------------------------------

    def join(self, member: MemberInfo, now: float) -> list[Action]:
        """A worker or observer has joined."""
        self._add(member)
        return self.move_on(now)

    def succeed(self, before: MemberInfo, member: MemberInfo) -> None:
        """A member has come in the place of another one, which is to depart next, and counts as that one did."""
        self._add(member)
        self.attendance.succeed(before, member)

    def _add(self, member: MemberInfo) -> None:
        self._changed()
        self.occupancy.come(member)
        self.members[member.incarnation] = member

    def depart(self, member: MemberInfo, how: DepartureCause, now: float, error: PSError | None = None) -> list[Action]:
        """A worker or observer has gone; ``error`` is what those get who wait for it."""
        awaited = member.role == "worker" and self.places.counts(member)
        actions = self.barriers.lose(member, error) if error is not None and awaited else []
        self.barriers.withdraw(member)
        del self.members[member.incarnation]
        self._changed()
        self.places.leave(member, how)
        self.steps.leave(member)
        self.replication.recuts.leave(member)
        left = [change for change in self.replication.views.leave(member) if change.kind is ChangeKind.REWOUND]
        actions += [action for change in left for action in self.fallback.followed(change, now)]
        actions += self._look_for_torn(now)
        actions += self.startup.withdraw(member.incarnation)
        actions += self.data.leave(member, finished=how == DepartureCause.FINISHED)
        self.occupancy.go(member, now, ready=self.startup.ready)
        return actions + self.move_on(now)

    def move_on(self, now: float) -> list[Action]:
        """Place what may be placed now: called when somebody has come or gone."""
        self.places.note_joined()
        actions = [*self._place(self._servers, now), *self._fill(now), *self.places.name_chief(self.acknowledge)]
        return [*actions, *self.fallback.fill(self._servers.staying, now), *self.replication.fill(self._servers, now)]

    def settle(self, now: float, *, tell: bool = True) -> list[Action]:
        """Do what has become possible; called after every event that touches this job, for any may make it so.

        ``tell``: whom somebody waits for may be another one now.
        """
        # first: behind a barrier the others would wait for who enters it
        actions = self.steps.advance(self.places, now)
        if self.barriers.by_name:
            actions += self.barriers.release(self.num_missing)
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
        self._changed()
        if member.role == "worker":
            self.occupancy.begin(member)
            self.places.begin(member)
        return beginning

    def _count(self, member: MemberInfo, named: bool, first: bool) -> list[Action]:
        """A member takes part; the first that names the job begins another one than those that could not be started."""
        self._changed()
        if first:
            self.data.begin_anew()
        return self.places.count(member, named, first)

    def _fill(self, now: float) -> list[Action]:
        """Let spares take the places that are free, and do what they have asked for."""
        actions: list[Action] = []
        for member in (filled := self.places.fill(self.occupancy.training)):
            text = f"{member.title} is no spare any more: it counts in job {self.name!r}"
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

    def _take_part(self, member: MemberInfo, message: Kept, now: float) -> list[Action]:
        if isinstance(message, Arrive):
            return self.arrive(member, message, now)
        return self.enter(member, message, now) if isinstance(message, Enter) else self.take(member, message, now)

    def _note(self, member: MemberInfo) -> str:
        if member.incarnation in self.attendance.spares:
            return (
                f"the job {self.name!r} has the workers that it expects ({self.places.expected}): this one is a spare, "
                "and takes the place of the first that leaves or is lost; its steps, barriers and data wait until then"
            )
        return self.occupancy.note(member, self.startup.owner)

    def acknowledge(self, member: MemberInfo) -> HeartbeatAck:
        """Return the answer to a member's sign of life."""
        places = self.places
        if places.chief is None:  # who counts has not called init, or this coordinator has come back
            places.chief = places.find_chief()
        return HeartbeatAck(places.num_workers, int(member is places.chief), self.rates.terms)

    # --- requests ------------------------------------------------------------------------------

    def init(self, member: MemberInfo, message: Init, now: float) -> list[Action]:
        """A worker names what it trains, or a member asks for it."""
        if self.lost_shard is not None:
            raise self.lost_shard.again()
        check_in_reach(member.role, member.origin.address, self._servers)
        actions = self.startup.init(member, message)
        actions += self.move_on(now)
        if (member.incarnation, message.request) in self.startup.parked:
            text = self.startup.waiting_for(self._servers.staying)
            actions.append(Send(member.peer, Waiting(message.request, text)))
        return actions

    def arrive(self, member: MemberInfo, message: Arrive, now: float) -> list[Action]:
        """A worker has completed a step."""
        if self.lost_shard is not None:  # no step can be applied to the whole model any more
            raise self.lost_shard.again()
        if (self.startup.held or self.replication.views.open) and self.fallback.makes_moot(member):
            return []  # of a step that is gone: it asks no more as soon as it knows
        if member.incarnation not in self.attendance.here and (kept := self.places.keep(member, message)) is not None:
            return kept
        self.steps.arrive(member, message, now)
        return []

    def take(self, member: MemberInfo, message: Take, now: float) -> list[Action]:
        if self.startup.job is not None and self.startup.job.deterministic:
            raise ConfigurationError("who takes which range depends on who asks first: use zmqps.data.split")
        if (kept := self.places.keep(member, message)) is not None:
            return kept
        return self.data.take(member, message)

    def enter(self, member: MemberInfo, message: Enter, now: float) -> list[Action]:
        if (kept := self.places.keep(member, message)) is not None:
            return kept
        return self.barriers.enter(member, message, self.num_missing)

    def withdraw(self, member: MemberInfo, message: Withdraw, now: float) -> list[Action]:
        """A member no longer waits for a request."""
        self.barriers.withdraw(member, message.request)
        self.data.withdraw(member, message.request)
        self.spares.withdraw(member, message.request)
        return self.startup.withdraw(member.incarnation, message.request)

    # --- servers -------------------------------------------------------------------------------

    def is_on(self, server: MemberInfo) -> bool:
        """Whether a server has a shard of this job, or is about to."""
        return self.startup.copies.are_on(server)

    def progress(self, message: Ready, now: float) -> list[Action]:
        """A server has built its copy of a shard, or has all its values."""
        copy = self.startup.copies[message.epoch]
        if self.fallback.concerns(copy):
            actions = self.fallback.ready(copy, bool(message.loaded), now)
            return [*actions, *self.move_on(now)] if actions else []
        if self.startup.ready:
            return self.replication.ready(copy, bool(message.loaded))
        actions = self.startup.progress(copy, bool(message.loaded))
        if self.startup.ready:
            self.replication.shortages.begin(now)
            actions += self.replication.fill(self._servers, now)  # on spares that are there already
        return actions

    def move(self, now: float, *, may_cut: bool) -> list[Action]:
        """Go on with what moves from servers that are to go; ``may_cut``: shards may have other leaders now."""
        whole = self.startup.ready and self.lost_shard is None
        return self.replication.move(list(self._servers), now, may_cut=may_cut) if whole else []

    def promoted(self, message: Promoted, now: float) -> list[Action]:
        """A backup has become the leader of its shard."""
        copy, is_behind = self.startup.copies.by_epoch[message.epoch], self.steps.lacks(message.step - 1)
        actions = self.replication.promoted(copy, message, now)
        if is_behind:
            return [*actions, *self.fall_behind(copy.server, message.step - 1, now)]
        return [*actions, *self._look_for_torn(now), *self.move_on(now)]

    def _look_for_torn(self, now: float) -> list[Action]:
        """See whether a step can never be completed on one shard."""
        if (shard := self.steps.commits.torn) is None or self.lost_shard is not None:
            return []
        return self._fall_back([], torn(shard), now)

    def followed(self, member: MemberInfo, message: Followed, now: float) -> list[Action]:
        """A member goes by a change of where shards are."""
        change = self.replication.views.followed(member, message)
        if change is None:
            return []
        if change.kind is ChangeKind.MOVED:
            return self.replication.followed(member, change)
        if change.kind is ChangeKind.REWOUND:
            return self.fallback.followed(change, now)
        return self.replication.views.again(member)  # what has changed since the shards were cut anew

    def fail(self, error: PSError, now: float, epoch: int = 0) -> list[Action]:
        """A server could not build its shard: tell every parked init; a job that runs already is not touched.

        ``epoch``: of its copy; one of a job that runs is a backup's.
        """
        if not self.startup.ready:
            self.steps.stop()
            return self.startup.fail(error)
        if (copy := self.startup.copies.by_epoch.get(epoch)) is not None and self.fallback.concerns(copy):
            return [*self.fallback.failed(copy, error, now), *self.move_on(now)]
        actions, lost = self.replication.failed(epoch, error, now)
        actions += self.replication.fill(self._servers, now)
        return [*actions, *(self._fall_back([copy], error, now) if lost and copy is not None else [])]

    def lose_server(self, server: MemberInfo, error: PSError, now: float) -> list[Action]:
        """A server has gone with copies of shards of this job: backups take over, where there are."""
        others = [other for other in self._servers if other is not server]
        if not self.startup.ready:
            if len(others) < self.startup.num_servers or not self.startup.begin_again():
                return self.fail(error, now)
            self.steps.stop()
            return self._place(others, now)
        actions, lost = self.replication.lose(server, error, now)
        actions += self.replication.fill(others, now)
        if self.lost_shard is None and lost:
            actions += self._fall_back(lost, error, now)
        return actions

    def _fall_back(self, lost: list[Replica], error: PSError, now: float) -> list[Action]:
        """Nobody has the values of shards any more: they go back to a checkpoint; without one the job has failed."""
        gone = {copy.server.incarnation for copy in lost}  # they may not have departed yet
        there = [server for server in self._servers.staying if server.incarnation not in gone]
        actions = self.fallback.begin(lost, error, there, now)
        return self._lose_shards(error) if actions is None else actions

    def _rewind(self, saved: Resumption) -> list[Action]:
        """All shards are as they were in a checkpoint: so are the data sets, and what was answered since is moot."""
        for member in self.members.values():
            member.answers.go_back()
        self.spares.go_back()
        self.rates.begin_at(saved.rates)
        return self.data.go_back(saved.data)

    def _lose_shards(self, error: PSError) -> list[Action]:
        """The values of a shard are gone: nothing can be trained any more."""
        self.lost_shard = error
        self.replication.handovers.stop()
        self._changed()
        told: list[Action] = [worker.fail(n, error) for worker, n, _ in self.steps.waiters(self.num_missing)]
        self.steps.stop()
        told += [*self.spares.fail(error, arrivals_only=True), *self.startup.refuse(error)]
        return [Log("error", f"job {self.name!r}: {error}", "failed", job=self.name, error=error.number), *told]

    def fall_behind(self, server: MemberInfo, step: int, now: float) -> list[Action]:
        """A server has a step that this coordinator's journal knows nothing of: nobody can tell whose it is."""
        error = JournalBehindError(server=server.title, job=self.name, theirs=step + 1, ours=self.steps.clock)
        return self._fall_back([], error, now) if self.lost_shard is None else []

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        replication, dues = self.replication, [0.0] if self.lost_shard is not None and self.has_failed else []
        soon = [self.steps.next_deadline(), self.waits.due]
        if self.occupancy.idle_since is not None:
            soon.append(self.occupancy.ends_at)
        if self.startup.copies.retry_due is not None or replication.views.open or replication.handovers.under_way:
            soon.append(replication.next_deadline())
        if self.startup.held:
            soon.append(self.fallback.next_deadline())
        for due in soon:  # without a call, as this is asked after every event
            if due is not None:
                dues.append(due)
        return min(dues, default=None)

    def expired(self, now: float) -> bool:
        """Whether nobody has been there for so long that the job is not kept any more."""
        return self.occupancy.ends_at is not None and now >= self.occupancy.ends_at

    def on_deadline(self, now: float) -> list[Action]:
        steps, replication = self.steps.next_deadline(), self.replication.next_deadline()
        actions = self.steps.on_deadline(now) if steps is not None and now >= steps else []
        actions += self.replication.on_deadline(now) if replication is not None and now >= replication else []
        actions += self.fallback.on_deadline(self._servers.staying, now)
        if told := self.waits.on_deadline(now):
            self.steps.keep_arrivals()  # who is told that its arrival is known need not say it again
        return actions + told

    # --- a coordinator that was away -----------------------------------------------------------

    def resumed(self, member: MemberInfo, message: Resumed, now: float) -> list[Action]:
        """A member of a coordinator that was away has asked again all that it waits for."""
        self.steps.resumed(member, message.clock, now)
        said = [*self.startup.resumed(member), *self.replication.again(member)]
        return [*said, *self.move_on(now)]

    def again(self, server: MemberInfo) -> list[Action]:
        """A server is back: say again what it may not have heard."""
        said = [*self.startup.again(server), *self.fallback.again(server), *self.replication.again(server)]
        return [*said, *self.steps.again(server)]

    # --- what others may look at ---------------------------------------------------------------

    def _waiters(self) -> Iterator[Waiter]:
        missing = self.num_missing
        yield from self.startup.waiters(self._servers.staying)
        yield from self.barriers.waiters(missing)
        yield from self.steps.waiters(missing)
        yield from self.data.waiters()
        yield from self.spares.waiters(self.places.expected or 0)

    def anybody_waits(self) -> bool:
        waits = self.startup.parked or self.barriers.by_name or self.steps.trainees.waiting or self.spares
        return bool(waits or (self.data.by_name and self.data.anybody_waits))

    @property
    def state(self) -> JobState:
        if self.lost_shard is not None:
            return JobState.FAILED
        if not self.startup.ready:
            return JobState.STARTING
        if self.fallback.active:
            return JobState.GOING_BACK
        return JobState.TRAINING if self.members else JobState.IDLE

    def validate(self) -> None:
        self.places.validate(self.occupancy.training)
        self.occupancy.validate()
        self.barriers.validate()
        self.data.validate()
        self.steps.validate()
        self.replication.validate()
        assert {incarnation for incarnation, _ in self.startup.parked} <= set(self.members)
        self.fallback.validate()
        assert not (self.startup.ready and self.startup.parked) or self.startup.held or self.startup.cutting
        assert {m.hello.incarnation for m in (*self.workers, *self.observers)} == set(self.members)
        assert {member.job for member in self.members.values()} <= {self.name}
