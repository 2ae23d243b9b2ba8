"""Shards that have gone back to a checkpoint: every member is told, and again until it has gone back, too.

What was acknowledged after the checkpoint is lost. Steps the coordinator counts itself; of pushes each worker says how
many of its own are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import GoBack, WentBack
from zmqps.errors import counted

#: A member answers within milliseconds; one that did not may not have been told.
RETRY_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Telling:
    """Shards that have gone back, and the members that do not know it yet."""

    shards: tuple[int, ...]
    restored: Mapping[str, Any]  # as members are told it
    whole: bool  # all shards, and the steps with them
    lost: int  # steps, or what members have said of their pushes
    awaited: set[bytes]
    due: float
    begun_at: float
    num_gone: int = 0  # workers that have gone before they said what they had lost


class Tellings:
    """What the members of one job are told of shards that go back.

    Parameters
    ----------
    name
        The job's.
    startup
        Knows the copies, and who was told the job.
    members
        The live members of the job by incarnation; shared with its `JobRun`.
    may_tell
        Whether a member, by incarnation, goes by the same shards: else it is told later, by `again`.
    changed
        Called when somebody is to be told, or has gone back.
    """

    def __init__(
        self,
        name: str,
        startup: Startup,
        members: Mapping[bytes, MemberInfo],
        may_tell: Callable[[bytes], bool] = lambda who: True,
        changed: Changed = nothing,
    ) -> None:
        self._name = name
        self._may_tell = may_tell
        self._changed = changed
        self._startup = startup
        self._members = members
        self._number = 0
        self._open: dict[int, _Telling] = {}  # by number
        self.num_done = 0
        self._last: dict[str, Any] = {}

    @property
    def told(self) -> list[bytes]:
        """Who needs the shards, by incarnation."""
        return sorted(who for who in self._startup.told if who in self._members)

    def send_all(self, message: Any) -> list[Action]:
        """Say something to all of them, once."""
        return [Send(self._members[who].peer, message) for who in self.told]

    def announce(self, shards: Iterable[int], path: str) -> list[Action]:
        """The servers of shards are lost, and these are to go back: who needs them is to wait."""
        self._number += 1
        self._changed()
        message = GoBack(self._startup.epoch, self._number, sorted(shards), {}, 0, 0, {"path": path})
        return [Send(self._members[who].peer, message) for who in filter(self._may_tell, self.told)]

    def forget(self, shard: int) -> int:
        """A shard that has gone back is lost once more; return how many pushes are known to be lost by the first time.

        Who has not gone back yet does so to what comes next, and counts all then.
        """
        over = [number for number, telling in self._open.items() if shard in telling.shards]
        return sum(self._open.pop(number).lost for number in over)

    def begin(
        self,
        shards: tuple[int, ...],
        restored: Mapping[str, Any],
        begun_at: float,
        now: float,
        *,
        lost: int,
        whole: bool,
    ) -> list[Action]:
        """Shards are there again: tell everybody who needs them."""
        self._number += 1
        self.num_done += 1
        self._changed()
        telling = self._open[self._number] = _Telling(
            shards=shards, restored=restored, whole=whole, lost=lost, awaited=set(self.told), due=now + RETRY_S,
            begun_at=begun_at,
        )  # fmt: skip
        return [*self._tell(self._number, telling, telling.awaited), *self._close(self._number, now)]

    def again(self, member: MemberInfo) -> list[Action]:
        """A member is back: tell it again where it has not gone back."""
        who = member.incarnation
        tellings = [(number, telling) for number, telling in self._open.items() if who in telling.awaited]
        return [action for number, telling in tellings for action in self._tell(number, telling, {who})]

    def _tell(self, number: int, telling: _Telling, awaited: Iterable[bytes]) -> list[Action]:
        copies, epoch, restored = self._startup.copies, self._startup.epoch, telling.restored
        lost, actions = telling.lost if telling.whole else 0, list[Action]()
        for who in filter(self._may_tell, sorted(awaited)):
            member = self._members[who]
            rows = {"rows": [copies.row(copies.leader(shard), member) for shard in telling.shards]}
            message = GoBack(epoch, number, telling.shards, rows, restored["version"], lost, restored)
            actions.append(Send(member.peer, message))
        return actions

    def followed(self, member: MemberInfo, message: WentBack, now: float) -> list[Action]:
        """A member has gone back."""
        telling = self._open.get(message.number)
        if message.epoch != self._startup.epoch or telling is None or member.incarnation not in telling.awaited:
            return []
        self._changed()
        telling.awaited.discard(member.incarnation)
        telling.lost += 0 if telling.whole else message.lost
        return self._close(message.number, now)

    def _close(self, number: int, now: float) -> list[Action]:
        """Say what was lost, once all have said it."""
        telling = self._open[number]
        if telling.awaited:
            return []
        del self._open[number]
        self._last = {
            "shards": list(telling.shards),
            "path": telling.restored["path"],
            "version": telling.restored["version"],
            "lost": telling.lost,
            "unit": "steps" if telling.whole else "pushes",
            "exact": not telling.num_gone,
            "seconds": round(now - telling.begun_at, 3),
            "at": now,
        }
        if telling.whole:
            return []
        what = "1 push" if telling.lost == 1 else f"{telling.lost} pushes"
        where = f"shard{'s' * (len(telling.shards) > 1)} {', '.join(map(str, telling.shards))}"
        least = f", and what {counted(telling.num_gone, 'worker')} pushed that left since" if telling.num_gone else ""
        text = (
            f"job {self._name!r}: {what} that had been acknowledged after the checkpoint are gone from {where}{least}"
        )
        return [Log("warning", text, job=self._name)]

    def awaits(self, member: MemberInfo) -> bool:
        """Whether a member is yet to go back."""
        return any(member.incarnation in telling.awaited for telling in self._open.values())

    def leave(self, member: MemberInfo, now: float) -> list[Action]:
        """A member has gone."""
        actions: list[Action] = []
        for number, telling in list(self._open.items()):
            if member.incarnation in telling.awaited:
                self._changed()
                telling.awaited.discard(member.incarnation)
                telling.num_gone += member.role == "worker" and not telling.whole
                actions += self._close(number, now)
        return actions

    def give_up(self) -> None:
        """Nobody goes back anywhere any more."""
        self._open.clear()

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        return min([telling.due for telling in self._open.values()], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Tell again whoever has not gone back."""
        actions: list[Action] = []
        for number, telling in self._open.items():
            if now >= telling.due:
                telling.due = now + RETRY_S
                actions += self._tell(number, telling, telling.awaited)
        return actions

    def dump(self) -> Plain:
        """Return what is kept of it."""
        tellings = [
            [number, list(t.shards), dict(t.restored), t.whole, t.lost, sorted(t.awaited), t.num_gone]
            for number, t in self._open.items()
        ]
        return [self._number, self.num_done, {**self._last, "at": 0.0} if self._last else {}, tellings]

    def restore(self, kept: Plain, now: float) -> None:
        """Go on with what was kept."""
        self._number, self.num_done, self._last, tellings = kept
        if self._last:
            self._last["at"] = now
        for number, shards, restored, whole, lost, awaited, num_gone in tellings:
            self._open[number] = _Telling(
                shards=tuple(shards), restored=restored, whole=whole, lost=lost, awaited=set(awaited),
                due=now + RETRY_S, begun_at=now, num_gone=num_gone,
            )  # fmt: skip

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for the status."""
        if not self._last:
            return {"times": self.num_done}
        last = {name: value for name, value in self._last.items() if name != "at"}
        return {"times": self.num_done, "last": {**last, "ago_s": round(now - self._last["at"], 3)}}

    def validate(self) -> None:
        """Assert that those who are awaited are here."""
        for telling in self._open.values():
            assert telling.awaited
            assert telling.awaited <= set(self._members)
