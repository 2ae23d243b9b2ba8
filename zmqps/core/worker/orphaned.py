"""What goes on without a coordinator: transfers, as long as servers answer something of them now and then."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.node.member import Member
from zmqps.core.worker.operations import Exchange, Finish, Operation
from zmqps.core.worker.pace import Pace
from zmqps.core.worker.transfer import PullTransfer
from zmqps.errors import PSError

#: A server that has what it is asked for answers sooner, also if it has to be asked again; any other one has ended
#: itself, or waits for a commit that nobody sends.
PATIENCE_S = 4.0
LOOK_S = 0.5


def advice(member: Member) -> str:
    """Say what a worker can do that has lost its coordinator; whether that has ended it cannot know."""
    if member.restarted:
        return "connect again, and init with values that you have saved"
    return (
        "its servers end when they miss it, too, and the values they hold are gone then: start the cluster again. If "
        "only this worker was cut off the others train on, and worker.rejoin() brings it back"
    )


class Orphaned:
    """Watches the transfers of a worker that has lost its coordinator."""

    def __init__(self, member: Member, pace: Pace) -> None:
        self.due: float | None = None  # when to look at them again
        self._member = member
        self._pace = pace
        self._unanswered: dict[Operation, tuple[int, float]] = {}  # requests, and since when so many

    def error(self, now: float) -> PSError:
        """Return the error of what needs the coordinator."""
        return self._member.loss(advice(self._member), now)

    def begin(self, operations: Iterable[Operation], now: float) -> list[Operation]:
        """The coordinator is lost: return the operations that end with it."""
        self.due = now
        return [o for o in operations if not isinstance(o, Finish) and not self._goes_on(o)]

    def add(self, now: float) -> None:
        """Another operation has begun: look at it, too."""
        if self.due is None:
            self.due = now

    def _goes_on(self, operation: Operation) -> bool:
        if not isinstance(operation, Exchange) or operation in self._pace.held or self.is_ahead(operation):
            return False
        # a server may be waiting for what only a coordinator commits; one that had it would have answered since
        needs_commit = self._pace.mode == "sync" and isinstance(operation.transfer, PullTransfer)
        return not needs_commit or operation.started_at > self._member.heard_at

    def is_ahead(self, operation: Operation) -> bool:
        """Whether an operation reads what only a step makes that this worker has not heard to be complete."""
        pull = operation.pull if isinstance(operation, Exchange) else None
        trains = self._pace.mode == "sync" and self._member.identity.role == "worker"
        return trains and pull is not None and pull.version > self._pace.version

    def look(self, operations: Iterable[Operation], now: float) -> list[Operation]:
        """Return those of which nothing was answered for too long."""
        before, self._unanswered = self._unanswered, {}
        for operation in operations:
            if operation.transfer is not None:
                remaining = operation.transfer.remaining
                num, since = before.get(operation, (remaining, now))
                self._unanswered[operation] = remaining, since if num == remaining else now
        self.due = now + LOOK_S if self._unanswered else None
        return [operation for operation, (_, since) in self._unanswered.items() if now >= since + PATIENCE_S]
