"""The backups of a job's shards: promoted when a server is lost, and replaced by new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.placement.handovers import Handover, Handovers
from zmqps.core.coordinator.placement.recuts import Recuts
from zmqps.core.coordinator.placement.shortages import Shortages
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.views import ChangeKind, MemberViews, ViewChange
from zmqps.core.coordinator.training.steps import Steps
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Moved, Promote, Promoted, Replicas, Replicating
from zmqps.errors import PSError, counted

#: A server answers within milliseconds; one that did not may not have received it.
RETRY_S = 1.0
#: A backup that is built, and takes long to fill, is asked whether it is whole every so many times.
FILLING_RETRIES = 10


@dataclass(slots=True)
class Retries:
    """When what is not answered is said again, and how often it was."""

    due: float | None = None
    number: int = 0


class Replication:
    """Sees to it that each shard has a leader, and as many backups as it should.

    Parameters
    ----------
    startup
        Knows the copies, and where they lie.
    steps
        Are not committed where a shard has no leader.
    members
        The live members of the job by incarnation; shared with its `JobRun`.
    replicas
        How many backups a shard should have.
    changed
        Called with what has changed that is kept: ``copies`` and what becomes of them, or ``views``.
    """

    def __init__(
        self,
        startup: Startup,
        steps: Steps,
        members: Mapping[bytes, MemberInfo],
        replicas: int,
        changed: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.views = MemberViews(startup, members, lambda: changed("views"))
        self._changed = changed
        self.replicas = replicas
        self._startup = startup
        self._steps = steps
        self._promoting: dict[int, Replica] = {}  # by shard: what is to be its leader, and has not said that it is
        self._unanswered: dict[int, Replica] = {}  # leaders that were told their backups, by epoch
        self.shortages = Shortages(startup, replicas)
        self.retries = Retries()
        self._unfit: dict[tuple[bytes, int], str] = {}  # why servers, by incarnation, could not keep a copy of a shard
        self.handovers = Handovers(
            startup.name,
            startup,
            steps,
            self._unfit,
            self._backups_changed,
            self._give_up,
            replicas,
            lambda: changed("copies"),
        )
        self.recuts = Recuts(
            startup.name, startup, steps, members, self.views, self._backups_changed, self._recut, self._recut_changed
        )  # fmt: skip

    # --- losses --------------------------------------------------------------------------------

    def lose(self, server: MemberInfo, error: PSError, now: float) -> tuple[list[Action], list[Replica]]:
        """A server has gone: its backups take over; return the copies that were the last ones of their shards, too."""
        copies, actions, lost = self._startup.copies, self.recuts.lose(server, now), list[Replica]()
        gone = copies.of(server)
        self._changed("copies")
        for copy in gone:
            copies.remove(copy)
            self._unanswered.pop(copy.epoch, None)
            self._promoting = {shard: other for shard, other in self._promoting.items() if other is not copy}
            actions += self.handovers.lose(copy)
        for copy in gone:
            self.shortages.note(copy.shard, f"{server.title} was lost", now)
            if copy.backup:
                actions += self._backups_changed(copy.shard, now)
                continue
            may = self.replicas or self.handovers.may_replace(copy)
            found = self._promote(copy, now) if may else None
            if found is None:
                lost.append(copy)
                self._steps.lose(copy.epoch)
                self.views.forget(ChangeKind.MOVED, copy.shard)
            actions += found or []
        return actions, lost

    def _promote(self, old: Replica, now: float) -> list[Action] | None:
        """Let a backup take over from a leader that is gone, or from one that was about to; None: there is none.

        The others stay as they are until it has: each has all that was acknowledged, and could come in its place.
        """
        startup = self._startup
        heir = next((backup for backup in startup.copies.backups(old.shard) if backup.whole), None)
        if heir is None:
            return None
        heir.backup, heir.generation = False, old.generation + 1
        told = self.handovers.lose(heir)
        startup.moved()
        self._promoting[old.shard], self.retries.due = heir, now + RETRY_S
        self._steps.move(old.epoch, heir, startup.told)
        text = f"job {self._startup.name!r}: {heir.server.title} takes over shard {old.shard} of {old.server.title}"
        promote = Send(heir.server.peer, Promote(heir.epoch, heir.generation))
        self.views.forget(ChangeKind.MOVED, heir.shard)  # it is nowhere until the heir has taken over
        told += self.views.announce(Moved(startup.epoch, heir.shard, self.views.new_revision(), {}))
        return [Log("warning", text, "promoted", job=self._startup.name), promote, *told]

    def _succeed(self, handover: Handover, message: Promoted, now: float) -> list[Action]:
        """A copy has taken over from a leader that has given up its place."""
        actions = list[Action]()
        old, heir, startup, copies = handover.old, handover.new, self._startup, self._startup.copies
        self._changed("copies")
        startup.drop(old, moved=True)
        self._unanswered.pop(old.epoch, None)
        heir.backup, heir.generation = False, message.generation
        for other in copies.backups(old.shard):
            if not other.whole or other.epoch not in (handover.numbers or {}):  # it is to be filled anew
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
        return [*actions, *startup.assign(new), *self._backups_changed(old.shard, now)]

    def _begin_anew(self, backup: Replica) -> list[Action]:
        """A backup is to be filled from the start, by another leader than before."""
        self._startup.drop(backup)
        self._startup.copies.add(backup.shard, backup.server, backup=True)
        return self.handovers.lose(backup)

    def begin(self, now: float) -> None:
        """The job can be trained: note where backups are missing from the first."""
        self._changed("copies")
        for shard, _, _ in self._startup.copies.leaders():
            self.shortages.note(shard, "there are too few servers", now)

    def failed(self, epoch: int, error: PSError, now: float) -> tuple[list[Action], bool]:
        """A server could not do what it was asked to with a copy; return whether a shard is lost by it."""
        copies = self._startup.copies
        if epoch in copies.coming:
            return self.recuts.failed(error, now), False
        copy = copies.by_epoch.get(epoch)
        if copy is None or (not copy.backup and self._promoting.get(copy.shard) is not copy):
            return [], False  # a leader goes on, and whoever asked for what it cannot is told
        actions = [*self.recuts.take_back(now), *self.handovers.lose(copy)]
        self._startup.drop(copy)
        self._unfit[copy.server.incarnation, copy.shard] = str(error)
        if not copy.backup:
            del self._promoting[copy.shard]
            found = self._promote(copy, now)
            return [*actions, *(found or [])], found is None
        self.shortages.note(copy.shard, f"{copy.server.title} cannot keep a copy: {error}", now)
        return [*actions, *self._backups_changed(copy.shard, now)], False

    def promoted(self, copy: Replica, message: Promoted, now: float) -> list[Action]:
        """A backup is the leader now: members are to go there, and its own backups to follow it."""
        handover, actions = self.handovers.complete(copy, message, now)
        if handover is not None:
            return [*actions, *self._succeed(handover, message, now)]
        if self._promoting.get(copy.shard) is not copy or message.generation != copy.generation:
            return []
        startup, copies = self._startup, self._startup.copies
        self._changed("copies")
        del self._promoting[copy.shard]
        self._steps.moved(copy, message.step)
        actions = list[Action]()
        for other in copies.backups(copy.shard):  # they followed the old one; its heir is to fill them anew
            actions += self._begin_anew(other)
        actions += self.views.begin(ChangeKind.MOVED, [copy.shard], now)[1]
        backups = copies.backups(copy.shard)
        return [*actions, *startup.assign(backups), *(self._backups_changed(copy.shard, now) if backups else [])]

    def followed(self, member: MemberInfo, change: ViewChange) -> list[Action]:
        """A member talks to the new server of a shard, and has brought there what it has of the open step."""
        return self._steps.brought_again(member.incarnation, change.shards[0])

    def forget(self, shards: Iterable[int]) -> None:
        """No copy is left of these shards that counts."""
        for shard in shards:
            self._promoting.pop(shard, None)
            self.shortages.forget(shard)
            self.views.forget(ChangeKind.MOVED, shard)
            self.handovers.forget(shard)
        self._changed("copies")
        epochs = self._startup.copies.by_epoch
        self._unanswered = {epoch: copy for epoch, copy in self._unanswered.items() if epoch in epochs}

    def degraded(self, shards: Iterable[int], why: str, now: float) -> None:
        """These shards have a leader alone, and get backups again, on servers with shards of their own, too."""
        for shard in shards:
            self.shortages.note(shard, why, now, anywhere=True)
        self._changed("copies")

    # --- backups -------------------------------------------------------------------------------

    def _backups_changed(self, shard: int, now: float) -> list[Action]:
        """Tell the leader of a shard which backups it has now, unless it is yet to become that."""
        if shard in self._promoting or self.handovers.has_yielded(shard):
            return []  # it is told when it has
        leader = next((copy for copy in self._startup.copies if copy.shard == shard and not copy.backup), None)
        if leader is None:
            return []
        leader.generation += 1
        self._changed("copies")
        self._unanswered[leader.epoch] = leader
        self.retries.due = now + RETRY_S
        return [self._replicas(leader)]

    def _give_up(self, copy: Replica, why: str, now: float) -> list[Action]:
        """A backup goes without another one in its place."""
        self._startup.drop(copy)
        self.shortages.note(copy.shard, why, now)
        return self._backups_changed(copy.shard, now)

    def _replicas(self, leader: Replica) -> Action:
        rows = self._startup.copies.rows_of_backups(leader)
        return Send(leader.server.peer, Replicas(leader.epoch, leader.generation, rows))

    def replicating(self, copy: Replica | None, message: Replicating) -> None:
        """A leader waits for its new backups, and no others."""
        if copy is None:
            return
        if message.generation == copy.generation and self._unanswered.pop(copy.epoch, None) is not None:
            self._changed("copies")

    def fill(self, servers: Iterable[MemberInfo], now: float) -> list[Action]:
        """Give shards that lack backups new ones, on servers that have no shard of their own."""
        if not self.shortages or not self._startup.ready:
            return []
        copies, actions = self._startup.copies, list[Action]()
        there = [server for server in servers if not server.leaving]
        idle = [server for server in there if all(copy.backup for copy in copies.of(server))]
        for shard, short in list(self.shortages):
            if shard in self._promoting or not any(c.shard == shard and not c.backup and c.whole for c in copies):
                continue
            new: list[Replica] = []
            where = there if short.anywhere else idle
            fit = [server for server in where if (server.incarnation, shard) not in self._unfit]
            while len(copies.backups(shard)) < self.replicas and (server := copies.best(shard, fit)) is not None:
                new.append(copies.add(shard, server, backup=True))
            if new:
                self._changed("copies")
                text = f"shard {shard} gets a new backup on {', '.join(copy.server.title for copy in new)}"
                actions.append(Log("info", f"job {self._startup.name!r}: {text}", job=self._startup.name))
                actions += [*self._startup.assign(new), *self._backups_changed(shard, now)]
        return actions

    def ready(self, copy: Replica, loaded: bool) -> list[Action]:
        """A new backup is built, or whole; or what is to be a shard."""
        if copy.epoch in self._startup.copies.coming:
            self.recuts.ready(copy, loaded)
            return []
        if copy.built and (copy.whole or not loaded):
            return []
        copy.built = True
        self._changed("copies")
        if not copy.backup or not loaded or copy.whole:
            return []
        copy.whole = True
        if not self.shortages.is_over(copy.shard):
            return []
        text = f"shard {copy.shard} has {counted(len(self._startup.copies.backups(copy.shard)), 'backup')} again"
        return [Log("info", f"job {self._startup.name!r}: {text}", "copied", job=self._startup.name)]

    def move(self, servers: Sequence[MemberInfo], now: float, *, may_cut: bool) -> list[Action]:
        """Go on with what moves from servers that are to go; called after every event while there are any."""
        if self.recuts.active:
            return []
        actions = self.handovers.plan(servers, self._promoting, now)
        return [*actions, *self.handovers.look(now, may_cut=may_cut, busy=self._is_busy)]

    def spread(
        self, wanted: Mapping[int, Sequence[MemberInfo]], now: float, silence_s: float = float("inf")
    ) -> tuple[list[Action], str]:
        """Let shards have more copies, on these servers, and no others than they should have, or are wanted.

        Copies on servers that have said nothing for ``silence_s`` may be lost: others are kept in their place.

        Returns
        -------
        actions
            What is to be done.
        why
            What cannot be done, and why; empty: all can.
        """
        copies, actions, told = self._startup.copies, list[Action](), set[int]()
        for shard in {copy.shard for copy in copies} - set(self._promoting):
            there = {copy.server.incarnation for copy in copies if copy.shard == shard}
            for server in wanted.get(shard, ()):
                if why := self._unfit.pop((server.incarnation, shard), ""):  # said once: then it is tried again
                    self._changed("copies")
                    return actions, why
                if server.incarnation not in there:
                    actions += self._startup.assign([copies.add(shard, server, backup=True)])
                    told.add(shard)
        for copy in self._surplus(wanted, now - silence_s):
            self._startup.drop(copy)
            told.add(copy.shard)
        for shard in sorted(told):
            self._changed("copies")
            actions += self._backups_changed(shard, now)
        return actions, ""

    def _surplus(self, wanted: Mapping[int, Sequence[MemberInfo]], heard_since: float) -> list[Replica]:
        """Return the backups that a shard has beyond those it should have, where nobody wants them."""
        found: list[Replica] = []
        for shard in {copy.shard for copy in self._startup.copies} - set(self._promoting):
            backups = self._startup.copies.backups(shard)
            there = [self._startup.copies.leader(shard), *backups]
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

    def _recut_changed(self) -> None:
        self._changed("recut")
        self._changed("copies")

    def restore_recut(self, kept: Plain, members: Mapping[bytes, MemberInfo], now: float) -> None:
        """Take back what was to be cut anew when this coordinator went away."""
        for shard in self.recuts.restore(kept, members):
            self._backups_changed(shard, now)  # said again by `on_deadline`

    def _recut(self, now: float) -> None:
        """The job lies in other shards: what was known of those before is out of date."""
        self._unfit.clear()
        self.shortages.clear()
        self._unanswered.clear()
        self.begin(now)

    @property
    def is_quiet(self) -> bool:
        """Whether no shard moves or is to, and every member knows where all are."""
        moving = self.handovers.under_way or self._promoting or self._unanswered or self.recuts.active
        return not moving and self.views.all_followed and all(copy.whole for copy in self._startup.copies)

    def _is_busy(self, leader: Replica) -> bool:
        return leader.shard in self._promoting or leader.epoch in self._unanswered

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        dues = (self.retries.due, self.views.next_deadline(), self.handovers.next_deadline())
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Say again what is not answered."""
        startup, actions = self._startup, self.views.on_deadline(now)
        if self.retries.due is not None and now >= self.retries.due:
            new = [copy for copy in startup.copies if copy.backup and not copy.whole] if startup.ready else []
            waiting = bool(self._promoting or self._unanswered or new)
            self.retries.due = now + RETRY_S if waiting else None
            self.retries.number += 1
            if self.retries.number % FILLING_RETRIES:  # one that is being filled says by itself that it is whole
                new = [copy for copy in new if not copy.built]
            for copy in self._promoting.values():
                actions.append(Send(copy.server.peer, Promote(copy.epoch, copy.generation)))
            actions += startup.assign([copy for copy in new if copy.shard not in self._promoting])
            actions += [self._replicas(leader) for leader in self._unanswered.values()]
        return actions

    # --- a coordinator that was away -----------------------------------------------------------

    def again(self, member: MemberInfo) -> list[Action]:
        """A member is back: say again what it may not have heard."""
        startup, actions = self._startup, list[Action]()
        if member.role != "server":
            return self.views.again(member)
        for copy in startup.copies.of(member) if startup.ready else ():
            if copy.epoch in self._unanswered:
                actions.append(self._replicas(copy))
            if self._promoting.get(copy.shard) is copy:
                actions.append(Send(member.peer, Promote(copy.epoch, copy.generation)))
            elif copy.backup and not copy.whole and copy.shard not in self._promoting:  # or its answer was lost
                actions += startup.assign([copy])
        return actions

    def dump(self) -> Plain:
        """Return what becomes of the copies."""
        return [
            [copy.epoch for copy in self._promoting.values()], [*self._unanswered],
            self.shortages.dump(),
            [[who, shard, why] for (who, shard), why in sorted(self._unfit.items())], self.handovers.dump(),
        ]  # fmt: skip

    def restore(self, kept: Plain, now: float) -> None:
        """Go on with what was kept; a clock that has begun anew since is behind what it says."""
        promoting, unanswered, degraded, unfit, moving = kept
        copies = self._startup.copies.by_epoch
        self._promoting = {copies[epoch].shard: copies[epoch] for epoch in promoting}
        self._unanswered = {epoch: copies[epoch] for epoch in unanswered}
        self.shortages.restore(degraded, now)
        self._unfit.update({(who, shard): why for who, shard, why in unfit})
        self.handovers.restore(moving, now)
        if self._startup.ready and (promoting or unanswered or not all(copy.whole for copy in copies.values())):
            self.retries.due = now + RETRY_S

    # --- what others may look at ---------------------------------------------------------------

    def awaits(self, copy: Replica) -> bool:
        """Whether a copy is to be the leader of its shard, and has not said that it is."""
        return self._promoting.get(copy.shard) is copy

    @property
    def settled(self) -> bool:
        """Whether every shard has a leader and all its backups, and every member knows where."""
        waits = bool(self.shortages) or self._promoting or self._unanswered
        return not waits and self.views.all_followed

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
        for copy in [*self._promoting.values(), *self._unanswered.values()]:
            assert copies.by_epoch[copy.epoch] is copy
            assert not copy.backup
        places = [(copy.shard, copy.server.hello.incarnation) for copy in copies]
        assert len(set(places)) == len(places), "two copies on one server"
        leaders = [copy.shard for copy in copies if not copy.backup]
        assert len(set(leaders)) == len(leaders)
        assert self.retries.due is not None or not (self._promoting or self._unanswered)
