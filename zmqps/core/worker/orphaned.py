"""What goes on without a coordinator: transfers, as long as servers answer something of them now and then."""

from __future__ import annotations

from collections.abc import Iterable

from zmqps.core.node.member import Member
from zmqps.core.worker.operations import Operation

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

    def __init__(self) -> None:
        self.due: float | None = None  # when to look at them again
        self._unanswered: dict[Operation, tuple[int, float]] = {}  # requests, and since when so many

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
