"""A pull that is sent with the arrival, so that servers keep it and answer it as soon as the step is committed.

Sent once the coordinator has let this worker proceed, it would be a round trip behind the one of the arrival. What has
come by then counts only with that answer: a pull ends no sooner than it may begin, and where the worker goes on at
another version than it has asked for, the pull is taken back and begins anew.

Only the first operation that waits is asked for, and only values of dense parameters that the caller gets all at once.
Not where shards have backups: their primaries would answer before those have the step, with values that are written
over the gradients perhaps which a lost primary's successor needs again. And not rows, whose reading changes tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zmqps.core.protocol.events import Action
from zmqps.core.worker.host import listen
from zmqps.core.worker.layout.moves import ShardMoves
from zmqps.core.worker.layout.rollbacks import Rollbacks
from zmqps.core.worker.operations import Advance, Attached, Exchange
from zmqps.core.worker.rows import RowCargo
from zmqps.core.worker.session import SessionMachine


class Early:
    """Sends the pull of one session ahead (`Transfers.ahead`)."""

    def __init__(self, session: SessionMachine, moves: ShardMoves, rollbacks: Rollbacks) -> None:
        self._session = session
        self._moves = moves
        self._rollbacks = rollbacks
        self._tried = 0  # the arrival for which there was one

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job is another one."""
        listen(self._session.transfers.hooks.waiting, self.begin, wanted=attached.job.mode == "sync")

    def begin(self, now: float) -> list[Action]:
        """Ask for what waits for our arrival's answer, if it can be asked for now."""
        transfers = self._session.transfers
        pace = transfers.pace
        first = next(iter(pace.held))
        if pace.arrive is None or pace.paused is not None or pace.arrive.request == self._tried:
            return []
        if not self._can_begin(first):
            return []
        assert isinstance(first, Exchange)
        assert first.pull is not None
        self._tried = pace.arrive.request
        transfers.ahead = replace(first.pull, version=max(first.pull.version, pace.arrive.step + 1))
        return transfers.start(first, transfers.ahead, now)

    def _can_begin(self, first: Exchange | Advance) -> bool:
        if not isinstance(first, Exchange) or first.pull is None or (first.push is not None and not first.push.done):
            return False
        pull = first.pull
        cargo = next((cargo for cargoes in pull.cargoes for cargo in cargoes), None)
        if pull.exact or pull.target.missing is not None or cargo is None or isinstance(cargo, RowCargo):
            return False
        if self._moves.replicas or self._rollbacks.stale_values:
            return False
        return not any(link.server.lost for link in self._session.links.by_shard)
