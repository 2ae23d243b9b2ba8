"""A pull that is sent with the arrival, so that servers keep it and answer it as soon as the step is committed.

Sent once the coordinator has let this worker proceed, it would be a round trip behind the one of the arrival. What has
come by then counts only with that answer: a pull ends no sooner than it may begin, and where the worker goes on at
another version than it has asked for, the pull is taken back and begins anew.

Only the first operation that waits is asked for, and only values of dense parameters that the caller gets all at once.
Not where shards have backups: their primaries would answer before those have the step, with values that are written
over the gradients perhaps which a lost primary's successor needs again. And not rows, whose reading changes tables.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from zmqps.core.protocol.events import Action
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.layout.moves import ShardMoves
from zmqps.core.worker.operations import Advance, Exchange, Operation
from zmqps.core.worker.pace import Pace
from zmqps.core.worker.rows import RowCargo
from zmqps.core.worker.transfer import AnyTransfer, PullTransfer

if TYPE_CHECKING:
    from zmqps.core.worker.plan import Cargo


class EarlyTransfers(Protocol):
    """What is needed of the session's transfers."""

    moves: ShardMoves

    def start(self, operation: Operation, transfer: AnyTransfer, now: float) -> list[Action]:
        """Queue the requests of a transfer."""

    def drop(self, transfer: AnyTransfer) -> None:
        """Forget a transfer."""


class Early:
    """The pull of one session that was sent before its turn.

    Parameters
    ----------
    transfers
        The session's transfers.
    links
        Its links to the servers.
    pace
        Where the worker is in its sequence of steps.

    Attributes
    ----------
    pull
        What was sent; None if nothing was.
    """

    def __init__(self, transfers: EarlyTransfers, links: Links, pace: Pace) -> None:
        self.pull: PullTransfer | None = None
        self._transfers = transfers
        self._links = links
        self._pace = pace
        self._operation: Exchange | None = None
        self._version = 0  # that it was sent for
        self._refused = 0  # the arrival whose pull a server has refused

    def begin(self, now: float) -> list[Action]:
        """Ask for what waits for our arrival's answer, if it can be asked for now."""
        pace = self._pace
        if pace.mode != "sync" or pace.arrive is None or pace.paused is not None:
            return []
        first = next(iter(pace.held), None)
        if first is None or not self._can_begin(first) or pace.arrive.request == self._refused:
            return []
        assert isinstance(first, Exchange)
        assert first.pull is not None
        self._operation, self._version = first, pace.arrive.step + 1
        self.pull = replace(first.pull, version=max(first.pull.version, self._version))
        return self._transfers.start(first, self.pull, now)

    def _can_begin(self, first: Exchange | Advance) -> bool:
        if not isinstance(first, Exchange) or first.pull is None or (first.push is not None and not first.push.done):
            return False
        pull, cargo = first.pull, _first(first.pull)
        if pull.exact or pull.target.missing is not None or cargo is None or isinstance(cargo, RowCargo):
            return False
        if self._transfers.moves.replicas or self._pace.stale_values:
            return False
        return not any(link.server.lost for link in self._links.by_shard)

    def is_due(self) -> bool:
        """Whether what was sent is what the worker reads now that it goes on; it is under way like any other then."""
        due = self._version == self._pace.version
        if due:
            self.forget()
        return due

    def recall(self, now: float) -> list[Action]:
        """Take the pull back, as if it had not been sent; its operation waits on."""
        pull, actions = self.pull, list[Action]()
        self.forget()
        if pull is None:
            return actions
        pull.target.forget(list(pull.target.versions))
        self._transfers.drop(pull)
        for link in self._links.by_shard:
            actions += link.withdraw(pull, now)
        return actions

    def refused(self, now: float) -> list[Action]:
        """A server will not keep the pull, or not have it at all: it says so again when its turn has come."""
        self._refused = self._pace.arrive.request if self._pace.arrive is not None else 0
        return self.recall(now)

    def forget(self) -> None:
        """The pull has ended with its operation, or is not early any more."""
        self.pull = self._operation = None

    def validate(self) -> None:
        """Assert that it waits for the answer to an arrival, before all others."""
        if self.pull is not None:
            assert self._pace.closed
            assert self._operation is next(iter(self._pace.held))
            assert self._operation.transfer is self.pull


def _first(pull: PullTransfer) -> Cargo | None:
    return next((cargo for cargoes in pull.cargoes for cargo in cargoes), None)
