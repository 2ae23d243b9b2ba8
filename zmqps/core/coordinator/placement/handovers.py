"""Copies of shards that move from a server that is to go to one that stays, while training goes on.

The copy is filled on the other server as any backup is. Once it is whole, a backup simply takes the place of the one
that was there; a leader gives up its place when its backups have all that it has done, and the new copy takes over.
In the synchronous mode that happens between two steps, when servers have nobody's gradients: whoever has completed the
one waits for it before the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import LeavingState, MemberInfo
from zmqps.core.coordinator.placement.copies import RETRY_S, Replica
from zmqps.core.coordinator.placement.shortages import Shortages
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Promote, Promoted, Yield, Yielded
from zmqps.errors import listed

#: A leader that has not given up its place after so long keeps it, and workers wait no longer for the next step. It is
#: asked again after a while.
PATIENCE_S, PAUSE_S = 10.0, 5.0
#: So often it is looked whether what a shard waits for, before it moves, is over.
LOOK_S = 0.1
#: Of reasons why nobody can take something an error names so many.
MOST_REASONS = 4


class HandoverPhase(IntEnum):
    """How far a copy is that moves, in this order.

    FILL: the new copy is filled, or waits until there may be a cut. QUIESCE: nobody begins the next step, and the one
    that is open ends. YIELD: the leader is asked to give up its place. ADOPT: it has, and the new copy is to take it.
    """

    FILL, QUIESCE, YIELD, ADOPT = range(4)


@dataclass(slots=True, eq=False, kw_only=True)
class Handover:
    """One copy that moves."""

    old: Replica
    new: Replica
    made: bool  # the new copy is there for this alone
    not_before: float  # when its leader may be asked to give up its place
    phase: HandoverPhase = HandoverPhase.FILL
    held_at: float | None = None  # since when nobody begins the next step, in the synchronous mode
    asked_at: float = 0.0  # when its leader was asked
    again_at: float = 0.0  # when it is asked again
    busy: bool = False  # it had gradients of the step when it was asked: the step is to end first
    numbers: Mapping[int, int] = field(default_factory=dict)  # by epoch: the last record of each backup that it had

    @property
    def is_cut(self) -> bool:
        """Whether its leader was asked to give up its place."""
        return self.phase >= HandoverPhase.YIELD


class Handovers:
    """The copies of one job that move.

    Attributes
    ----------
    under_way
        The copies that move, by the epoch of the copy that goes.
    stuck
        Why nobody can take a copy, by its epoch.
    """

    def __init__(self, startup: Startup, steps: Steps, shortages: Shortages) -> None:
        self._startup = startup
        self._steps = steps
        self._shortages = shortages
        self.under_way: dict[int, Handover] = {}
        self.stuck: dict[int, str] = {}

    @property
    def holds(self) -> bool:
        """Whether steps are held because a shard is to move."""
        return any(handover.held_at is not None for handover in self.under_way.values())

    @property
    def asked(self) -> set[int]:
        """The shards whose leaders were asked to give up their places."""
        return {handover.old.shard for handover in self.under_way.values() if handover.is_cut}

    # --- what is to move -----------------------------------------------------------------------

    def plan(self, servers: Sequence[MemberInfo], now: float) -> list[Action]:
        """Begin to copy what servers have that are to go, of all; and give up what is not to move any more."""
        if not self._startup.ready:
            return []
        actions: list[Action] = []
        for handover in list(self.under_way.values()):
            if not handover.is_cut and (not handover.old.server.leaving or handover.new.server.leaving):
                actions += self._cancel(handover, now)
        copies = self._startup.copies
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
            self.under_way[copy.epoch] = Handover(old=copy, new=new, made=True, not_before=now)
            self._startup.copies.changed()
            what = "backup of shard" if copy.backup else "shard"
            text = f"job {self._startup.name!r}: {what} {copy.shard} moves from {copy.server.title} to {server.title}"
            actions += [
                Log("info", text, job=self._startup.name),
                *self._startup.assign([new]),
                *self._startup.copies.inform(copy.shard, now),
            ]
        return actions

    def _make_do(self, copy: Replica, staying: Sequence[MemberInfo], now: float) -> list[Action]:
        """No other server can take one more copy: one that goes in any case leaves it with those it has."""
        self.stuck[copy.epoch] = why = self._why(copy, staying)
        others = [other for other in self._startup.copies if other.shard == copy.shard and not other.server.leaving]
        if copy.server.leaving is not LeavingState.MUST_GO or not others:
            return []
        del self.stuck[copy.epoch]
        heir = next((other for other in others if other.whole), None)
        if heir is None:
            return []  # it is being filled
        if copy.backup:
            return self._give_up(copy, why, now)
        self.under_way[copy.epoch] = Handover(old=copy, new=heir, made=False, not_before=now)
        self._startup.copies.changed()
        return []

    def _give_up(self, copy: Replica, why: str, now: float) -> list[Action]:
        """A backup goes without another one in its place."""
        self._startup.drop(copy)
        self._shortages.note(copy.shard, why, now)
        return self._startup.copies.inform(copy.shard, now)

    def _why(self, copy: Replica, staying: Sequence[MemberInfo]) -> str:
        what = f"{'the backup of ' * copy.backup}shard {copy.shard} of job {self._startup.name!r}"
        others = [server for server in staying if server is not copy.server]
        if not others:
            return f"there is no other server that could take {what}"
        having = {other.server.incarnation for other in self._startup.copies if other.shard == copy.shard}
        whys = [
            f"{server.title} has a copy of it"
            if server.incarnation in having
            else f"{server.title}: {self._startup.copies.unfit.get((server.incarnation, copy.shard), '')}"
            for server in others
        ]
        return f"no other server can take {what}: {listed(whys, MOST_REASONS)}"

    def _cancel(self, handover: Handover, now: float) -> list[Action]:
        """A copy stays where it is, or goes elsewhere."""
        backups = [copy for copy in self._startup.copies.backups(handover.old.shard) if copy.whole]
        needed = handover.new in backups and len(backups) <= self._shortages.replicas  # it stays a backup
        if handover.made and not needed:
            self._startup.drop(handover.new)
        return [*self._forget(handover), *self._startup.copies.inform(handover.old.shard, now)]

    def _forget(self, handover: Handover) -> list[Action]:
        del self.under_way[handover.old.epoch]
        self._startup.copies.changed()
        return self._let_go(handover)

    def _let_go(self, handover: Handover) -> list[Action]:
        """Steps need not wait for this one any more."""
        self._startup.copies.changed()
        handover.phase, handover.held_at, handover.old.yielded = HandoverPhase.FILL, None, False
        self._steps.pauses.closed.discard(handover.old.shard)
        return [] if self.holds else self._steps.let_go()

    def lose(self, copy: Replica) -> list[Action]:
        """A copy is gone, of those that move perhaps; its server, or the leader, is told the backups after this."""
        found = [handover for handover in self.under_way.values() if copy in (handover.old, handover.new)]
        return [action for handover in found for action in self._forget(handover)]

    def forget(self, shard: int) -> None:
        """No copy of a shard is left that counts."""
        for handover in [handover for handover in self.under_way.values() if handover.old.shard == shard]:
            self._forget(handover)

    def moves(self, copy: Replica) -> bool:
        """Whether a copy moves, or is what another one moves to."""
        return any(copy in (handover.old, handover.new) for handover in self.under_way.values())

    def take_back(self, now: float) -> list[Action]:
        """Move nothing: copies that were to take over are freed, and leaders keep their places."""
        self.stuck.clear()
        return [action for handover in list(self.under_way.values()) for action in self._cancel(handover, now)]

    def stop(self) -> None:
        """The job has lost a shard: nothing moves any more, and no step is to go on."""
        if self.under_way:
            self._startup.copies.changed()
        for handover in self.under_way.values():
            handover.old.yielded = False
        self.under_way.clear()
        self.stuck.clear()

    def may_replace(self, lost: Replica) -> bool:
        """Whether the copy that a lost leader was to move to has all that was acknowledged.

        Without backups workers do not keep the gradients of the open step, of which the copy has none.
        """
        mode = "" if self._steps.policy is None else self._steps.policy.mode
        return mode != "sync"

    # --- how it moves --------------------------------------------------------------------------

    def look(self, now: float, *, may_cut: bool) -> list[Action]:
        """Go on with what can be gone on with; called after every event while something moves.

        ``may_cut``: whether shards may have other leaders now.
        """
        actions: list[Action] = []
        for handover in list(self.under_way.values()):
            if not handover.new.whole:
                continue
            if handover.old.backup:
                actions += self._replace(handover, now)
            elif handover.is_cut:
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
        self._startup.copies.changed()
        self._startup.drop(handover.old)
        name, shard = self._startup.name, handover.old.shard
        text = f"job {name!r}: the backup of shard {shard} is on {handover.new.server.title} now"
        return [Log("info", text, job=name), *self._startup.copies.inform(shard, now)]

    def _cut(self, handover: Handover, now: float) -> list[Action]:
        """Ask the leader to give up its place, as soon as it has nobody's gradients."""
        steps = self._steps
        if steps.policy is not None and steps.policy.mode == "sync":
            if handover.held_at is None:
                handover.phase, handover.held_at = HandoverPhase.QUIESCE, now
                steps.pauses.holding = True
            if not (steps.is_held if handover.busy else steps.is_between):
                return []
        handover.phase, handover.asked_at, handover.again_at = HandoverPhase.YIELD, now, now + RETRY_S
        handover.old.generation += 1
        self._startup.copies.changed()
        steps.pauses.closed.add(handover.old.shard)
        return [self._order(handover)]

    def _order(self, handover: Handover) -> Action:
        """Tell the leader to give up its place; or, once it has, the new copy to take it."""
        old, new = handover.old, handover.new
        if handover.phase is HandoverPhase.YIELD:
            return Send(old.server.peer, Yield(old.epoch, old.generation))
        equals = self._startup.copies.rows_of_equals(new, handover.numbers)
        return Send(new.server.peer, Promote(new.epoch, old.generation + 1, equals))

    def _put_off(self, handover: Handover, seconds: float, now: float) -> list[Action]:
        handover.not_before, handover.busy = now + seconds, False
        return self._let_go(handover)

    def _chase(self, handover: Handover, now: float) -> list[Action]:
        if now >= handover.asked_at + PATIENCE_S:
            old = handover.old
            has_yielded = handover.phase is HandoverPhase.ADOPT
            late = handover.new if has_yielded else old
            text = (
                f"job {self._startup.name!r}: {late.server.title} does not answer, so shard {old.shard} stays for now"
            )
            if has_yielded:  # it may have taken over: nobody has been told, and nobody will be
                return [Log("warning", text, job=self._startup.name), *self._cancel(handover, now)]
            return [
                Log("warning", text, job=self._startup.name),
                *self._put_off(handover, PAUSE_S, now),
                *self._startup.copies.inform(old.shard, now),
            ]
        if now < handover.again_at:
            return []
        handover.again_at = now + RETRY_S
        return [self._order(handover)]

    def yielded(self, copy: Replica, message: Yielded, now: float) -> list[Action]:
        """A leader has given up its place, or cannot just now."""
        handover = self.under_way.get(copy.epoch)
        if handover is None or not handover.is_cut or message.generation != copy.generation:
            return []
        if message.busy and handover.held_at is None:
            return self._put_off(handover, RETRY_S, now)
        if message.busy:
            handover.phase, handover.busy = HandoverPhase.QUIESCE, True
            self._steps.pauses.closed.discard(copy.shard)
            self._startup.copies.changed()
            return []
        numbers = {int(epoch): n for epoch, n in message.numbers.items() if epoch.isdecimal() and type(n) is int}
        if handover.phase is HandoverPhase.ADOPT:
            return []
        if handover.new.epoch not in numbers:  # it lacks something after all: the leader keeps its place for now
            return [*self._put_off(handover, RETRY_S, now), *self._startup.copies.inform(copy.shard, now)]
        handover.phase, handover.numbers, handover.again_at = HandoverPhase.ADOPT, numbers, now + RETRY_S
        copy.yielded = True
        return [self._order(handover)]

    def complete(self, new: Replica, message: Promoted, now: float) -> tuple[Handover | None, list[Action]]:
        """A copy has taken over; return the handover that is complete with that."""
        adopted = (found for found in self.under_way.values() if found.phase is HandoverPhase.ADOPT)
        handover = next((found for found in adopted if found.new is new), None)
        if handover is None or message.generation != handover.old.generation + 1:
            return None, []
        del self.under_way[handover.old.epoch]
        self._startup.copies.changed()
        where = f"shard {new.shard} is on {new.server.title} now, and no more on {handover.old.server.title}"
        text = f"job {self._startup.name!r}: {where} (after {now - handover.asked_at:.3f} s)"
        return handover, [Log("info", text, "moved", job=self._startup.name)]

    def taken(self, shard: int) -> list[Action]:
        """A new copy has taken over: steps go on."""
        self._steps.pauses.closed.discard(shard)
        return [] if self.holds else self._steps.let_go()

    def next_deadline(self) -> float | None:
        """Return when `look` is to be called at the latest."""
        dues = list[float]()
        for handover in self.under_way.values():
            if handover.is_cut:
                dues.append(min(handover.again_at, handover.asked_at + PATIENCE_S))
            elif handover.held_at is not None:
                dues.append(handover.held_at + PATIENCE_S)
            elif handover.new.whole:
                dues.append(handover.not_before)
        return min(dues, default=None)

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return which copies move where, and of which the leader was asked to give up its place."""
        return [[h.old.epoch, h.new.epoch, h.made, h.is_cut] for h in self.under_way.values()]

    def restore(self, kept: Plain, now: float) -> None:
        """Go on with what was kept: a leader that was asked is asked again, and says again what it has said."""
        copies = self._startup.copies.by_epoch
        for old, new, made, asked in kept:
            self.under_way[old] = handover = Handover(old=copies[old], new=copies[new], made=made, not_before=now)
            if asked:
                handover.phase, handover.asked_at, handover.again_at = HandoverPhase.YIELD, now, now + RETRY_S
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
        copies = self._startup.copies.by_epoch
        for epoch, handover in self.under_way.items():
            assert copies[epoch] is handover.old
            assert copies[handover.new.epoch] is handover.new
            assert handover.new.backup
            assert handover.phase is not HandoverPhase.QUIESCE or handover.held_at is not None
            assert handover.new.shard == handover.old.shard
            assert handover.new.server is not handover.old.server
        adopted = {epoch for epoch, handover in self.under_way.items() if handover.phase is HandoverPhase.ADOPT}
        assert {copy.epoch for copy in self._startup.copies if copy.yielded} == adopted
