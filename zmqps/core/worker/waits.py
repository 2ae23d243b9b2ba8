"""What each operation of a worker waits for, and for how long if the coordinator is lost."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.node.member import REMINDER_INTERVAL_S, SILENT_BEATS, Member
from zmqps.core.protocol.events import Action, Log
from zmqps.core.worker.host import SessionHost
from zmqps.core.worker.operations import Advance, Exchange, Finish, Join, Operation
from zmqps.core.worker.pace import Pace
from zmqps.core.worker.transfer import PullTransfer
from zmqps.core.worker.transfers import Transfers
from zmqps.errors import DeadlineError, PSError

#: A server that can answer does so sooner, even after a repeated request. Otherwise it has ended itself, or waits for a
#: commit that will not come.
PATIENCE_S = 4.0
LOOK_S = 0.5


class Waits:
    """What the operations of one session wait for, and how long earlier ones took."""

    def __init__(self, host: SessionHost, transfers: Transfers) -> None:
        self.due: float | None = None
        self.busy_s = self.busy_since = 0.0
        self._host = host
        self._transfers = transfers

    def remind(self, now: float) -> list[Action]:
        """Name what has been awaited for long, so that the terminal is not silent."""
        operations = self._host.operations
        self.due = now + REMINDER_INTERVAL_S if operations else None
        long = [o for o in operations if now - o.started_at >= REMINDER_INTERVAL_S]
        slow = [operation for operation in long if not isinstance(operation, Join)]
        text = "{}: {:.0f} s so far, waiting for {}"
        return [Log("warning", text.format(o.title, now - o.started_at, self._awaited(o, now))) for o in slow]

    def late(self, operation: Operation, now: float) -> PSError:
        """Return the error of an operation whose deadline has come."""
        seconds, awaited = round(now - operation.started_at, 3), self._awaited(operation, now)
        member = self._host.member
        welcome, silent_s = member.welcome, member.silence(now)
        if welcome is not None and member.joined and silent_s > SILENT_BEATS * welcome.heartbeat_interval:
            awaited += f"; the coordinator has been silent for {silent_s:.1f} s"
        return DeadlineError(operation=operation.title, seconds=seconds, waiting_for=awaited)

    def doing(self) -> str:
        """Return in a few words what this worker does at the moment."""
        operations, pace = self._host.operations, self._transfers.pace
        first = next(iter(operations), None)
        if first is None:
            return "computing"
        if isinstance(first, (Exchange, Advance)) and first in pace.held:
            return "waiting for the step to end" if pace.arrive is not None else "waiting"
        return first.title

    def waited_s(self, now: float) -> float:
        """Return for how many seconds there was a pending operation, in total."""
        return self.busy_s + (now - self.busy_since if self._host.operations else 0.0)

    def oldest_s(self, now: float) -> float:
        """Return for how many seconds the first operation has been pending; 0: there is none."""
        first = next(iter(self._host.operations), None)
        return 0.0 if first is None else now - first.started_at

    def _awaited(self, operation: Operation, now: float) -> str:
        """Return what an operation waits for."""
        transfers, member = self._transfers, self._host.member
        pace = transfers.pace
        if isinstance(operation, (Exchange, Advance)) and operation in pace.held:
            return pace.awaited or "the step before it"
        if operation.transfer is not None:
            return transfers.waiting_for(operation.transfer, now)
        others = [other.title for other in self._host.operations if isinstance(other, Exchange)]
        if isinstance(operation, Finish) and others:
            return f"operations under way: {', '.join(others)}"
        if isinstance(operation, Join) or not member.joined:
            return f"the coordinator at {member.handshake.endpoint}{member.handshake.because}"
        return operation.waiting_for or "the coordinator's answer"


def advice(member: Member) -> str:
    """Return what a worker can do after losing its coordinator; it cannot know whether the coordinator has ended."""
    if member.restarted:
        return "connect again, and init with values that you have saved"
    return (
        "its servers end when they miss it, too, and the values they hold are lost then: start the cluster again. If "
        "only this worker was cut off the others train on, and worker.rejoin() brings it back"
    )


class Orphaned:
    """Watches the transfers of a worker that has lost its coordinator.

    They continue as long as servers answer some of them now and then.
    """

    def __init__(self, member: Member, pace: Pace) -> None:
        self.due: float | None = None  # when to check them again
        self._member = member
        self._pace = pace
        self._unanswered: dict[Operation, tuple[int, float]] = {}  # the number of requests, and since when

    def error(self, now: float) -> PSError:
        """Return the error of operations that need the coordinator."""
        return self._member.loss(advice(self._member), now)

    def begin(self, operations: Iterable[Operation], now: float) -> list[Operation]:
        """The coordinator is lost: return the operations that end with it."""
        self.due = now
        return [o for o in operations if not isinstance(o, Finish) and not self._goes_on(o)]

    def add(self, now: float) -> None:
        """Another operation has started: check it, too."""
        if self.due is None:
            self.due = now

    def _goes_on(self, operation: Operation) -> bool:
        if not isinstance(operation, Exchange) or operation in self._pace.held or self.is_ahead(operation):
            return False
        # a server may wait for a commit of the coordinator; one that had it would have answered since
        needs_commit = self._pace.mode == "sync" and isinstance(operation.transfer, PullTransfer)
        return not needs_commit or operation.started_at > self._member.heard_at

    def is_ahead(self, operation: Operation) -> bool:
        """Whether an operation reads the result of a step not known to this worker to be complete."""
        pull = operation.pull if isinstance(operation, Exchange) else None
        trains = self._pace.mode == "sync" and self._member.identity.role == "worker"
        return trains and pull is not None and pull.version > self._pace.version

    def look(self, operations: Iterable[Operation], now: float) -> list[Operation]:
        """Return the operations without an answer for too long."""
        before, self._unanswered = self._unanswered, {}
        for operation in operations:
            if operation.transfer is not None:
                remaining = operation.transfer.remaining
                num, since = before.get(operation, (remaining, now))
                self._unanswered[operation] = remaining, since if num == remaining else now
        self.due = now + LOOK_S if self._unanswered else None
        return [operation for operation, (_, since) in self._unanswered.items() if now >= since + PATIENCE_S]
