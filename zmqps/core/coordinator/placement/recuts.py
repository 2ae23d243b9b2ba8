"""The shards of one job are cut anew where they lie: in a pause between pushes, or between steps.

Copies that are to be filled are built first, while training goes on. Then workers begin no push. Once none is under
way, leaders answer for nothing any more, and their backups have all that they have; so each server fills the new
copies, leaders and backups alike, with what it has itself. Once all are filled, they are the shards: the others are
freed, and members are told. Until then nothing has changed, and can be taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.views import ChangeKind, MemberViews
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.recut import parents
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Cut, GoOn, Hold, Yield, Yielded
from zmqps.errors import PSError, listed

#: A server or member answers within milliseconds; one that did not may not have been told.
RETRY_S = 1.0
#: What could not be done is tried again after so long.
PAUSE_S = 5.0
#: How many workers that did not pause a text names.
MOST_NAMED = 4

#: Of each shard the server of its leader, and behind it those of its backups.
Homes: TypeAlias = Sequence[Sequence[MemberInfo]]


class Recuts:
    """Cuts the shards of one job anew, and tells its members.

    Parameters
    ----------
    name
        The job's.
    startup
        Knows the copies, and where they lie.
    steps
        Are held up, for a moment.
    members
        The live members of the job by incarnation; shared with its `JobRun`.
    views
        Tells them.
    keep
        Lets the leader of a shard keep its place after all: ``keep(shard, now)``.
    begun
        Called when the job lies in other shards: ``begun(now)``.
    changed
        Called when something has changed that is kept.

    Attributes
    ----------
    error
        Why the shards cannot be cut.
    on_cut
        Called when the job lies in other shards, by who else needs to know.
    """

    def __init__(
        self,
        name: str,
        startup: Startup,
        steps: Steps,
        members: Mapping[bytes, MemberInfo],
        views: MemberViews,
        keep: Callable[[int, float], list[Action]],
        begun: Callable[[float], None],
        changed: Changed = nothing,
    ) -> None:
        self.error: PSError | None = None
        self.longest_s = 0.0  # pause
        self.on_cut: Changed = nothing
        self._name = name
        self._startup = startup
        self._steps = steps
        self._members = members
        self._views = views
        self._keep = keep
        self._begun = begun
        self._changed = changed
        self._placement: Placement | None = None  # that is to be
        self._not_before = 0.0
        self._held_at: float | None = None  # since when steps, or pushes, are held
        self._paused_at = self._cut_at = 0.0  # since when some worker waits; since when no push is under way
        self._number = 0  # of the pause
        self._late = False  # somebody began a step before it was held: that one is to end first
        self._holding: dict[bytes, MemberInfo] = {}  # workers that begin no push
        self._awaited: dict[bytes, MemberInfo] = {}  # those of them that have not said so yet
        self._cutting = False  # whether leaders may answer for nothing any more
        self._answering: dict[int, Replica] = {}  # those that may, by epoch
        self._again_at = 0.0

    @property
    def active(self) -> bool:
        """Whether shards are about to be cut."""
        return self._placement is not None

    @property
    def is_cutting(self) -> bool:
        """Whether workers are held, or about to be."""
        return self._held_at is not None

    def text(self) -> str:
        """Say how far it is."""
        if self._awaited:
            names = listed([member.title for member in self._awaited.values()], MOST_NAMED)
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
        self._placement, self.error = placement, None
        for shard, (first, *others) in enumerate(homes):
            self._startup.copies.prepare(shard, first)
            for server in others:
                self._startup.copies.prepare(shard, server, backup=True)
        self._changed()
        self._again_at = now + RETRY_S
        return self._assign()

    def _assign(self) -> list[Action]:
        waiting = [copy for copy in self._coming if not copy.built]
        return self._startup.assign(waiting, {"cut": True}, self._placement)

    def look(self, now: float, *, may_cut: bool, number: Callable[[], int], hold_s: float) -> list[Action]:
        """Go on with what can be gone on with; called after every event while shards are to be cut."""
        if not self.active:
            return []
        if not all(copy.built for copy in self._coming):
            if now < self._again_at:
                return []
            self._again_at = now + RETRY_S
            return self._assign()
        if self._held_at is None:
            return self._hold(now, number) if may_cut and now >= self._not_before else []
        if now >= self._held_at + hold_s:
            return self._put_off(f"it could not be done within {hold_s:g} s: {self.text()}", now)
        if self._cutting:
            return self._finish(now)
        if not self._number:
            return self._hold(now, number)
        if self._awaited:
            return self._hold_again(now)
        return self._cut(now)

    @property
    def _is_sync(self) -> bool:
        return self._steps.policy is not None and self._steps.policy.mode == "sync"

    def _hold(self, now: float, number: Callable[[], int]) -> list[Action]:
        """Let nobody begin a step, and once one is over, no push."""
        if self._held_at is None:
            self._held_at = now
            self._startup.cutting = "the shards are cut anew"
        if self._is_sync:
            self._steps.pauses.holding = True
            if not (self._steps.is_held if self._late else self._steps.is_between):
                return []
        self._number, self._paused_at, self._again_at = number(), now, now + RETRY_S
        told = sorted(who for who in self._startup.told if who in self._members)
        self._holding = {who: self._members[who] for who in told if self._members[who].role == "worker"}
        self._awaited = dict(self._holding)
        if not self._awaited:
            return self._cut(now)
        return [Send(worker.peer, Hold(self._number)) for worker in self._awaited.values()]

    def _hold_again(self, now: float) -> list[Action]:
        if now < self._again_at:
            return []
        self._again_at = now + RETRY_S
        return [Send(worker.peer, Hold(self._number)) for worker in self._awaited.values()]

    def holds(self, member: MemberInfo, number: int, now: float) -> bool:
        """A worker has no push under way; return whether that is for this pause."""
        if not number or number != self._number or member.incarnation not in self._holding:
            return False
        if not self._is_sync and len(self._awaited) == len(self._holding):
            self._paused_at = now  # the first one: until now nobody had to wait
        self._awaited.pop(member.incarnation, None)
        return True

    def _cut(self, now: float) -> list[Action]:
        """Let leaders answer for nothing any more; then, let servers fill the copies."""
        if self._is_sync and not self._steps.is_between:  # a step has begun meanwhile
            return self._wait_for_step(now)
        self._cutting, self._cut_at = True, now
        self._answering = {copy.epoch: copy for copy in self._startup.copies if not copy.backup}
        for copy in self._answering.values():
            copy.generation += 1
            self._steps.pauses.closed.add(copy.shard)
        self._changed()
        return self._order(now)

    def _wait_for_step(self, now: float) -> list[Action]:
        """A step has begun that only workers can end: they go on, and are held again once it is over."""
        gone_on = self._go_on(now)
        self._late, self._cutting, self._number = True, False, 0
        self._holding, self._answering = {}, {}
        self._steps.pauses.closed.clear()
        self._changed()
        return gone_on

    def _go_on(self, now: float) -> list[Action]:
        """Leaders keep their places, if they were asked to give them up, and workers go on."""
        shards = [copy.shard for copy in self._startup.copies if not copy.backup] if self._cutting else []
        told = [Send(worker.peer, GoOn(self._number)) for worker in self._holding.values()]
        return [*(action for shard in shards for action in self._keep(shard, now)), *told]

    def _order(self, now: float) -> list[Action]:
        self._again_at = now + RETRY_S
        if self._answering:
            return [Send(copy.server.peer, Yield(copy.epoch, copy.generation)) for copy in self._answering.values()]
        assert self._placement is not None
        assert self._startup.placement is not None
        actions: list[Action] = []
        for copy in self._coming:
            if not copy.whole:
                its = parents(self._startup.placement, self._placement, copy.shard)
                there = [other for other in self._startup.copies.of(copy.server) if other.shard in its]
                order = Cut(copy.epoch, tuple(other.epoch for other in there), self._steps.clock)
                actions.append(Send(copy.server.peer, order))
        return actions

    def _finish(self, now: float) -> list[Action]:
        """Let the copies be the shards, once all are filled."""
        if self._answering or not all(copy.whole for copy in self._coming):
            return self._order(now) if now >= self._again_at else []
        assert self._placement is not None
        assert self._held_at is not None
        startup, pause_s, num_before = self._startup, now - self._paused_at, self._startup.num_shards
        revision = self._views.new_revision()
        startup.recut(self._placement, revision)
        self._begun(now)
        self.on_cut()
        self._steps.go_back(startup.copies, None)
        _, told = self._views.begin(ChangeKind.CUT, (), now, revision)
        self.longest_s = max(self.longest_s, pause_s)
        text = f"job {self._name!r} lies in {startup.num_shards} shards now, instead of {num_before}"
        text += f" (after a pause of {pause_s:.3f} s, of which it took {now - self._cut_at:.3f} s)"
        return [
            Log("info", text, job=self._name),
            *told,
            *self._let_go(),
        ]

    def _let_go(self) -> list[Action]:
        """Workers go on, and those who come are told."""
        self._changed()
        self._placement = self._held_at = None
        self._cutting, self._late, self._number, self._startup.cutting = False, False, 0, ""
        self._holding, self._awaited, self._answering = {}, {}, {}
        self._steps.pauses.closed.clear()
        return [*self._steps.let_go(), *self._startup.answer()]

    def _put_off(self, why: str, now: float) -> list[Action]:
        """All stays as it is, for now."""
        self._not_before = now + PAUSE_S
        text = f"job {self._name!r} is not cut anew yet: {why}"
        return [Log("warning", text, job=self._name), *self.take_back(now)]

    def take_back(self, now: float) -> list[Action]:
        """Cut nothing: copies that were to be the shards are freed, and all others keep their places."""
        if not self.active:
            return []
        self._startup.drop_coming()
        return [*self._go_on(now), *self._let_go()]

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
        if not self._cutting or message.generation != copy.generation:
            return None
        if message.busy and self._is_sync and not self._late:
            # workers that push a step in parts have brought some of it: at another time it would be so again
            return self._wait_for_step(now)
        if message.busy:
            return self._put_off(f"{copy.server.title} has gradients of a step that is not over", now)
        backups = [backup for backup in self._startup.copies.backups(copy.shard) if backup.whole]
        lacking = [backup.server.title for backup in backups if str(backup.epoch) not in message.numbers]
        if lacking:
            return self._put_off(f"{lacking[0]} lacks something of shard {copy.shard}", now)
        if self._answering.pop(copy.epoch, None) is None or self._answering:
            return []
        return [*self._order(now), *self._finish(now)]

    # --- who goes, and who follows -------------------------------------------------------------

    def lose(self, server: MemberInfo, now: float) -> list[Action]:
        """A server is gone: nothing is cut, as long as what it had is missing."""
        if any(copy.server is server for copy in [*self._startup.copies, *self._coming]):
            self._not_before = now + PAUSE_S
            return self.take_back(now)
        return []

    def leave(self, member: MemberInfo) -> None:
        """A member has gone."""
        self._holding.pop(member.incarnation, None)
        self._awaited.pop(member.incarnation, None)

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return what is to be taken back, and the revision of the last cut; None for nothing."""
        coming = [[copy.shard, copy.epoch, copy.server.incarnation] for copy in self._coming]
        if not coming and not self._startup.cut:
            return None
        return [coming, self._cutting, self._startup.cut]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> list[int]:
        """Take back what was begun; return the shards whose leaders are to keep their places."""
        coming, cutting, self._startup.cut = kept
        for shard, epoch, who in coming:
            self._startup.given_up.append(Replica(shard=shard, epoch=epoch, server=members[who], moved=True))
        self._changed()
        return [copy.shard for copy in self._startup.copies if not copy.backup] if cutting else []

    def validate(self) -> None:
        """Assert that what is held is here, and for something."""
        assert self.active or not (self._holding or self._cutting or self._startup.copies.coming)
        assert set(self._awaited) <= set(self._holding) <= set(self._members)
        assert not self._cutting or self._held_at is not None
        assert self._cutting or not self._answering
