"""What a job's members learn of its placement: numbered changes, each sent until the member acknowledges it.

A member hears of a shard that moved to another server, of shards that went back to a checkpoint, and of shards that
were recut. Each change has a revision of the job, and each member acknowledges it for itself: some changes it follows
at once, others only when its gradients have arrived there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from zmqps.core.coordinator.journal import Changed, KeptDict, KeptRecord, KeptSet, Plain, nothing, unkept
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import ChangeKind, Followed, View

#: A member answers within milliseconds; one that did not may not have received it.
RETRY_S = 1.0


@dataclass(slots=True, kw_only=True)
class ViewChange(KeptRecord):
    """One change, and the members that do not follow it yet."""

    kept: ClassVar = dict.fromkeys(("lost", "num_gone"), "views")

    changed: Callable[[str], None] = unkept
    revision: int
    kind: ChangeKind
    shards: tuple[int, ...]  # that have changed; none: all of them, which are others now
    awaited: set[bytes]
    due: float
    restored: Mapping[str, Any] = field(default_factory=dict)  # the checkpoint that shards went back to
    lost: int = 0  # the steps lost by that; or what members have said of their pushes
    whole: bool = False  # ``lost`` counts steps, which are one for all
    begun_at: float = 0.0
    num_gone: int = 0  # workers that left before they reported their losses

    def dump(self) -> Plain:
        """Return what is kept of it."""
        awaited, lost = sorted(self.awaited), [self.lost, self.whole, self.num_gone]
        return [self.revision, int(self.kind), list(self.shards), awaited, dict(self.restored), *lost]


class MemberViews(KeptRecord):
    """The changes of one job's layout that not all of its members follow."""

    kept: ClassVar = {"_revision": "views"}

    def __init__(self, startup: Startup, members: Mapping[bytes, MemberInfo], changed: Changed = nothing) -> None:
        self._startup = startup
        self._members = members
        self.changed: Callable[[str], None] = lambda what: changed()
        self._revision = 0
        #: By revision; one cut at most: the next begins when all follow it.
        self.open: dict[int, ViewChange] = KeptDict(changed)

    @property
    def told(self) -> list[bytes]:
        """The members that were sent the job, by incarnation."""
        return sorted(who for who in self._startup.told if who in self._members)

    @property
    def all_followed(self) -> bool:
        """Whether every member follows all changes."""
        return not self.open

    def awaits(self, kind: ChangeKind, member: MemberInfo) -> bool:
        """Whether a member does not follow a change of this kind yet."""
        return any(change.kind is kind and member.incarnation in change.awaited for change in self.open.values())

    def new_revision(self) -> int:
        """Return the revision of what is said next."""
        self._revision += 1
        return self._revision

    # --- what is sent --------------------------------------------------------------------------

    def announce(self, kind: ChangeKind, shards: Iterable[int], path: str = "") -> list[Action]:
        """Servers are lost, and others will replace them: members should wait. Sent once.

        ``path``: of the checkpoint that the shards go back to.
        """
        restored = {"path": path} if path else {}
        message = View(self._startup.epoch, self.new_revision(), kind, tuple(shards), {}, restored)
        return [Send(self._members[who].peer, message) for who in self._may_hear(self.told)]

    def begin(
        self, kind: ChangeKind, shards: Collection[int], now: float, revision: int | None = None, **more: Any
    ) -> tuple[ViewChange, list[Action]]:
        """Something has changed: inform the members that were sent the job. ``more``: other fields of the change."""
        revision = self.new_revision() if revision is None else revision
        for shard in shards:
            self.forget(kind, shard)
        change = ViewChange(
            changed=self.changed, revision=revision, kind=kind, shards=tuple(shards), due=now + RETRY_S,
            awaited=self._awaited(self.told), **more,
        )  # fmt: skip
        if change.awaited:
            self.open[revision] = change
        return change, self._tell(change, change.awaited)

    def _awaited(self, members: Iterable[bytes]) -> set[bytes]:
        return KeptSet(partial(self.changed, "views"), members)

    def forget(self, kind: ChangeKind, shard: int) -> int:
        """The last message about a shard is invalid; return how many pushes are known to be lost by it.

        A member that does not follow it yet does so with what comes next, and counts all then.
        """
        over = [change for change in self.open.values() if change.kind is kind and shard in change.shards]
        for change in over:
            del self.open[change.revision]
        return sum(change.lost for change in over)

    def clear(self) -> None:
        """Close all changes: no member has to follow them any more."""
        self.open.clear()

    def _may_hear(self, who: Iterable[bytes], kind: ChangeKind | None = None) -> list[bytes]:
        """Return those of members that go by the shards that there are: of others nothing is said before they do."""
        cut = next((change for change in self.open.values() if change.kind is ChangeKind.CUT), None)
        behind = set() if cut is None or kind is ChangeKind.CUT else cut.awaited
        return [one for one in sorted(who) if one not in behind]

    def _tell(self, change: ViewChange, who: Iterable[bytes]) -> list[Action]:
        startup = self._startup
        if change.kind is ChangeKind.CUT and (startup.held or len(list(startup.leaders())) < startup.num_shards):
            return []  # some of them are nowhere, for now: it is said again
        members = [self._members[one] for one in self._may_hear(who, change.kind)]
        return [Send(member.peer, self._message(change, member)) for member in members]

    def _message(self, change: ViewChange, member: MemberInfo) -> View:
        startup, copies, lost = self._startup, self._startup.copies, change.lost if change.whole else 0
        rows = [copies.row(copies.leader(shard), member) for shard in change.shards]
        where = startup.where(member) if change.kind is ChangeKind.CUT else {"servers": rows}
        return View(startup.epoch, change.revision, change.kind, change.shards, where, change.restored, lost)

    # --- acknowledgements ----------------------------------------------------------------------

    def followed(self, member: MemberInfo, message: Followed) -> ViewChange | None:
        """A member follows a change; return it, None if the change is over or the member has confirmed it before."""
        change = self.open.get(message.revision)
        if message.epoch != self._startup.epoch or change is None or member.incarnation not in change.awaited:
            return None
        change.lost += 0 if change.whole else message.lost
        self._discard(change, member)
        return change

    def leave(self, member: MemberInfo) -> list[ViewChange]:
        """A member has left; return what it did not follow yet."""
        left = [change for change in self.open.values() if member.incarnation in change.awaited]
        for change in left:
            change.num_gone += member.role == "worker"
            self._discard(change, member)
        return left

    def _discard(self, change: ViewChange, member: MemberInfo) -> None:
        change.awaited.discard(member.incarnation)
        if not change.awaited:
            del self.open[change.revision]

    def again(self, member: MemberInfo) -> list[Action]:
        """Tell a member again what it does not follow yet."""
        who = member.incarnation
        return [told for change in self.open.values() if who in change.awaited for told in self._tell(change, [who])]

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        return min([change.due for change in self.open.values()], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Tell members again what they do not follow."""
        actions: list[Action] = []
        for change in self.open.values():
            if now >= change.due:
                change.due = now + RETRY_S
                actions += self._tell(change, change.awaited)
        return actions

    # --- a coordinator that was away -----------------------------------------------------------

    def dump(self) -> Plain:
        """Return the last revision, and what is not followed; None where nothing has ever changed."""
        return [self._revision, [change.dump() for change in self.open.values()]] if self._revision else None

    def restore(self, kept: Plain, now: float) -> None:
        """Continue after a restart: members that do not follow are informed again."""
        self._revision, changes = kept
        for revision, kind, shards, awaited, restored, lost, whole, num_gone in changes:
            self.open[revision] = ViewChange(
                changed=self.changed, revision=revision, kind=ChangeKind(kind), shards=tuple(shards),
                awaited=self._awaited(awaited), due=now + RETRY_S, restored=restored, lost=lost, whole=whole,
                begun_at=now, num_gone=num_gone,
            )  # fmt: skip

    def validate(self) -> None:
        """Assert that the members that are awaited are here, and go by one cut, before all other changes."""
        for change in self.open.values():
            assert change.awaited
            assert change.awaited <= set(self._members)
        cuts = [change.revision for change in self.open.values() if change.kind is ChangeKind.CUT]
        assert cuts in ([], [min(self.open, default=0)])
