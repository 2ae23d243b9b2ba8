"""Changes of a job's placement that briefly pause its workers: handovers of single copies, and recuts of all shards.

New copies are made first, while training continues. Then the next step is held and leaders give up their places, so
that the new copies have every update. Until these take over nothing has changed, and the change can be cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, TypeAlias

from zmqps.core.coordinator.journal import Changed, KeptDict, KeptRecord, Plain, nothing, unkept
from zmqps.core.coordinator.members.membership import LeavingState, MemberInfo
from zmqps.core.coordinator.placement.copies import RETRY_S, Replica, ReplicaSet
from zmqps.core.coordinator.placement.shortages import Shortages
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.views import MemberViews
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.recut import parents
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import ChangeKind, Cut, Hold, Lead, Leading, Yield, Yielded
from zmqps.errors import PSError, listed

#: A leader that has not given up its place after so long keeps it, and workers wait no longer for the next step.
PATIENCE_S = 10.0
#: What could not be done is tried again after so long.
PAUSE_S = 5.0
#: How often to check whether a shard that should move still has to wait.
LOOK_S = 0.1
#: How many reasons why a copy cannot move, or workers that did not pause, a text names.
MOST_NAMED = 4

#: Of each shard the server of its leader, followed by those of its backups.
Homes: TypeAlias = Sequence[Sequence[MemberInfo]]


class Phase(IntEnum):
    """How far a transition is, in this order; HOLD and FILL are a recut's alone, ADOPT a handover's.

    PREPARE: new copies are built or filled, or wait until shards may have other leaders. QUIESCE: the next step is
    held, and the open one ends. HOLD: workers begin no push. FREEZE: leaders are asked to give up their places.
    FILL: servers fill the new copies from their own. ADOPT: the new copy takes over.
    """

    PREPARE, QUIESCE, HOLD, FREEZE, FILL, ADOPT = range(6)


@dataclass(slots=True, eq=False, kw_only=True)
class Transition(KeptRecord):
    """A change of the placement in progress."""

    kept: ClassVar = {"phase": "phase"}

    changed: Callable[[str], None] = unkept
    not_before: float = 0.0  # the earliest time to ask leaders to give up their places
    phase: Phase = Phase.PREPARE
    held_at: float | None = None  # since when the next step, or every push, is held
    frozen_at: float = 0.0  # when leaders were asked to give up their places
    again_at: float = 0.0  # when unanswered orders are sent again
    late: bool = False  # a step had begun when leaders, or workers, were asked: it ends first

    @property
    def is_frozen(self) -> bool:
        """Whether leaders were asked to give up their places."""
        return self.phase >= Phase.FREEZE

    def is_due(self, now: float) -> bool:
        """Whether to resend what is unanswered; notes the time."""
        if now < self.again_at:
            return False
        self.again_at = now + RETRY_S
        return True


@dataclass(slots=True, eq=False, kw_only=True)
class Handover(Transition):
    """One copy that moves."""

    old: Replica
    new: Replica
    made: bool  # the new copy is there for this alone
    numbers: Mapping[int, int] = field(default_factory=dict)  # by epoch: the last record of each backup that it had


@dataclass(slots=True, eq=False, kw_only=True)
class Recutting(Transition):
    """The recut of all shards of a job."""

    placement: Placement
    paused_at: float = 0.0  # since when a worker waits
    number: int = 0  # of the pause
    holding: dict[bytes, MemberInfo] = field(default_factory=dict)  # the workers that begin no push
    awaited: dict[bytes, MemberInfo] = field(default_factory=dict)  # those of them that have not said so yet
    answering: dict[int, Replica] = field(default_factory=dict)  # leaders that may still answer workers, by epoch


class Transitions:
    """What handovers and recuts have in common: steps are held, and leaders give up their places."""

    def __init__(self, startup: Startup, steps: Steps, shortages: Shortages) -> None:
        self._startup = startup
        self._steps = steps
        self._shortages = shortages

    @property
    def _copies(self) -> ReplicaSet:
        return self._startup.copies

    def _mark(self, what: str) -> None:
        """A transition has another phase."""
        self._copies.changed()

    def _is_quiet(self, transition: Transition, now: float) -> bool:
        """Hold the next step; return whether the last one is over, and servers have no worker's gradients."""
        if not self._steps.is_sync:
            return True
        if transition.held_at is None:
            transition.phase, transition.held_at = Phase.QUIESCE, now
        self._steps.pauses.holding = True
        return self._steps.is_held if transition.late else self._steps.is_between

    def _freeze(self, transition: Transition, leaders: Iterable[Replica], now: float) -> None:
        """Leaders should give up their places: nothing is committed there."""
        transition.phase, transition.frozen_at, transition.again_at = Phase.FREEZE, now, now + RETRY_S
        for leader in leaders:
            leader.generation += 1
            self._steps.pauses.closed.add(leader.shard)


class Handovers(Transitions):
    """The copies of one job that move because their servers leave.

    A copy is filled on another server as any backup is. Once it is whole, a backup simply takes the place of the one
    that was there; a leader gives up its place when its backups have all that it has done, and the new copy takes over.
    """

    def __init__(self, startup: Startup, steps: Steps, shortages: Shortages) -> None:
        super().__init__(startup, steps, shortages)
        #: By the epoch of the copy that goes.
        self.under_way: dict[int, Handover] = KeptDict(lambda: self._copies.changed())
        self.stuck: dict[int, str] = {}  # why a copy fits on no server, by its epoch

    @property
    def holds(self) -> bool:
        """Whether steps are held because a shard will move."""
        return any(handover.held_at is not None for handover in self.under_way.values())

    @property
    def asked(self) -> set[int]:
        """The shards whose leaders were asked to give up their places."""
        return {handover.old.shard for handover in self.under_way.values() if handover.is_frozen}

    # --- what should move -----------------------------------------------------------------------

    def plan(self, servers: Sequence[MemberInfo], now: float) -> list[Action]:
        """Begin to copy what draining servers have; cancel handovers that are no longer needed."""
        if not self._startup.ready:
            return []
        actions: list[Action] = []
        for handover in list(self.under_way.values()):
            if not handover.is_frozen and (not handover.old.server.leaving or handover.new.server.leaving):
                actions += self._cancel(handover, now)
        copies = self._copies
        staying = [server for server in servers if not server.leaving and not server.absent]
        on_the_way = {copy.epoch for handover in self.under_way.values() for copy in (handover.old, handover.new)}
        going = [copy for copy in copies if copy.server.leaving and copy.epoch not in on_the_way]
        self.stuck = {epoch: why for epoch, why in self.stuck.items() if epoch in {copy.epoch for copy in going}}
        for copy in going:
            if not copies.can_fill(copy.shard):
                continue
            if (server := copies.best(copy.shard, staying, copy)) is None:
                if not any(other.absent for other in servers):  # else it may be back soon, and take it
                    actions += self._make_do(copy, staying, now)
                continue
            self.stuck.pop(copy.epoch, None)
            new = copies.add(copy.shard, server, backup=True)
            self.under_way[copy.epoch] = Handover(changed=self._mark, old=copy, new=new, made=True, not_before=now)
            what = "backup of shard" if copy.backup else "shard"
            text = f"{what} {copy.shard} moves from {copy.server.title} to {server.title}"
            actions += [
                self._startup.story.log("info", text),
                *self._startup.assign([new]),
                *copies.inform(copy.shard, now),
            ]
        return actions

    def _make_do(self, copy: Replica, staying: Sequence[MemberInfo], now: float) -> list[Action]:
        """No other server can take one more copy: one that goes in any case leaves it with those it has."""
        self.stuck[copy.epoch] = why = self._why(copy, staying)
        others = [other for other in self._copies if other.shard == copy.shard and not other.server.leaving]
        if copy.server.leaving is not LeavingState.MUST_GO or not others:
            return []
        del self.stuck[copy.epoch]
        heir = next((other for other in others if other.whole), None)
        if heir is None:
            return []  # it is being filled
        if copy.backup:
            return self._give_up(copy, why, now)
        self.under_way[copy.epoch] = Handover(changed=self._mark, old=copy, new=heir, made=False, not_before=now)
        return []

    def _give_up(self, copy: Replica, why: str, now: float) -> list[Action]:
        """A backup goes without another one in its place."""
        self._startup.drop(copy)
        self._shortages.note(copy.shard, why, now)
        return self._copies.inform(copy.shard, now)

    def _why(self, copy: Replica, staying: Sequence[MemberInfo]) -> str:
        what = f"{'the backup of ' * copy.backup}shard {copy.shard} of job {self._startup.name!r}"
        others = [server for server in staying if server is not copy.server]
        if not others:
            return f"there is no other server that could take {what}"
        having = {other.server.incarnation for other in self._copies if other.shard == copy.shard}
        whys = [
            f"{server.title} has a copy of it"
            if server.incarnation in having
            else f"{server.title}: {self._copies.unfit.get((server.incarnation, copy.shard), '')}"
            for server in others
        ]
        return f"no other server can take {what}: {listed(whys, MOST_NAMED)}"

    def _cancel(self, handover: Handover, now: float) -> list[Action]:
        """A copy stays where it is, or goes elsewhere."""
        backups = [copy for copy in self._copies.backups(handover.old.shard) if copy.whole]
        needed = handover.new in backups and len(backups) <= self._shortages.replicas  # it stays a backup
        if handover.made and not needed:
            self._startup.drop(handover.new)
        return [*self._forget(handover), *self._copies.inform(handover.old.shard, now)]

    def _forget(self, handover: Handover) -> list[Action]:
        del self.under_way[handover.old.epoch]
        return self._let_go(handover)

    def _let_go(self, handover: Handover) -> list[Action]:
        """Steps need not wait for this one any more."""
        handover.phase, handover.held_at, handover.old.yielded = Phase.PREPARE, None, False
        return self.taken(handover.old.shard)

    def lose(self, copy: Replica) -> list[Action]:
        """A copy, perhaps a moving one, is lost; its server or the leader then gets the list of backups."""
        found = [handover for handover in self.under_way.values() if copy in (handover.old, handover.new)]
        return [action for handover in found for action in self._forget(handover)]

    def forget(self, shard: int) -> list[Action]:
        """No copy of a shard is left that counts."""
        found = [handover for handover in self.under_way.values() if handover.old.shard == shard]
        return [action for handover in found for action in self._forget(handover)]

    def moves(self, copy: Replica) -> bool:
        """Whether a copy moves, or is what another one moves to."""
        return any(copy in (handover.old, handover.new) for handover in self.under_way.values())

    def take_back(self, now: float) -> list[Action]:
        """Cancel all handovers: new copies are freed, and leaders keep their places."""
        self.stuck.clear()
        return [action for handover in list(self.under_way.values()) for action in self._cancel(handover, now)]

    def stop(self) -> None:
        """The job has lost a shard: nothing moves any more, and no step continues."""
        for handover in self.under_way.values():
            handover.old.yielded = False
        self.under_way.clear()
        self.stuck.clear()

    # --- how it moves --------------------------------------------------------------------------

    def look(self, now: float, *, may_cut: bool) -> list[Action]:
        """Take each possible next step; called after every event while something moves.

        ``may_cut``: whether shards may have other leaders now.
        """
        actions: list[Action] = []
        for handover in list(self.under_way.values()):
            if not handover.new.whole:
                continue
            if handover.old.backup:
                actions += self._replace(handover, now)
            elif handover.is_frozen:
                actions += self._chase(handover, now)
            elif handover.held_at is not None and now >= handover.held_at + PATIENCE_S:
                actions += self._put_off(handover, PAUSE_S, now)
            elif now >= handover.not_before and may_cut and handover.old.order is None:
                actions += self._cut(handover, now)
            elif now >= handover.not_before:
                handover.not_before = now + LOOK_S
        return actions

    def _replace(self, handover: Handover, now: float) -> list[Action]:
        """The new backup is whole: the one before is not needed any more."""
        del self.under_way[handover.old.epoch]
        self._startup.drop(handover.old)
        text = f"the backup of shard {handover.old.shard} is on {handover.new.server.title} now"
        return [self._startup.story.log("info", text), *self._copies.inform(handover.old.shard, now)]

    def _cut(self, handover: Handover, now: float) -> list[Action]:
        """Ask the leader to give up its place, as soon as it has no worker's gradients."""
        if not self._is_quiet(handover, now):
            return []
        self._freeze(handover, [handover.old], now)
        return [self._order(handover)]

    def _order(self, handover: Handover) -> Action:
        """Tell the leader to give up its place; or, once it has, the new copy to take it."""
        old, new = handover.old, handover.new
        if handover.phase is Phase.FREEZE:
            return Send(old.server.peer, Yield(old.epoch, old.generation))
        equals = self._copies.rows_of_equals(new, handover.numbers)
        return Send(new.server.peer, Lead(new.epoch, old.generation + 1, equals))

    def _put_off(self, handover: Handover, seconds: float, now: float) -> list[Action]:
        handover.not_before, handover.late = now + seconds, False
        return self._let_go(handover)

    def _chase(self, handover: Handover, now: float) -> list[Action]:
        if now < handover.frozen_at + PATIENCE_S:
            return [self._order(handover)] if handover.is_due(now) else []
        late = handover.new if handover.phase is Phase.ADOPT else handover.old
        text = f"{late.server.title} does not answer, so shard {late.shard} stays for now"
        said = self._startup.story.log("warning", text)
        if late is handover.new:  # it may have taken over, but no member knows or will learn of it
            return [said, *self._cancel(handover, now)]
        return [said, *self._put_off(handover, PAUSE_S, now), *self._copies.inform(late.shard, now)]

    def yielded(self, copy: Replica, message: Yielded, now: float) -> list[Action]:
        """A leader has given up its place, or cannot just now."""
        handover = self.under_way.get(copy.epoch)
        if handover is None or not handover.is_frozen or message.generation != copy.generation:
            return []
        if message.busy and handover.held_at is None:
            return self._put_off(handover, RETRY_S, now)
        if message.busy:
            handover.phase, handover.late = Phase.QUIESCE, True
            self._steps.pauses.closed.discard(copy.shard)
            return []
        numbers = {int(epoch): n for epoch, n in message.numbers.items() if epoch.isdecimal() and type(n) is int}
        if handover.phase is Phase.ADOPT:
            return []
        if handover.new.epoch not in numbers:  # it lacks something after all: the leader keeps its place for now
            return [*self._put_off(handover, RETRY_S, now), *self._copies.inform(copy.shard, now)]
        handover.phase, handover.numbers, handover.again_at = Phase.ADOPT, numbers, now + RETRY_S
        copy.yielded = True
        return [self._order(handover)]

    def complete(self, new: Replica, message: Leading, now: float) -> tuple[Handover | None, list[Action]]:
        """A copy has taken over; return the handover that is complete with that."""
        adopted = (found for found in self.under_way.values() if found.phase is Phase.ADOPT)
        handover = next((found for found in adopted if found.new is new), None)
        if handover is None or message.generation != handover.old.generation + 1:
            return None, []
        del self.under_way[handover.old.epoch]
        text = f"shard {new.shard} is on {new.server.title} now, and no more on {handover.old.server.title}"
        return handover, [self._startup.story.log("info", f"{text} (after {now - handover.frozen_at:.3f} s)", "moved")]

    def taken(self, shard: int) -> list[Action]:
        """A new copy has taken over, or will not any more: steps continue."""
        self._steps.pauses.closed.discard(shard)
        return [] if self.holds else self._steps.let_go()

    def next_deadline(self) -> float | None:
        """Return the latest time for the next call of `look`."""
        dues = list[float]()
        for handover in self.under_way.values():
            if handover.is_frozen:
                dues.append(min(handover.again_at, handover.frozen_at + PATIENCE_S))
            elif handover.held_at is not None:
                dues.append(handover.held_at + PATIENCE_S)
            elif handover.new.whole:
                dues.append(handover.not_before)
        return min(dues, default=None)

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return which copies move where, and of which the leader was asked to give up its place."""
        return [[h.old.epoch, h.new.epoch, h.made, h.is_frozen] for h in self.under_way.values()]

    def restore(self, kept: Plain, now: float) -> None:
        """Continue with what was kept: a leader that was asked is asked again, and says again what it has said."""
        copies = self._copies.by_epoch
        for old, new, made, asked in kept:
            self.under_way[old] = handover = Handover(
                changed=self._mark, old=copies[old], new=copies[new], made=made, not_before=now
            )
            if asked:
                handover.phase, handover.frozen_at, handover.again_at = Phase.FREEZE, now, now + RETRY_S
                self._steps.pauses.closed.add(handover.old.shard)

    # --- what others may look at ---------------------------------------------------------------

    def texts(self, server: MemberInfo) -> Iterator[str]:
        """Yield what of a server moves where, and how far that is."""
        for handover in self.under_way.values():
            if handover.old.server is not server:
                continue
            what = f"{'backup of ' * handover.old.backup}shard {handover.old.shard}"
            yield f"{what} to {handover.new.server.hello.name}, {handover.new.progress:.0f}%"

    def validate(self) -> None:
        """Assert that what moves is there, and moves from one server to another."""
        copies = self._copies.by_epoch
        for epoch, handover in self.under_way.items():
            assert copies[epoch] is handover.old
            assert copies[handover.new.epoch] is handover.new
            assert handover.new.backup
            assert handover.phase is not Phase.QUIESCE or handover.held_at is not None
            assert handover.new.shard == handover.old.shard
            assert handover.new.server is not handover.old.server
        adopted = {epoch for epoch, handover in self.under_way.items() if handover.phase is Phase.ADOPT}
        assert {copy.epoch for copy in self._copies if copy.yielded} == adopted


class Recuts(Transitions):
    """Cuts the shards of one job again where they are, in a pause between pushes or steps, and tells its members.

    Once no push is under way, leaders answer nothing any more, and their backups have all that they have; so each
    server fills the new copies, leaders and backups alike, from its own. Once all are filled, they replace the old
    copies, which are freed, and members are informed.
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
        super().__init__(startup, steps, shortages)
        self.error: PSError | None = None  # why the shards cannot be cut
        self.longest_s = 0.0  # the longest pause of pushes
        self._members = members
        self._views = views
        self._changed = changed
        self._not_before = 0.0
        self._recut: Recutting | None = None  # that is under way

    def _mark(self, what: str) -> None:
        self._changed()

    @property
    def active(self) -> bool:
        """Whether shards are about to be cut."""
        return self._recut is not None

    @property
    def is_cutting(self) -> bool:
        """Whether workers are held, or about to be."""
        return self._recut is not None and self._recut.phase > Phase.PREPARE

    @property
    def has_asked(self) -> bool:
        """Whether leaders have been asked to yield."""
        return self._recut is not None and self._recut.is_frozen

    def text(self) -> str:
        """Say how far it is."""
        if self._recut is not None and self._recut.awaited:
            names = listed([member.title for member in self._recut.awaited.values()], MOST_NAMED)
            return f"waits for {names} to begin no push for a moment"
        if any(not copy.built for copy in self._coming):
            return "memory is made ready"
        return "its shards are recut"

    @property
    def _coming(self) -> list[Replica]:
        return list(self._copies.coming.values())

    # --- how it is done ------------------------------------------------------------------------

    def begin(self, placement: Placement, homes: Homes, now: float) -> list[Action]:
        """Cut a job into these shards, on these servers: each has copies of all that its shard is made of."""
        if now < self._not_before:
            return []
        self.error = None
        self._recut = recut = Recutting(changed=self._mark, placement=placement, again_at=now + RETRY_S)
        for shard, (first, *others) in enumerate(homes):
            self._copies.prepare(shard, first)
            for server in others:
                self._copies.prepare(shard, server, backup=True)
        self._changed()
        return self._assign(recut)

    def _assign(self, recut: Recutting) -> list[Action]:
        waiting = [copy for copy in self._coming if not copy.built]
        return self._startup.assign(waiting, {"cut": True}, recut.placement)

    def look(self, now: float, *, may_cut: bool, number: Callable[[], int], hold_s: float) -> list[Action]:
        """Take each possible next step; called after every event while shards are being divided."""
        if (recut := self._recut) is None:
            return []
        if not all(copy.built for copy in self._coming):
            return self._assign(recut) if recut.is_due(now) else []
        if recut.phase is Phase.PREPARE:
            return self._begin_pause(recut, now, number) if may_cut and now >= self._not_before else []
        if recut.held_at is not None and now >= recut.held_at + hold_s:
            return self._put_off(f"it could not be done within {hold_s:g} s: {self.text()}", now)
        if recut.phase is Phase.QUIESCE:
            return self._hold(recut, now, number)
        if recut.phase is Phase.HOLD:
            return self._hold_again(recut, now) if recut.awaited else self._cut(recut, now)
        return self._finish(recut, now)

    def _begin_pause(self, recut: Recutting, now: float, number: Callable[[], int]) -> list[Action]:
        recut.phase, recut.held_at = Phase.QUIESCE, now
        self._startup.cutting = "the shards are recut"
        return self._hold(recut, now, number)

    def _hold(self, recut: Recutting, now: float, number: Callable[[], int]) -> list[Action]:
        """Hold the next step, and once the last is over, every push."""
        if not self._is_quiet(recut, now):
            return []
        recut.phase, recut.number = Phase.HOLD, number()
        recut.paused_at, recut.again_at = now, now + RETRY_S
        told = [self._members[who] for who in self._views.told]
        recut.holding = {member.incarnation: member for member in told if member.role == "worker"}
        recut.awaited = dict(recut.holding)
        if not recut.awaited:
            return self._cut(recut, now)
        return [Send(worker.peer, Hold(recut.number)) for worker in recut.awaited.values()]

    def _hold_again(self, recut: Recutting, now: float) -> list[Action]:
        due = recut.is_due(now)
        return [Send(worker.peer, Hold(recut.number)) for worker in recut.awaited.values()] if due else []

    def holds(self, member: MemberInfo, number: int, now: float) -> bool:
        """A worker has no push under way; return whether that is for this pause."""
        recut = self._recut
        if recut is None or not number or number != recut.number or member.incarnation not in recut.holding:
            return False
        if not self._steps.is_sync and len(recut.awaited) == len(recut.holding):
            recut.paused_at = now  # the first one: until now no worker had to wait
        recut.awaited.pop(member.incarnation, None)
        return True

    def _cut(self, recut: Recutting, now: float) -> list[Action]:
        """Let leaders answer for nothing any more; then, let servers fill the copies."""
        if self._steps.is_sync and not self._steps.is_between:  # a step has begun meanwhile
            return self._wait_for_step(recut, now)
        recut.answering = {copy.epoch: copy for copy in self._copies if not copy.backup}
        self._freeze(recut, recut.answering.values(), now)
        return self._order(recut, now)

    def _wait_for_step(self, recut: Recutting, now: float) -> list[Action]:
        """A step has begun that only workers can end: they continue, and are held again once it is over."""
        gone_on = self._go_on(recut, now)
        recut.phase, recut.late, recut.number = Phase.QUIESCE, True, 0
        recut.holding, recut.answering = {}, {}
        self._steps.pauses.closed.clear()
        return gone_on

    def _go_on(self, recut: Recutting, now: float) -> list[Action]:
        """Leaders keep their places, if they were asked to give them up, and workers continue."""
        shards = [copy.shard for copy in self._copies if not copy.backup] if self.has_asked else []
        told = [Send(worker.peer, Hold(recut.number, ends=1)) for worker in recut.holding.values()]
        return [*(action for shard in shards for action in self._copies.inform(shard, now)), *told]

    def _order(self, recut: Recutting, now: float) -> list[Action]:
        recut.again_at = now + RETRY_S
        if recut.phase is Phase.FREEZE:
            return [Send(copy.server.peer, Yield(copy.epoch, copy.generation)) for copy in recut.answering.values()]
        assert self._startup.placement is not None
        actions: list[Action] = []
        for copy in self._coming:
            if not copy.whole:
                its = parents(self._startup.placement, recut.placement, copy.shard)
                there = [other for other in self._copies.of(copy.server) if other.shard in its]
                order = Cut(copy.epoch, tuple(other.epoch for other in there), self._steps.clock)
                actions.append(Send(copy.server.peer, order))
        return actions

    def _finish(self, recut: Recutting, now: float) -> list[Action]:
        """Let the copies be the shards, once all are filled."""
        if recut.phase is Phase.FREEZE or not all(copy.whole for copy in self._coming):
            return self._order(recut, now) if now >= recut.again_at else []
        startup, pause_s, num_before = self._startup, now - recut.paused_at, self._startup.num_shards
        revision = self._views.new_revision()
        startup.recut(recut.placement, revision)
        self._shortages.begin(now)
        self._steps.go_back(startup.copies, None)
        _, told = self._views.begin(ChangeKind.CUT, (), now, revision)
        self.longest_s = max(self.longest_s, pause_s)
        text = f"job {startup.name!r} has {startup.num_shards} shards now, instead of {num_before}"
        text += f" (after a pause of {pause_s:.3f} s, of which it took {now - recut.frozen_at:.3f} s)"
        return [Log("info", text, job=startup.name), *told, *self._let_go()]

    def _let_go(self) -> list[Action]:
        """Let workers continue, and answer those that have joined meanwhile."""
        self._changed()
        self._recut, self._startup.cutting = None, ""
        self._steps.pauses.closed.clear()
        return [*self._steps.let_go(), *self._startup.answer()]

    def _put_off(self, why: str, now: float) -> list[Action]:
        """Leave the shards as they are for now."""
        self._not_before = now + PAUSE_S
        text = f"job {self._startup.name!r} is not recut yet: {why}"
        return [Log("warning", text, job=self._startup.name), *self.take_back(now)]

    def take_back(self, now: float) -> list[Action]:
        """Cut nothing: copies of planned shards are freed, and all others keep their places."""
        if self._recut is None:
            return []
        self._startup.drop_coming()
        return [*self._go_on(self._recut, now), *self._let_go()]

    # --- what servers say ----------------------------------------------------------------------

    def ready(self, copy: Replica, loaded: bool) -> None:
        """A server has built a copy, or filled it."""
        copy.built, copy.whole = True, copy.whole or loaded

    def failed(self, error: PSError, now: float) -> list[Action]:
        """A server could not carry out an order about a copy."""
        self.error = error
        return self._put_off(str(error), now)

    def yielded(self, copy: Replica, message: Yielded, now: float) -> list[Action] | None:
        """A leader answers for nothing any more, or cannot do that just now; None: this is not about being cut."""
        recut = self._recut
        if recut is None or not self.has_asked or message.generation != copy.generation:
            return None
        if message.busy and self._steps.is_sync and not recut.late:
            # workers that push a step in parts have brought some of it: at another time it would be so again
            return self._wait_for_step(recut, now)
        if message.busy:
            return self._put_off(f"{copy.server.title} has gradients of a step that is not over", now)
        backups = [backup for backup in self._copies.backups(copy.shard) if backup.whole]
        lacking = [backup.server.title for backup in backups if str(backup.epoch) not in message.numbers]
        if lacking:
            return self._put_off(f"{lacking[0]} lacks something of shard {copy.shard}", now)
        if recut.answering.pop(copy.epoch, None) is None or recut.answering:
            return []
        recut.phase = Phase.FILL
        return [*self._order(recut, now), *self._finish(recut, now)]

    # --- lost servers, and members that follow -------------------------------------------------

    def lose(self, server: MemberInfo, now: float) -> list[Action]:
        """Handle the loss of a server: nothing is recut while its copies are missing."""
        if any(copy.server is server for copy in [*self._copies, *self._coming]):
            self._not_before = now + PAUSE_S
            return self.take_back(now)
        return []

    def leave(self, member: MemberInfo) -> None:
        """A member has left."""
        if self._recut is not None:
            self._recut.holding.pop(member.incarnation, None)
            self._recut.awaited.pop(member.incarnation, None)

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return what must be taken back, and the revision of the last cut; None for nothing."""
        coming = [[copy.shard, copy.epoch, copy.server.incarnation] for copy in self._coming]
        if not coming and not self._startup.cut:
            return None
        return [coming, self.has_asked, self._startup.cut]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> list[int]:
        """Take back what was begun; return the shards whose leaders stay."""
        coming, has_asked, self._startup.cut = kept
        for shard, epoch, who in coming:
            self._startup.given_up.append(Replica(shard=shard, epoch=epoch, server=members[who], moved=True))
        self._changed()
        return [copy.shard for copy in self._copies if not copy.backup] if has_asked else []

    def validate(self) -> None:
        """Assert that what is held is here, and for something."""
        recut = self._recut
        if recut is None:
            assert not self._copies.coming
            return
        assert set(recut.awaited) <= set(recut.holding) <= set(self._members)
        assert recut.phase > Phase.PREPARE or not recut.holding
        assert bool(recut.answering) == (recut.phase is Phase.FREEZE)
        assert not recut.awaited or recut.phase is Phase.HOLD
