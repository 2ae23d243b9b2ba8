"""The shards of one job are cut anew where they lie: in a pause between pushes, or between steps.

Copies that are to be filled are built first, while training goes on. Then workers begin no push. Once none is under
way, leaders answer for nothing any more, and their backups have all that they have; so each server fills the new
copies, leaders and backups alike, with what it has itself. Once all are filled, they are the shards: the others are
freed, and members are told. Until then nothing has changed, and can be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import RETRY_S, Replica
from zmqps.core.coordinator.placement.shortages import Shortages
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.views import ChangeKind, MemberViews
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.recut import parents
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Cut, GoOn, Hold, Yield, Yielded
from zmqps.errors import PSError, listed

#: What could not be done is tried again after so long.
PAUSE_S = 5.0
#: How many workers that did not pause a text names.
MOST_NAMED = 4

#: Of each shard the server of its leader, and behind it those of its backups.
Homes: TypeAlias = Sequence[Sequence[MemberInfo]]


class RecutPhase(IntEnum):
    """What a recut does: build its copies, wait for a step, hold workers, let leaders yield, fill the copies."""

    BUILD, STEP, HOLD, YIELD, FILL = range(5)


@dataclass(slots=True, kw_only=True)
class Recutting:
    """A recut that is under way.

    Attributes
    ----------
    late
        A worker began a step before it was held: that one is to end first.
    held_at
        Since when steps, or pushes, are held.
    paused_at
        Since when some worker waits.
    cut_at
        Since when no push is under way.
    number
        Of the pause.
    holding, awaited
        The workers that begin no push; those of them that have not said so yet.
    answering
        The leaders that may still answer workers, by epoch.
    """

    placement: Placement
    again_at: float
    phase: RecutPhase = RecutPhase.BUILD
    late: bool = False
    held_at: float = 0.0
    paused_at: float = 0.0
    cut_at: float = 0.0
    number: int = 0
    holding: dict[bytes, MemberInfo] = field(default_factory=dict)
    awaited: dict[bytes, MemberInfo] = field(default_factory=dict)
    answering: dict[int, Replica] = field(default_factory=dict)


class Recuts:
    """Cuts the shards of one job anew, and tells its members.

    Attributes
    ----------
    error
        Why the shards cannot be cut.
    longest_s
        The longest pause of pushes.
    """

    def __init__(
        self,
        startup: Startup,
        steps: Steps,
        members: Mapping[bytes, MemberInfo],
        views: MemberViews,
        shortages: Shortages,
        changed: Changed = nothing,
    ) -> None:
        self.error: PSError | None = None
        self.longest_s = 0.0
        self._startup = startup
        self._steps = steps
        self._members = members
        self._views = views
        self._shortages = shortages
        self._changed = changed
        self._not_before = 0.0
        self._recut: Recutting | None = None  # that is under way

    @property
    def active(self) -> bool:
        """Whether shards are about to be cut."""
        return self._recut is not None

    @property
    def is_cutting(self) -> bool:
        """Whether workers are held, or about to be."""
        return self._recut is not None and self._recut.phase > RecutPhase.BUILD

    @property
    def has_asked(self) -> bool:
        """Whether leaders have been asked to yield."""
        return self._recut is not None and self._recut.phase >= RecutPhase.YIELD

    def text(self) -> str:
        """Say how far it is."""
        if self._recut is not None and self._recut.awaited:
            names = listed([member.title for member in self._recut.awaited.values()], MOST_NAMED)
            return f"waits for {names} to begin no push for a moment"
        if any(not copy.built for copy in self._coming):
            return "memory is made ready"
        return "its shards are cut anew"

    @property
    def _coming(self) -> list[Replica]:
        return list(self._startup.copies.coming.values())

    # --- how it is done ------------------------------------------------------------------------

    def begin(self, placement: Placement, homes: Homes, now: float) -> list[Action]:
        """Cut a job into these shards, on these servers: each has copies of all that its shard is made of."""
        if now < self._not_before:
            return []
        self.error = None
        self._recut = recut = Recutting(placement=placement, again_at=now + RETRY_S)
        for shard, (first, *others) in enumerate(homes):
            self._startup.copies.prepare(shard, first)
            for server in others:
                self._startup.copies.prepare(shard, server, backup=True)
        self._changed()
        return self._assign(recut)

    def _assign(self, recut: Recutting) -> list[Action]:
        waiting = [copy for copy in self._coming if not copy.built]
        return self._startup.assign(waiting, {"cut": True}, recut.placement)

    def look(self, now: float, *, may_cut: bool, number: Callable[[], int], hold_s: float) -> list[Action]:
        """Go on with what can be gone on with; called after every event while shards are to be cut."""
        if (recut := self._recut) is None:
            return []
        if not all(copy.built for copy in self._coming):
            if now < recut.again_at:
                return []
            recut.again_at = now + RETRY_S
            return self._assign(recut)
        if recut.phase is RecutPhase.BUILD:
            return self._begin_pause(recut, now, number) if may_cut and now >= self._not_before else []
        if now >= recut.held_at + hold_s:
            return self._put_off(f"it could not be done within {hold_s:g} s: {self.text()}", now)
        if recut.phase is RecutPhase.STEP:
            return self._hold(recut, now, number)
        if recut.phase is RecutPhase.HOLD:
            return self._hold_again(recut, now) if recut.awaited else self._cut(recut, now)
        return self._finish(recut, now)

    @property
    def _is_sync(self) -> bool:
        return self._steps.policy is not None and self._steps.policy.mode == "sync"

    def _begin_pause(self, recut: Recutting, now: float, number: Callable[[], int]) -> list[Action]:
        recut.phase, recut.held_at = RecutPhase.STEP, now
        self._startup.cutting = "the shards are cut anew"
        return self._hold(recut, now, number)

    def _hold(self, recut: Recutting, now: float, number: Callable[[], int]) -> list[Action]:
        """Let nobody begin a step, and once one is over, no push."""
        if self._is_sync:
            self._steps.pauses.holding = True
            if not (self._steps.is_held if recut.late else self._steps.is_between):
                return []
        recut.phase, recut.number = RecutPhase.HOLD, number()
        recut.paused_at, recut.again_at = now, now + RETRY_S
        told = [self._members[who] for who in self._views.told]
        recut.holding = {member.incarnation: member for member in told if member.role == "worker"}
        recut.awaited = dict(recut.holding)
        if not recut.awaited:
            return self._cut(recut, now)
        return [Send(worker.peer, Hold(recut.number)) for worker in recut.awaited.values()]

    def _hold_again(self, recut: Recutting, now: float) -> list[Action]:
        if now < recut.again_at:
            return []
        recut.again_at = now + RETRY_S
        return [Send(worker.peer, Hold(recut.number)) for worker in recut.awaited.values()]

    def holds(self, member: MemberInfo, number: int, now: float) -> bool:
        """A worker has no push under way; return whether that is for this pause."""
        recut = self._recut
        if recut is None or not number or number != recut.number or member.incarnation not in recut.holding:
            return False
        if not self._is_sync and len(recut.awaited) == len(recut.holding):
            recut.paused_at = now  # the first one: until now nobody had to wait
        recut.awaited.pop(member.incarnation, None)
        return True

    def _cut(self, recut: Recutting, now: float) -> list[Action]:
        """Let leaders answer for nothing any more; then, let servers fill the copies."""
        if self._is_sync and not self._steps.is_between:  # a step has begun meanwhile
            return self._wait_for_step(recut, now)
        recut.phase, recut.cut_at = RecutPhase.YIELD, now
        recut.answering = {copy.epoch: copy for copy in self._startup.copies if not copy.backup}
        for copy in recut.answering.values():
            copy.generation += 1
            self._steps.pauses.closed.add(copy.shard)
        self._startup.copies.changed()
        self._changed()
        return self._order(recut, now)

    def _wait_for_step(self, recut: Recutting, now: float) -> list[Action]:
        """A step has begun that only workers can end: they go on, and are held again once it is over."""
        gone_on = self._go_on(recut, now)
        recut.phase, recut.late, recut.number = RecutPhase.STEP, True, 0
        recut.holding, recut.answering = {}, {}
        self._steps.pauses.closed.clear()
        self._changed()
        return gone_on

    def _go_on(self, recut: Recutting, now: float) -> list[Action]:
        """Leaders keep their places, if they were asked to give them up, and workers go on."""
        shards = [copy.shard for copy in self._startup.copies if not copy.backup] if self.has_asked else []
        told = [Send(worker.peer, GoOn(recut.number)) for worker in recut.holding.values()]
        return [*(action for shard in shards for action in self._startup.copies.inform(shard, now)), *told]

    def _order(self, recut: Recutting, now: float) -> list[Action]:
        recut.again_at = now + RETRY_S
        if recut.phase is RecutPhase.YIELD:
            return [Send(copy.server.peer, Yield(copy.epoch, copy.generation)) for copy in recut.answering.values()]
        assert self._startup.placement is not None
        actions: list[Action] = []
        for copy in self._coming:
            if not copy.whole:
                its = parents(self._startup.placement, recut.placement, copy.shard)
                there = [other for other in self._startup.copies.of(copy.server) if other.shard in its]
                order = Cut(copy.epoch, tuple(other.epoch for other in there), self._steps.clock)
                actions.append(Send(copy.server.peer, order))
        return actions

    def _finish(self, recut: Recutting, now: float) -> list[Action]:
        """Let the copies be the shards, once all are filled."""
        if recut.phase is RecutPhase.YIELD or not all(copy.whole for copy in self._coming):
            return self._order(recut, now) if now >= recut.again_at else []
        startup, pause_s, num_before = self._startup, now - recut.paused_at, self._startup.num_shards
        revision = self._views.new_revision()
        startup.recut(recut.placement, revision)
        self._shortages.begin(now)
        self._steps.go_back(startup.copies, None)
        _, told = self._views.begin(ChangeKind.CUT, (), now, revision)
        self.longest_s = max(self.longest_s, pause_s)
        text = f"job {self._startup.name!r} lies in {startup.num_shards} shards now, instead of {num_before}"
        text += f" (after a pause of {pause_s:.3f} s, of which it took {now - recut.cut_at:.3f} s)"
        return [
            Log("info", text, job=self._startup.name),
            *told,
            *self._let_go(),
        ]

    def _let_go(self) -> list[Action]:
        """Workers go on, and those who come are told."""
        self._changed()
        self._recut, self._startup.cutting = None, ""
        self._steps.pauses.closed.clear()
        return [*self._steps.let_go(), *self._startup.answer()]

    def _put_off(self, why: str, now: float) -> list[Action]:
        """All stays as it is, for now."""
        self._not_before = now + PAUSE_S
        text = f"job {self._startup.name!r} is not cut anew yet: {why}"
        return [Log("warning", text, job=self._startup.name), *self.take_back(now)]

    def take_back(self, now: float) -> list[Action]:
        """Cut nothing: copies that were to be the shards are freed, and all others keep their places."""
        if self._recut is None:
            return []
        self._startup.drop_coming()
        return [*self._go_on(self._recut, now), *self._let_go()]

    # --- what servers say ----------------------------------------------------------------------

    def ready(self, copy: Replica, loaded: bool) -> None:
        """A server has built a copy, or filled it."""
        copy.built, copy.whole = True, copy.whole or loaded

    def failed(self, error: PSError, now: float) -> list[Action]:
        """A server could not do what it was told with a copy."""
        self.error = error
        return self._put_off(str(error), now)

    def yielded(self, copy: Replica, message: Yielded, now: float) -> list[Action] | None:
        """A leader answers for nothing any more, or cannot do that just now; None: this is not about being cut."""
        recut = self._recut
        if recut is None or not self.has_asked or message.generation != copy.generation:
            return None
        if message.busy and self._is_sync and not recut.late:
            # workers that push a step in parts have brought some of it: at another time it would be so again
            return self._wait_for_step(recut, now)
        if message.busy:
            return self._put_off(f"{copy.server.title} has gradients of a step that is not over", now)
        backups = [backup for backup in self._startup.copies.backups(copy.shard) if backup.whole]
        lacking = [backup.server.title for backup in backups if str(backup.epoch) not in message.numbers]
        if lacking:
            return self._put_off(f"{lacking[0]} lacks something of shard {copy.shard}", now)
        if recut.answering.pop(copy.epoch, None) is None or recut.answering:
            return []
        recut.phase = RecutPhase.FILL
        return [*self._order(recut, now), *self._finish(recut, now)]

    # --- who goes, and who follows -------------------------------------------------------------

    def lose(self, server: MemberInfo, now: float) -> list[Action]:
        """A server is gone: nothing is cut, as long as what it had is missing."""
        if any(copy.server is server for copy in [*self._startup.copies, *self._coming]):
            self._not_before = now + PAUSE_S
            return self.take_back(now)
        return []

    def leave(self, member: MemberInfo) -> None:
        """A member has gone."""
        if self._recut is not None:
            self._recut.holding.pop(member.incarnation, None)
            self._recut.awaited.pop(member.incarnation, None)

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return what is to be taken back, and the revision of the last cut; None for nothing."""
        coming = [[copy.shard, copy.epoch, copy.server.incarnation] for copy in self._coming]
        if not coming and not self._startup.cut:
            return None
        return [coming, self.has_asked, self._startup.cut]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> list[int]:
        """Take back what was begun; return the shards whose leaders are to keep their places."""
        coming, has_asked, self._startup.cut = kept
        for shard, epoch, who in coming:
            self._startup.given_up.append(Replica(shard=shard, epoch=epoch, server=members[who], moved=True))
        self._changed()
        return [copy.shard for copy in self._startup.copies if not copy.backup] if has_asked else []

    def validate(self) -> None:
        """Assert that what is held is here, and for something."""
        recut = self._recut
        if recut is None:
            assert not self._startup.copies.coming
            return
        assert set(recut.awaited) <= set(recut.holding) <= set(self._members)
        assert recut.phase > RecutPhase.BUILD or not recut.holding
        assert bool(recut.answering) == (recut.phase is RecutPhase.YIELD)
        assert not recut.awaited or recut.phase is RecutPhase.HOLD
