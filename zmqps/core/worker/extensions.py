"""The whole session of a worker: the kernel's, with its extensions, which are registered here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zmqps.core.node.member import Identity
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import CODING, Coding
from zmqps.core.protocol.events import Action, Peer
from zmqps.core.protocol.messages import Noted, Range, Recalled, View
from zmqps.core.worker.early import Early
from zmqps.core.worker.layout.moves import ReplayGradients, ShardMoves
from zmqps.core.worker.layout.recuts import SessionRecuts
from zmqps.core.worker.layout.rollbacks import Rollbacks
from zmqps.core.worker.notes import Notebook, NoteSender
from zmqps.core.worker.operations import Operation
from zmqps.core.worker.ranges import TakeRange
from zmqps.core.worker.rows import RowCargo, row_message
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.statistics import Statistics, Tally
from zmqps.core.worker.transfer import all_finite


class SessionMachine(SessionKernel):
    """A session with all of its extensions; moves, rollbacks, recuts and early pulls are active where needed."""

    def __init__(
        self,
        identity: Identity,
        coordinator: str,
        all_finite: Callable[[Sequence[Array]], bool] = all_finite,
        coding: Coding = CODING,
        notebook: Notebook | None = None,
    ) -> None:
        super().__init__(identity, coordinator, all_finite, coding)
        self.tally = Tally(self.transfers.counts)
        self.notes = NoteSender(Notebook() if notebook is None else notebook, self.member)
        self.moves = ShardMoves(self)
        self.rollbacks = Rollbacks(self, self.moves)
        recuts = SessionRecuts(self, self.moves, self.rollbacks)
        early = Early(self, self.moves, self.rollbacks)
        parts = (self.moves, self.rollbacks, recuts, early, self.tally)
        self.hooks.attached += [part.attached for part in parts]
        self.news[View] = recuts.take
        self.transfers.answers[Recalled] = self.rollbacks.recalled
        self.hooks.ended[ReplayGradients] = self.moves.brought
        self.links.commons.messages[RowCargo] = row_message
        self.questions.answers[TakeRange, Range] = self._took_range
        self.transfers.hooks.pushed.append(self.tally.pushed)
        self.transfers.hooks.proceeded.append(self.tally.stepped)
        self._enter_notes()

    def _enter_notes(self) -> None:
        self.member.hooks.takes[Noted] = self.notes.noted
        self.member.hooks.parts.append(self.notes)
        self.hooks.back.append(self.notes.again)
        self.hooks.finishing.append(self.notes.finish)
        self.hooks.staying.append(self.notes.waits)
        self.hooks.leaving.append(self.notes.last)

    def _took_range(self, take: TakeRange, message: Range, now: float) -> list[Action]:
        self.rollbacks.took(some=message.start < message.stop)
        return [*self.transfers.resume(message.step), *self.resolve(take, message)]

    def operation_of(self, peer: Peer, request: int) -> Operation | None:
        """Return the operation of a pending request to a server."""
        requests = [link.in_flight.get(request) for link in self.links.by_shard if link.server.peer == peer]
        return next((self.transfers.under_way.get(found.transfer) for found in requests if found), None)

    def statistics(self) -> Statistics:
        """Return the statistics so far."""
        links, book = self.links, self.notes.notebook
        book.take()
        return self.tally.statistics(
            **{name: self.transfers.counts[name] for name in ("pushes", "pulls", "nonfinite", "dropped", "left_out")},
            **{name: links.counts[name] for name in ("bytes_sent", "bytes_received", "retries")},
            in_flight_bytes=links.in_flight_nbytes,
            clock=self.transfers.pace.clock,
            mode=self.attached.job.mode if self.attached else "",
            wires=links.wires,
            logged=book.num_logged,
            log_dropped=book.num_dropped,
        )

    def counters(self) -> Mapping[str, Any]:
        """Return the counters shown in the status."""
        book = self.notes.notebook
        book.take()
        logged = {"logged": book.num_logged, "log_dropped": book.num_dropped} if book.num_logged else {}
        return {**super().counters(), **self.tally.counters(), **logged}

    def validate(self) -> None:
        """Assert the invariants."""
        super().validate()
        self.notes.validate()
