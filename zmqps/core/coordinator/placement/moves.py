"""Shards that have another server: every member is told, and again until it talks to that one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from zmqps.core.coordinator.journal import Changed, Plain, nothing
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.copies import Replica, ReplicaSet
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Moved, Retargeted

#: A member answers when it talks to the new server; one that did not may not have been told.
RETRY_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Move:
    """One shard's last move, and who does not follow it yet."""

    copy: Replica
    generation: int  # when it moved
    version: int
    lost: int
    due: float
    awaited: set[bytes] = field(default_factory=set)


class Moves:
    """The moves of one job's shards that not all members have followed.

    Parameters
    ----------
    members
        The live members of the job by incarnation; shared with its `JobRun`.
    may_tell
        Whether a member, by incarnation, goes by the same shards: else it is told later, by `again`.
    changed
        Called when there is another move, or somebody has followed one.
    """

    def __init__(
        self, members: Mapping[bytes, MemberInfo], may_tell: Callable[[bytes], bool], changed: Changed = nothing
    ) -> None:
        self._members = members
        self._may_tell = may_tell
        self._changed = changed
        self._moves: dict[int, _Move] = {}  # by shard

    def announce(self, epoch: int, copy: Replica, told: Iterable[bytes]) -> list[Action]:
        """A shard's server is lost, and that of a copy takes over: who needs it is to wait. Said once."""
        self.forget(copy.shard)
        message = Moved(epoch, copy.shard, copy.generation, {}, 0, 0)
        there = [who for who in sorted(told) if who in self._members and self._may_tell(who)]
        return [Send(self._members[who].peer, message) for who in there]

    def forget(self, shard: int) -> None:
        """A shard is not any more where it has moved to."""
        if self._moves.pop(shard, None) is not None:
            self._changed()

    def begin(
        self,
        epoch: int,
        copies: ReplicaSet,
        copy: Replica,
        told: Iterable[bytes],
        now: float,
        version: int = 0,
        lost: int = 0,
    ) -> list[Action]:
        """A shard has moved to the server of a copy: tell those who have been told the job."""
        awaited = {who for who in told if who in self._members}
        move = _Move(
            copy=copy, generation=copy.generation, version=version, lost=lost, due=now + RETRY_S, awaited=awaited
        )
        if move.awaited:
            self._moves[copy.shard] = move
            self._changed()
        return self._tell(epoch, copies, move, move.awaited)

    def again(self, epoch: int, copies: ReplicaSet, member: MemberInfo) -> list[Action]:
        """Tell a member again of the moves that it has not followed."""
        who = member.incarnation
        moves = [move for move in self._moves.values() if who in move.awaited]
        return [action for move in moves for action in self._tell(epoch, copies, move, {who})]

    def _tell(self, epoch: int, copies: ReplicaSet, move: _Move, awaited: Iterable[bytes]) -> list[Action]:
        copy, actions = move.copy, list[Action]()
        for who in filter(self._may_tell, sorted(awaited)):
            member = self._members[who]
            row = copies.row(copy, member)
            moved = Moved(epoch, copy.shard, move.generation, row, move.version, move.lost)
            actions.append(Send(member.peer, moved))
        return actions

    def followed(self, member: MemberInfo, message: Retargeted) -> bool:
        """A member talks to the new server of a shard; return whether that is news of its last move."""
        move = self._moves.get(message.shard)
        if move is None or message.generation != move.generation or member.incarnation not in move.awaited:
            return False
        self.leave(member, message.shard)
        return True

    def leave(self, member: MemberInfo, shard: int | None = None) -> None:
        """A member has gone, or has followed the move of one shard."""
        for number in [shard] if shard is not None else list(self._moves):
            if (move := self._moves.get(number)) is not None and member.incarnation in move.awaited:
                move.awaited.remove(member.incarnation)
                self._changed()
                if not move.awaited:
                    del self._moves[number]

    def next_deadline(self) -> float | None:
        """Return when `on_deadline` wants to be called."""
        return min([move.due for move in self._moves.values()], default=None)

    def on_deadline(self, epoch: int, copies: ReplicaSet, now: float) -> list[Action]:
        """Tell again whoever has not followed."""
        actions: list[Action] = []
        for move in self._moves.values():
            if now >= move.due:
                move.due = now + RETRY_S
                actions += self._tell(epoch, copies, move, move.awaited)
        return actions

    def dump(self) -> Plain:
        """Return which shards have moved, and who has not followed; None for none."""
        return [
            [shard, m.copy.epoch, m.generation, m.version, m.lost, sorted(m.awaited)]
            for shard, m in sorted(self._moves.items())
        ] or None

    def restore(self, kept: Plain, copies: ReplicaSet, now: float) -> None:
        """Have the moves that were kept; who has not followed is told again."""
        for shard, epoch, generation, version, lost, awaited in kept:
            self._moves[shard] = _Move(
                copy=copies.by_epoch[epoch], generation=generation, version=version, lost=lost, due=now + RETRY_S,
                awaited=set(awaited),
            )  # fmt: skip

    def validate(self) -> None:
        """Assert that those who are awaited are here."""
        for move in self._moves.values():
            assert move.awaited
            assert move.awaited <= set(self._members)
