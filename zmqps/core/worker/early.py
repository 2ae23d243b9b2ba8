"""A pull that is sent with the arrival, so that servers keep it and answer it as soon as the step is committed.

Sent after the coordinator's `Proceed`, it would take one more round trip. Its answers count only with that `Proceed`: a
pull ends no sooner than it may begin. If the worker proceeds to another version than requested, the pull is taken back
and repeated.

Only the first waiting operation is sent ahead, and only for values of dense parameters that the caller gets all at
once. Not if shards have backups: their leaders would answer before the backups have the step. Those values might
overwrite gradients that a lost leader's successor needs again. And not for rows, whose reading changes tables.
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
        self._tried = 0  # the arrival for which a pull was sent ahead

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job has changed."""
        listen(self._session.transfers.hooks.arrived, self.begin, wanted=attached.job.mode == "sync")

    def begin(self, now: float) -> list[Action]:
        """Request what waits for our arrival's answer, if possible now."""
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
