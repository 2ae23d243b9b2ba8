"""One job with all extensions: copies that take over or move, checkpoints to go back to, data ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from zmqps.core.coordinator.journal import DirtyKeys, set_key
from zmqps.core.coordinator.kernel.run import JobKernel, JobState
from zmqps.core.coordinator.members.membership import Fleet, MemberInfo
from zmqps.core.coordinator.members.places import PlaceRequest
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.placement.fallback import Fallback, torn
from zmqps.core.coordinator.placement.replication import Replication
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.coordinator.training.data import DataSets
from zmqps.core.coordinator.training.waits import Waiter
from zmqps.core.job.data import DataSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import ConfigurationError, PSError


class JobRun(JobKernel):
    """The coordinator's state of one job."""

    def __init__(
        self,
        name: str,
        options: CoordinatorOptions,
        servers: Fleet,
        new_epoch: Callable[[], int],
        before: str,
        root: bytes,
        resumption: Resumption | None = None,
        changes: DirtyKeys | None = None,
    ) -> None:
        super().__init__(name, options, servers, new_epoch, before, root, resumption, changes)
        changes, changed, startup, steps = self._changes, self.changed, self.startup, self.steps
        self.replication = Replication(startup, steps, self.members, options.replicas, changed)
        self.fallback = Fallback(
            startup, steps, self.replication, self.members, options.fallback_timeout, self._rewind, self._lose_shards,
            changed,
        )  # fmt: skip
        self.data = DataSets(
            self.members, self.places.lasts, steps.pause, steps.resume,
            lambda data: changes.add("data", set_key(name, data)),
        )  # fmt: skip
        if resumption is not None:
            self.data.resume(resumption.data)

        self.moving, self.not_followed = self.replication.handovers.under_way, self.replication.views.open
        self.data_sets = self.data.by_name
        self.from_members |= {m.Take: self.take, m.Followed: self.followed}
        self.of_copies |= {
            m.Leading: self.leads,
            m.Yielded: self.yielded,
        }

    def saved(self) -> dict[str, Any]:
        """Return its part of a checkpoint besides the shards, as plain data."""
        saved = {"data": self.data.saved(), "run": {"rates": list(self.rates.latest)}}
        return {"name": self.name, **self.startup.described(), **saved}

    @property
    def has_tables(self) -> bool:
        return self.startup.job is not None and bool(self.startup.job.tables)

    @property
    def is_whole(self) -> bool:
        return super().is_whole and not self.fallback.active

    @property
    def has_spare(self) -> bool:
        return self.replication.has_spare

    @property
    def state(self) -> JobState:
        is_back = self.lost_shard is None and self.startup.ready and self.fallback.active
        return JobState.GOING_BACK if is_back else super().state

    # --- members -------------------------------------------------------------------------------

    def _left(self, member: MemberInfo, how: DepartureCause, now: float) -> list[Action]:
        self.replication.recuts.leave(member)
        left = [change for change in self.replication.views.leave(member) if change.kind is m.ChangeKind.REWOUND]
        actions = [action for change in left for action in self.fallback.followed(change, now)]
        actions += self._look_for_torn(now)
        return [*actions, *self.data.leave(member, finished=how == DepartureCause.FINISHED)]

    def forget(self) -> None:
        super().forget()
        for data in self.data.names:
            self._changes.add("data", set_key(self.name, data))

    def move_on(self, now: float) -> list[Action]:
        actions = super().move_on(now)
        return [*actions, *self.fallback.fill(self._servers.staying, now), *self.replication.fill(self._servers, now)]

    def _count(self, member: MemberInfo, named: bool, first: bool) -> list[Action]:
        if first:
            self.data.begin_anew()
        return super()._count(member, named, first)

    def _take_part(self, member: MemberInfo, message: PlaceRequest, now: float) -> list[Action]:
        if isinstance(message, m.Take):
            return self.take(member, message, now)
        return super()._take_part(member, message, now)

    # --- requests ------------------------------------------------------------------------------

    def _is_moot(self, member: MemberInfo) -> bool:
        return self.fallback.makes_moot(member)

    def take(self, member: MemberInfo, message: m.Take, now: float) -> list[Action]:
        """A worker requests a range of a data set."""
        if self.startup.job is not None and self.startup.job.deterministic:
            raise ConfigurationError(
                "the order of requests decides which worker takes which range: use zmqps.data.split"
            )
        if member.incarnation not in self.attendance.here:
            DataSpec.of(message)  # a spare's bad request is refused at once, too
            brief = replace(message, shuffle=tuple(message.shuffle[:1]), done=tuple(message.done[:3]))
            if (kept := self.places.keep(member, brief)) is not None:
                return kept
        return self.data.take(member, message)

    def withdraw(self, member: MemberInfo, message: m.Withdraw, now: float) -> list[Action]:
        self.data.withdraw(member, message.request)
        return super().withdraw(member, message, now)

    def followed(self, member: MemberInfo, message: m.Followed, now: float) -> list[Action]:
        """A member follows a change of the placement."""
        change = self.replication.views.followed(member, message)
        if change is None:
            return []
        if change.kind is m.ChangeKind.MOVED:
            return self.replication.followed(member, change)
        if change.kind is m.ChangeKind.REWOUND:
            return self.fallback.followed(change, now)
        return self.replication.views.again(member)  # changes since the shards were divided again

    # --- servers -------------------------------------------------------------------------------

    def progress(self, copy: Replica, loaded: bool, now: float) -> list[Action]:
        if self.fallback.concerns(copy):
            actions = self.fallback.ready(copy, loaded, now)
            return [*actions, *self.move_on(now)] if actions else []
        if self.startup.ready:
            return self.replication.ready(copy, loaded)
        actions = super().progress(copy, loaded, now)
        if self.startup.ready:
            self.replication.shortages.begin(now)
            actions += self.replication.fill(self._servers, now)  # on existing spares
        return actions

    def move(self, now: float, *, may_cut: bool) -> list[Action]:
        """Continue moves from draining servers; ``may_cut``: shards may get other leaders now."""
        whole = self.startup.ready and self.lost_shard is None
        return self.replication.move(list(self._servers), now, may_cut=may_cut) if whole else []

    def leads(self, message: m.Leading, now: float) -> list[Action]:
        """A backup has become the leader of its shard, or a leader has new backups."""
        copy, is_behind = self.startup.copies.by_epoch.get(message.epoch), self.steps.lacks(message.step - 1)
        if copy is None:  # it belongs to a new division
            return []
        actions = self.replication.leads(copy, message, now)
        if actions is None:
            return []
        if is_behind:
            return [*actions, *self.fall_behind(copy.server, message.step - 1, now)]
        return [*actions, *self._look_for_torn(now), *self.move_on(now)]

    def yielded(self, message: m.Yielded, now: float) -> list[Action]:
        """A leader has given up its leadership, or cannot at the moment."""
        if (copy := self.startup.copies.by_epoch.get(message.epoch)) is None:
            return []
        actions = self.replication.recuts.yielded(copy, message, now)
        return self.replication.handovers.yielded(copy, message, now) if actions is None else actions

    def _look_for_torn(self, now: float) -> list[Action]:
        """Check whether a step can never be completed on one shard."""
        shard = self.steps.commits.torn
        return [] if shard is None else self._fall_back([], torn(shard), now)

    def fail(self, error: PSError, now: float, epoch: int = 0) -> list[Action]:
        if not self.startup.ready:
            return super().fail(error, now, epoch)
        if (copy := self.startup.copies.by_epoch.get(epoch)) is not None and self.fallback.concerns(copy):
            return [*self.fallback.failed(copy, error, now), *self.move_on(now)]
        actions, lost = self.replication.failed(epoch, error, now)
        actions += self.replication.fill(self._servers, now)
        return [*actions, *(self._fall_back([copy], error, now) if lost and copy is not None else [])]

    def _lose_copies(self, server: MemberInfo, error: PSError, now: float) -> list[Action]:
        """Backups take over, if there are any."""
        actions, lost = self.replication.lose(server, error, now)
        actions += self.replication.fill([other for other in self._servers if other is not server], now)
        return [*actions, *(self._fall_back(lost, error, now) if lost else [])]

    def _fall_back(self, lost: list[Replica], error: PSError, now: float) -> list[Action]:
        """Shards go back to a checkpoint; without one the job has failed."""
        if self.lost_shard is not None:
            return []
        gone = {copy.server.incarnation for copy in lost}  # they may not have departed yet
        there = [server for server in self._servers.staying if server.incarnation not in gone]
        actions = self.fallback.begin(lost, error, there, now)
        return super()._fall_back(lost, error, now) if actions is None else actions

    def _rewind(self, saved: Resumption) -> list[Action]:
        """All shards are in a checkpoint's state: so are the data sets, and later answers are obsolete."""
        for member in self.members.values():
            member.answers.go_back()
        self.spares.go_back()
        self.rates.begin_at(saved.rates)
        return self.data.go_back(saved.data)

    def _lose_shards(self, error: PSError) -> list[Action]:
        self.replication.handovers.stop()
        return super()._lose_shards(error)

    # --- time ----------------------------------------------------------------------------------

    def _move_dues(self) -> list[float]:
        dues = [self.replication.next_deadline()]
        if self.startup.held:
            dues.append(self.fallback.next_deadline())
        return [due for due in dues if due is not None]

    def on_deadline(self, now: float) -> list[Action]:
        replication = self.replication.next_deadline()
        actions = super().on_deadline(now)
        actions += self.replication.on_deadline(now) if replication is not None and now >= replication else []
        return [*actions, *self.fallback.on_deadline(self._servers.staying, now)]

    # --- a coordinator that was away -----------------------------------------------------------

    def resumed(self, member: MemberInfo, message: m.Resumed, now: float) -> list[Action]:
        return [*self.replication.again(member), *super().resumed(member, message, now)]

    def again(self, server: MemberInfo) -> list[Action]:
        return [*self.fallback.again(server), *self.replication.again(server), *super().again(server)]

    # --- for other code to read ----------------------------------------------------------------

    def _waiters(self) -> Iterator[Waiter]:
        yield from super()._waiters()
        yield from self.data.waiters()

    def _wait_for_data(self) -> bool:
        return self.data.anybody_waits

    def validate(self) -> None:
        super().validate()
        self.data.validate()
        self.replication.validate()
        self.fallback.validate()
