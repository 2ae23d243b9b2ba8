"""What servers say of the copies of shards that they have, and of what they have erased."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zmqps.core.coordinator.jobs import Jobs
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.members.telling import Telling
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.protocol.events import Action, Log
from zmqps.core.protocol.messages import (
    Committed,
    Discarded,
    Error,
    Forgotten,
    Measured,
    Message,
    Promoted,
    Ready,
    Replicating,
    Yielded,
)
from zmqps.errors import from_wire


class Holders:
    """Leaves what a server says of a copy to the job that has it; of copies that nobody has any more, nothing."""

    def __init__(self, jobs: Jobs, erasures: Erasures, checkpoints: Checkpoints, telling: Telling) -> None:
        self._jobs = jobs
        self._erasures = erasures
        self._checkpoints = checkpoints
        self._telling = telling

    def ready(self, member: MemberInfo, message: Ready, now: float) -> list[Action]:
        """It has built a copy, or that has all values."""
        run = self._jobs.of_epoch(message.epoch, member)
        return self._telling.space(run.progress(message, now), now) if run else []

    def committed(self, member: MemberInfo, message: Committed, now: float) -> list[Action]:
        """It has applied a step."""
        run = self._jobs.of_epoch(message.epoch, member)
        if run is None:
            return []
        if run.steps.lacks(message.step):
            return run.fall_behind(member, message.step, now)
        actions = run.steps.confirmed(message.epoch, message.step)
        return [*actions, *self._checkpoints.look([run], now, first=True)] if self._checkpoints.cadence else actions

    def measured(self, member: MemberInfo, message: Measured, now: float) -> list[Action]:
        """It has found out how large its part of a step's mean is."""
        run = self._jobs.of_epoch(message.epoch, member)
        return run.steps.measured(message) if run else []

    def promoted(self, member: MemberInfo, message: Promoted, now: float) -> list[Action]:
        """A backup has become the leader of its shard."""
        run = self._jobs.of_epoch(message.epoch, member)
        there = run is not None and message.epoch in run.startup.copies.by_epoch
        return run.promoted(message, now) if run is not None and there else []

    def replicating(self, member: MemberInfo, message: Replicating, now: float) -> list[Action]:
        """A leader has new backups."""
        if (run := self._jobs.of_epoch(message.epoch, member)) is not None:
            run.replication.replicating(run.startup.copies.by_epoch.get(message.epoch), message)
        return []

    def yielded(self, member: MemberInfo, message: Yielded, now: float) -> list[Action]:
        """A leader has given up its place, or cannot just now."""
        run = self._jobs.of_epoch(message.epoch, member)
        copy = None if run is None else run.startup.copies.by_epoch.get(message.epoch)
        if run is None or copy is None:
            return []
        actions = run.replication.recuts.yielded(copy, message, now)
        if actions is None:
            actions = run.replication.handovers.yielded(copy, message, now)
        return actions

    def discarded(self, member: MemberInfo, message: Discarded, now: float) -> list[Action]:
        """It keeps nothing of a copy any more."""
        self._erasures.discarded(member, message.epoch)
        return []

    def forgotten(self, member: MemberInfo, message: Forgotten, now: float) -> list[Action]:
        """It keeps nothing of a member any more."""
        self._erasures.forgotten(member, message.incarnation)
        return []

    def failed(self, member: MemberInfo, message: Error, now: float) -> list[Action]:
        """It could not do what it was told."""
        error = from_wire(message.code, message.text, message.facts)
        actions: list[Action] = [Log("error", f"{member.title}: {error}", peer=member.hello.name, error=error.number)]
        runs = self._jobs.runs.values() if message.request == 0 else [self._jobs.of_epoch(message.request, member)]
        if message.request == 0:
            self._jobs.touched.add_all()
        for run in runs:
            if run is not None:  # else about the shard of a job that was given up
                actions += run.fail(error, now, message.request)
        return actions


#: What is done at each message.
OF_HOLDERS: dict[type[Message], Callable[[Holders, MemberInfo, Any, float], list[Action]]] = {
    Ready: Holders.ready,
    Committed: Holders.committed,
    Measured: Holders.measured,
    Promoted: Holders.promoted,
    Replicating: Holders.replicating,
    Yielded: Holders.yielded,
    Discarded: Holders.discarded,
    Forgotten: Holders.forgotten,
    Error: Holders.failed,
}
