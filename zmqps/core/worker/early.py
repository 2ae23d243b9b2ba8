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
from zmqps.core.worker.operations import Attached, Exchange
from zmqps.core.worker.rows import RowCargo
from zmqps.core.worker.session import SessionKernel


class Early:
    """Sends the pull of one session ahead (`Transfers.ahead`)."""

    def __init__(self, session: SessionKernel, moves: ShardMoves, rollbacks: Rollbacks) -> None:
        self._session = session
        self._moves = moves
        self._rollbacks = rollbacks
        self._tried = 0  # the arrival for which there was one

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job is another one."""
        listen(self._session.transfers.hooks.arrived, self.begin, wanted=attached.job.mode == "sync")

    def begin(self, now: float) -> list[Action]:
        """Ask for what waits for our arrival's answer, if it can be asked for now."""
        transfers = self._session.transfers
        pace = transfers.pace
        first = next(iter(pace.held))
        if pace.arrive is None or pace.paused is not None or pace.arrive.request == self._tried:
            return []
        if not isinstance(first, Exchange) or first.pull is None or not first.awaits_values:
            return []
        cargoes = next(filter(None, first.pull.cargoes), ())
        if not cargoes or isinstance(cargoes[0], RowCargo) or first.pull.exact or first.pull.target.missing is not None:
            return []
        if self._moves.replicas or self._rollbacks.stale_values:
            return []
        for link in self._session.links.by_shard:
            if link.server.lost is not None:
                return []
        self._tried = pace.arrive.request
        transfers.ahead = replace(first.pull, version=max(first.pull.version, pace.arrive.step + 1))
        return transfers.start(first, transfers.ahead, now)
