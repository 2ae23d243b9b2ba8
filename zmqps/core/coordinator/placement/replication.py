"""The backups of a job's shards: promoted when a server is lost, and replaced by new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import RETRY_S, Order, Replica
from zmqps.core.coordinator.placement.shortages import Shortages
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.transitions import Handover, Handovers, Recuts
from zmqps.core.coordinator.placement.views import MemberViews, ViewChange
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import ChangeKind, Leading
from zmqps.errors import PSError, counted

#: A backup that is built, and takes long to fill, is asked whether it is whole at every n-th check.
FILLING_RETRIES = 10


class Replication:
    """Sees to it that each shard has a leader, and as many backups as it should (``replicas``)."""

    def __init__(
        self,
        startup: Startup,
        steps: Steps,
        members: Mapping[bytes, MemberInfo],
        replicas: int,
        changed: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.views = MemberViews(startup, members, lambda: changed("views"))
        self.replicas = replicas
        self._startup = startup
        self._steps = steps
        self._num_retries = 0
        self.shortages = Shortages(startup, replicas)
        self.handovers = Handovers(startup, steps, self.shortages)
        self.recuts = Recuts(startup, steps, members, self.views, self.shortages, lambda: changed("recut"))

    # --- losses --------------------------------------------------------------------------------

    def lose(self, server: MemberInfo, error: PSError, now: float) -> tuple[list[Action], list[Replica]]:
        """A server has left: its backups take over; return the copies that were the last ones of their shards, too."""
        copies, actions, lost = self._startup.copies, self.recuts.lose(server, now), list[Replica]()
        gone = copies.of(server)
        for copy in gone:
            copies.remove(copy)
            actions += self.handovers.lose(copy)
        for copy in gone:
            self.shortages.note(copy.shard, f"{server.title} was lost", now)
            if copy.backup:
                actions += self._startup.copies.inform(copy.shard, now)
                continue
            # without backups workers do not keep the gradients of the open step, of which a copy that moves has none
            found = self._promote(copy, now) if self.replicas or not self._steps.is_sync else None
            if found is None:
                lost.append(copy)
                self._steps.lose(copy.epoch)
                self.views.forget(ChangeKind.MOVED, copy.shard)
            actions += found or []
        return actions, lost

    def _promote(self, old: Replica, now: float) -> list[Action] | None:
        """Let a backup take over from a lost leader, or from one that was about to lead; None: there is none.

        The others stay as they are until it has: each has all that was acknowledged, and could come in its place.
        """
        startup = self._startup
        heir = next((backup for backup in startup.copies.backups(old.shard) if backup.whole), None)
        if heir is None:
            return None
        heir.backup, heir.generation = False, old.generation + 1
        told = self.handovers.lose(heir)
        startup.moved()
        promote = startup.copies.tell(heir, Order.PROMOTE, now)
        self._steps.move(old.epoch, heir, startup.told)
        text = f"{heir.server.title} takes over shard {old.shard} of {old.server.title}"
        self.views.forget(ChangeKind.MOVED, heir.shard)  # it is nowhere until the heir has taken over
        told += self.views.announce(ChangeKind.MOVED, [heir.shard])
        return [startup.story.log("warning", text, "promoted"), promote, *told]

    def _succeed(self, handover: Handover, message: Leading, now: float) -> list[Action]:
        """A copy has taken over from a leader that has given up its place."""
        actions = list[Action]()
        old, heir, startup, copies = handover.old, handover.new, self._startup, self._startup.copies
        startup.drop(old, moved=True)
        heir.backup, heir.generation = False, message.generation
        for other in copies.backups(old.shard):
            if not other.whole or other.epoch not in (handover.numbers or {}):  # it needs filling again
                actions += self._begin_anew(other)
        startup.moved()
        self._steps.move(old.epoch, heir, None)
        actions += self.views.begin(ChangeKind.MOVED, [heir.shard], now)[1]
        actions += self.handovers.taken(old.shard)
        self.shortages.note(old.shard, f"it has moved from {old.server.title}", now)
        backups = copies.backups(old.shard)
        if not backups and len(handover.numbers or ()) < 2:  # else one was lost meanwhile that it still waits for
            return actions
        new = [copy for copy in backups if not copy.whole]
        return [*actions, *startup.assign(new), *self._startup.copies.inform(old.shard, now)]

    def _begin_anew(self, backup: Replica) -> list[Action]:
        """A backup must be filled from the start, by a new leader."""
        self._startup.drop(backup)
        self._startup.copies.add(backup.shard, backup.server, backup=True)
        return self.handovers.lose(backup)

    def failed(self, epoch: int, error: PSError, now: float) -> tuple[list[Action], bool]:
        """A server could not do what it was asked to with a copy; return whether a shard is lost by it."""
        copies = self._startup.copies
        if epoch in copies.coming:
            return self.recuts.failed(error, now), False
        copy = copies.by_epoch.get(epoch)
        if copy is None or (not copy.backup and copy.order is not Order.PROMOTE):
            return [], False  # a leader continues, and the requester gets the error
        actions = [*self.recuts.take_back(now), *self.handovers.lose(copy)]
        self._startup.drop(copy)
        copies.unfit[copy.server.incarnation, copy.shard] = str(error)
        if not copy.backup:
            found = self._promote(copy, now)
            return [*actions, *(found or [])], found is None
        self.shortages.note(copy.shard, f"{copy.server.title} cannot keep a copy: {error}", now)
        return [*actions, *copies.inform(copy.shard, now)], False

    def leads(self, copy: Replica, message: Leading, now: float) -> list[Action] | None:
        """A copy leads its shard: members should use it, and its own backups follow it.

        None where they do so already: it has new backups, or has said this before.
        """
        handover, actions = self.handovers.complete(copy, message, now)
        if handover is not None:
            return [*actions, *self._succeed(handover, message, now)]
        if copy.order is None or message.generation != copy.generation:
            return None
        startup, copies, order = self._startup, self._startup.copies, copy.order
        copy.order = None
        if order is Order.REPLICAS:
            return None
        self._steps.moved(copy, message.step)
        actions = list[Action]()
        for other in copies.backups(copy.shard):  # they followed the old leader; its heir fills them again
            actions += self._begin_anew(other)
        actions += self.views.begin(ChangeKind.MOVED, [copy.shard], now)[1]
        backups = copies.backups(copy.shard)
        return [*actions, *startup.assign(backups), *(self._startup.copies.inform(copy.shard, now) if backups else [])]

    def followed(self, member: MemberInfo, change: ViewChange) -> list[Action]:
        """A member talks to the new server of a shard, and has brought there what it has of the open step."""
        return self._steps.brought_again(member.incarnation, change.shards[0])

    def forget(self, shards: Iterable[int]) -> list[Action]:
        """No copy is left of these shards that counts."""
        actions = list[Action]()
        for shard in shards:
            self.shortages.forget(shard)
            self.views.forget(ChangeKind.MOVED, shard)
            actions += self.handovers.forget(shard)
        return actions

    def degraded(self, shards: Iterable[int], why: str, now: float) -> None:
        """These shards have a leader alone, and get backups again, also on servers that have shards."""
        for shard in shards:
            self.shortages.note(shard, why, now, anywhere=True)

    # --- backups -------------------------------------------------------------------------------

    def fill(self, servers: Iterable[MemberInfo], now: float) -> list[Action]:
        """Give shards that lack backups new ones, on servers that lead no shard."""
        if not self.shortages or not self._startup.ready:
            return []
        copies, actions = self._startup.copies, list[Action]()
        there = [server for server in servers if not server.leaving]
        idle = [server for server in there if all(copy.backup for copy in copies.of(server))]
        for shard, short in list(self.shortages):
            if not copies.can_fill(shard):
                continue
            new: list[Replica] = []
            where = there if short.anywhere else idle
            while len(copies.backups(shard)) < self.replicas and (server := copies.best(shard, where)) is not None:
                new.append(copies.add(shard, server, backup=True))
            if new:
                text = f"shard {shard} gets a new backup on {', '.join(copy.server.title for copy in new)}"
                said = self._startup.story.log("info", text)
                actions += [said, *self._startup.assign(new), *copies.inform(shard, now)]
        return actions

    def ready(self, copy: Replica, loaded: bool) -> list[Action]:
        """A new backup, or a part of a planned shard, is built or complete."""
        if copy.epoch in self._startup.copies.coming:
            self.recuts.ready(copy, loaded)
            return []
        if copy.built and (copy.whole or not loaded):
            return []
        copy.built = True
        if not copy.backup or not loaded or copy.whole:
            return []
        copy.whole = True
        if not self.shortages.is_over(copy.shard):
            return []
        text = f"shard {copy.shard} has {counted(len(self._startup.copies.backups(copy.shard)), 'backup')} again"
        return [self._startup.story.log("info", text, "copied")]

    def move(self, servers: Sequence[MemberInfo], now: float, *, may_cut: bool) -> list[Action]:
        """Continue to move copies off draining servers; called after every event while there are any."""
        if self.recuts.active:
            return []
        return [*self.handovers.plan(servers, now), *self.handovers.look(now, may_cut=may_cut)]

    def spread(
        self, wanted: Mapping[int, Sequence[MemberInfo]], now: float, silence_s: float = float("inf")
    ) -> tuple[list[Action], str]:
        """Let shards have more copies, on these servers, and no others than they should have, or are wanted.

        Copies on servers that have said nothing for ``silence_s`` may be lost: others are kept in their place.
        Returns also what cannot be done, and why; empty: all can.
        """
        copies, actions, told = self._startup.copies, list[Action](), set[int]()
        for shard in {copy.shard for copy in copies} - set(copies.promoting):
            there = {copy.server.incarnation for copy in copies if copy.shard == shard}
            for server in wanted.get(shard, ()):
                if why := copies.unfit.pop((server.incarnation, shard), ""):  # said once: then it is tried again
                    return actions, why
                if server.incarnation not in there:
                    actions += self._startup.assign([copies.add(shard, server, backup=True)])
                    told.add(shard)
        for copy in self._surplus(wanted, now - silence_s):
            self._startup.drop(copy)
            told.add(copy.shard)
        for shard in sorted(told):
            actions += copies.inform(shard, now)
        return actions, ""

    def _surplus(self, wanted: Mapping[int, Sequence[MemberInfo]], heard_since: float) -> list[Replica]:
        """Return the backups beyond those that a shard should have."""
        found, copies = list[Replica](), self._startup.copies
        for shard in {copy.shard for copy in copies} - set(copies.promoting):
            backups = copies.backups(shard)
            there = [copies.leader(shard), *backups]
            spare = sum(copy.whole and copy.server.seen_at >= heard_since for copy in there) - 1 - self.replicas
            homes = {server.incarnation for server in wanted.get(shard, ())}
            for backup in backups:
                if self.handovers.moves(backup) or backup.server.incarnation in homes:
                    continue
                if not backup.whole and spare >= 0:
                    found.append(backup)
                elif spare > 0:
                    found.append(backup)
                    spare -= 1
        return found

    @property
    def has_spare(self) -> bool:
        """Whether there are more copies than there should be; one may be there because another one moves to it."""
        startup = self._startup
        return len(startup.copies) > startup.num_shards * (1 + self.replicas)

    def restore_recut(self, kept: Plain, members: Mapping[bytes, MemberInfo], now: float) -> None:
        """Restore a recut that was under way when this coordinator went away."""
        for shard in self.recuts.restore(kept, members):
            self._startup.copies.inform(shard, now)  # said again by `on_deadline`

    @property
    def is_quiet(self) -> bool:
        """Whether no shard moves or is to, and every member knows where all are."""
        moving = self.handovers.under_way or self.recuts.active
        return not moving and self.views.all_followed and all(c.whole and not c.order for c in self._startup.copies)

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        dues = (self._startup.copies.retry_due, self.views.next_deadline(), self.handovers.next_deadline())
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Say again what is not answered."""
        startup, copies, actions = self._startup, self._startup.copies, self.views.on_deadline(now)
        if copies.retry_due is not None and now >= copies.retry_due:
            told, promoting = [copy for copy in copies if copy.order], copies.promoting
            new = [copy for copy in copies if copy.backup and not copy.whole] if startup.ready else []
            copies.retry_due = now + RETRY_S if told or new else None
            self._num_retries += 1
            if self._num_retries % FILLING_RETRIES:  # one that is being filled says by itself that it is whole
                new = [copy for copy in new if not copy.built]
            actions += startup.assign([copy for copy in new if copy.shard not in promoting])
            actions += [copies.told(copy) for copy in told]
        return actions

    # --- a coordinator that was away -----------------------------------------------------------

    def again(self, member: MemberInfo) -> list[Action]:
        """A member is back: say again what it may not have heard."""
        startup, copies, actions = self._startup, self._startup.copies, list[Action]()
        if member.role != "server":
            return self.views.again(member)
        for copy in copies.of(member) if startup.ready else ():
            if copy.order:
                actions.append(copies.told(copy))
            elif copy.backup and not copy.whole and copy.shard not in copies.promoting:  # or its answer was lost
                actions += startup.assign([copy])
        return actions

    def dump(self) -> Plain:
        """Return what becomes of the copies."""
        copies = self._startup.copies
        promoting, unanswered = (
            [c.epoch for c in copies if c.order is order] for order in (Order.PROMOTE, Order.REPLICAS)
        )
        unfit = [[who, shard, why] for (who, shard), why in sorted(copies.unfit.items())]
        return [promoting, unanswered, self.shortages.dump(), unfit, self.handovers.dump()]

    def restore(self, kept: Plain, now: float) -> None:
        """Restore the journaled state; times are clamped, as the clock may have started again since."""
        promoting, unanswered, degraded, unfit, moving = kept
        copies = self._startup.copies
        for epochs, order in ((promoting, Order.PROMOTE), (unanswered, Order.REPLICAS)):
            for epoch in epochs:
                copies.by_epoch[epoch].order = order
        self.shortages.restore(degraded, now)
        copies.unfit.update({(who, shard): why for who, shard, why in unfit})
        self.handovers.restore(moving, now)
        if self._startup.ready and (promoting or unanswered or not all(copy.whole for copy in copies)):
            copies.retry_due = now + RETRY_S

    # --- what others may look at ---------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for the status."""
        return {"wanted": self.replicas, "degraded": list(self.shortages.texts(now))} if self.replicas else {}

    def validate(self) -> None:
        """Assert the invariants."""
        copies = self._startup.copies
        self.views.validate()
        self.handovers.validate()
        self.recuts.validate()
        self.shortages.validate()
        pauses = self._steps.pauses
        assert not pauses.holding or self.handovers.holds or self.recuts.is_cutting, "steps are held for nothing"
        asked = {copy.shard for copy in copies} if self.recuts.is_cutting else self.handovers.asked
        assert pauses.closed <= asked, "shards are closed for nothing"
        assert bool(self._startup.cutting) == self.recuts.is_cutting
        told = [copy for copy in copies if copy.order]
        assert not any(copy.backup for copy in told)
        places = [(copy.shard, copy.server.hello.incarnation) for copy in copies]
        assert len(set(places)) == len(places), "two copies on one server"
        leaders = [copy.shard for copy in copies if not copy.backup]
        assert len(set(leaders)) == len(leaders)
        assert copies.retry_due is not None or not told
