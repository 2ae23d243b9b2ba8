"""The end of the cluster: on request, when its job has ended, or when it has had no members for long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from zmqps.core.coordinator.journal import KeptRecord, Plain, unkept
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Action, Exit, Log, Send
from zmqps.core.protocol.messages import Shutdown

GOODBYE_S = 3.0  #: how long the end of the cluster waits for the servers' goodbyes


class ClusterEnd(KeptRecord):
    """Whether the cluster is ending and how, and since when no job has members."""

    kept: ClassVar = dict.fromkeys(("ending", "unsaved"), "cluster")

    def __init__(
        self,
        idle_timeout: float,  # after this many seconds without members the cluster ends; 0: never
        members: Mapping[bytes, MemberInfo],
        anybody: Callable[[], bool],
        wheel: Wheel,
        changed: Callable[[str], None] = unkept,
    ) -> None:
        self._timer = wheel.timer("the end of the cluster", self.next_deadline)  # `on_deadline` comes after all others
        self.changed = changed
        self.asked: Exit | None = None  # how it will end, once its jobs are saved
        self.ending: Exit | None = None  # how it ends, once all members are informed
        self.unsaved = ""  # the last job that has ended without its last checkpoint
        self.save: Callable[[float], list[Action]] = lambda now: []  # saves jobs once more before
        self.is_saving: Callable[[], bool] = lambda: False  # whether that is still in progress
        self.close: Callable[[float], list[Action]] = lambda now: []  # from then on nothing else is saved
        self._idle_timeout = idle_timeout
        self._members = members
        self._anybody = anybody
        self._due: float | None = None  # when it ends without members, or after informing them

    def begin(self, end: Exit, now: float) -> list[Action]:
        """End the cluster, once its jobs are saved; no node may join any more."""
        if self.asked is not None:
            return []
        self.asked, self._due = end, None
        self._timer.touch()
        saves = self.save(now)
        if self.is_saving():
            saves.insert(0, Log("info", f"ending, once what was trained is saved: {end.reason}", "ending"))
        return [*saves, *self.look(now)]

    def look(self, now: float) -> list[Action]:
        """Inform all members of the end, once jobs are saved; the cluster ends when they have left, or soon after.

        Called after every event, because any may be the end of a checkpoint.
        """
        if (end := self.asked) is None or self.ending is not None or self.is_saving():
            return []
        if self.unsaved and end.code in (exits.OK, exits.IDLE):
            end = Exit(exits.NOT_SAVED, f"{end.reason}; job {self.unsaved!r} has ended without its last checkpoint")
        self.ending, self._due = end, now + GOODBYE_S
        self._timer.touch()
        given_up = self.close(now)  # clients are informed of that before the end
        shutdowns: list[Action] = [Send(member.peer, Shutdown(end.reason)) for member in self._members.values()]
        said = Log("info", f"ending: {end.reason}", "ending")
        return [said, *given_up, *shutdowns, *([] if shutdowns else [end])]

    def note_unsaved(self, job: str) -> None:
        """A job ends without its last checkpoint, and so does the cluster, whenever that is."""
        self.unsaved = job

    def left(self, now: float) -> list[Action]:
        """A member has departed: an ending cluster ends with the last one, another one may be idle now."""
        if self._anybody():
            return []
        if self.ending is not None:
            return [] if self._members else [self.ending]
        self.note_idle(now)
        return []

    def note_idle(self, now: float) -> None:
        """A job has ended, or a member has departed: the cluster may be without members from now on."""
        if self._idle_timeout and self._due is None and self.asked is None and not self._anybody():
            self._due = now + self._idle_timeout
            self._timer.touch()

    def note_worker(self) -> None:
        """A member has joined a job."""
        if self.asked is None:
            self._due = None
            self._timer.touch()

    def dump(self) -> Plain:
        """Return how the cluster is ending, if it is, and what is not saved."""
        return [[] if self.ending is None else [self.ending.code, self.ending.reason], self.unsaved]

    def restore(self, kept: Plain, now: float) -> None:
        """Continue an end in progress; members that come back are informed."""
        ending, self.unsaved = kept
        if ending:
            self.ending = self.asked = Exit(*ending)
            self._due = now + GOODBYE_S
            self._timer.touch()
            self.close(now)

    def next_deadline(self) -> float | None:
        return self._due

    def on_deadline(self, now: float) -> list[Action]:
        """End the cluster after the goodbyes, or after the idle timeout."""
        if self._due is None or now < self._due:
            return []
        if self.ending is not None:
            return [self.ending]
        return self.begin(Exit(exits.IDLE, f"no worker for {self._idle_timeout:.0f} s"), now)
