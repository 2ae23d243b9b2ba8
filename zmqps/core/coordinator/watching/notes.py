"""The coordinator's part in what scripts log: each call once, in order, with a count of lost ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.watching.history import History
from zmqps.core.protocol.events import Action, Notify, Send
from zmqps.core.protocol.message import Entry
from zmqps.core.protocol.messages import Note, Noted
from zmqps.core.protocol.messages.notes import MAX_STEP
from zmqps.errors import ProtocolError

#: The long-run rate at which a member's messages are taken: at least twice as often as a worker sends them,
INTERVAL_S = 0.05
#: … and the burst, as a leaving worker sends. Others are not answered, so they are resent.
BURST = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A node's script has logged something: for sinks."""

    job: str  # such as ``default``
    node: str  # such as ``worker 2``
    entries: tuple[Entry, ...]  # the time, on the machine's clock; the step, if any; values by name
    dropped: int = 0  # how many calls before these are lost


class NoteReceiver:
    """Takes what members log."""

    def __init__(self, history: History, changed: Callable[[bytes], None]) -> None:
        self.history = history
        self.num_taken = 0  # calls of all members
        self.num_lost = 0  # before they arrived
        self._changed = changed

    def take(self, member: MemberInfo, message: Note, now: float) -> list[Action]:
        """Take the new entries of a message; a repeated message is answered again."""
        upto = message.first + len(message.entries)
        if upto > MAX_STEP:
            raise ProtocolError(f"a script has not logged {upto} times")
        if upto <= member.notes.number:
            return [Send(member.peer, Noted(member.notes.number))]
        if member.notes.due > now + BURST * INTERVAL_S:
            return []
        member.notes.due = max(member.notes.due, now) + INTERVAL_S
        lost = max(0, message.first - member.notes.number)
        fresh = message.entries[max(0, member.notes.number - message.first) :]
        member.notes.number = upto
        self._changed(member.incarnation)
        self.num_taken += len(fresh)
        self.num_lost += lost
        node = f"{member.role} {member.rank}"
        entries = tuple([(now - age, step, values) for age, step, values in fresh])
        for at, step, values in entries:
            for name, value in values.items():
                self.history.note(member.job, node, name, at, step, value)
        told = Notify(Logged(job=member.job, node=node, entries=entries, dropped=lost))
        return [told, Send(member.peer, Noted(upto))]
