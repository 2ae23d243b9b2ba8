"""The end of the cluster: asked for, when its job has ended, or when nobody has been there for long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from zmqps.core.coordinator.journal import KeptRecord, Plain, unkept
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Action, Exit, Log, Send
from zmqps.core.protocol.messages import Shutdown

GOODBYE_S = 3.0  # how long the end of the cluster waits for the servers to say goodbye


class ClusterEnd(KeptRecord):
    """Whether the cluster is ending and how, and since when nobody is there for a job."""

    kept: ClassVar = dict.fromkeys(("ending", "unsaved"), "cluster")

    def __init__(
        self,
        idle_timeout: float,  # after so many seconds without anybody the cluster ends; 0: never
        members: Mapping[bytes, MemberInfo],
        anybody: Callable[[], bool],
        wheel: Wheel,
        changed: Callable[[str], None] = unkept,
    ) -> None:
        self._timer = wheel.timer("the end of the cluster", self.next_deadline)  # `on_deadline` comes after all others
        self.changed = changed
        self.asked: Exit | None = None  # how it is to end, once its jobs are saved
        self.ending: Exit | None = None  # how it ends, once everybody is told
        self.unsaved = ""  # the last job that has ended without its last checkpoint
        self.save: Callable[[float], list[Action]] = lambda now: []  # saves jobs once more before
        self.is_saving: Callable[[], bool] = lambda: False  # whether that is still under way
        self.close: Callable[[float], list[Action]] = lambda now: []  # from then on nothing else is saved
        self._idle_timeout = idle_timeout
        self._members = members
        self._anybody = anybody
        self._due: float | None = None  # when it ends because nobody is there, or everybody is told

    def begin(self, end: Exit, now: float) -> list[Action]:
        """End the cluster, once its jobs are saved; nobody joins it any more."""
        if self.asked is not None:
            return []
        self.asked, self._due = end, None
        self._timer.touch()
        saves = self.save(now)
        if self.is_saving():
            saves.insert(0, Log("info", f"ending, once what was trained is saved: {end.reason}", "ending"))
        return [*saves, *self.look(now)]

    def look(self, now: float) -> list[Action]:
        """Tell everybody that the cluster ends, as soon as jobs are saved; it does when they have left, or soon after.

        Called after every event, for any may be the end of a checkpoint.
        """
        if (end := self.asked) is None or self.ending is not None or self.is_saving():
            return []
        if self.unsaved and end.code in (exits.OK, exits.IDLE):
            end = Exit(exits.NOT_SAVED, f"{end.reason}; job {self.unsaved!r} has ended without its last checkpoint")
        self.ending, self._due = end, now + GOODBYE_S
        self._timer.touch()
        given_up = self.close(now)  # who has asked is told that before it is told of the end
        shutdowns: list[Action] = [Send(member.peer, Shutdown(end.reason)) for member in self._members.values()]
        said = Log("info", f"ending: {end.reason}", "ending")
        return [said, *given_up, *shutdowns, *([] if shutdowns else [end])]

    def note_unsaved(self, job: str) -> None:
        """A job ends without its last checkpoint, and so does the cluster, whenever that is."""
        self.unsaved = job

    def left(self, now: float) -> list[Action]:
        """A member has gone: a cluster that is ending does so with the last, another one may be idle now."""
        if self._anybody():
            return []
        if self.ending is not None:
            return [] if self._members else [self.ending]
        self.note_idle(now)
        return []

    def note_idle(self, now: float) -> None:
        """A job has ended, or a member has gone: from now on nobody may be there."""
        if self._idle_timeout and self._due is None and self.asked is None and not self._anybody():
            self._due = now + self._idle_timeout
            self._timer.touch()

    def note_worker(self) -> None:
        """Somebody has come for a job."""
        if self.asked is None:
            self._due = None
            self._timer.touch()

    def dump(self) -> Plain:
        """Return how the cluster is ending, if it is, and what is not saved."""
        return [[] if self.ending is None else [self.ending.code, self.ending.reason], self.unsaved]

    def restore(self, kept: Plain, now: float) -> None:
        """Go on ending, if it was; who comes back is told."""
        ending, self.unsaved = kept
        if ending:
            self.ending = self.asked = Exit(*ending)
            self._due = now + GOODBYE_S
            self._timer.touch()
            self.close(now)

    def next_deadline(self) -> float | None:
        return self._due

    def on_deadline(self, now: float) -> list[Action]:
        """End what has said goodbye for long enough, or what nobody uses any more."""
        if self._due is None or now < self._due:
            return []
        if self.ending is not None:
            return [self.ending]
        return self.begin(Exit(exits.IDLE, f"no worker for {self._idle_timeout:.0f} s"), now)
