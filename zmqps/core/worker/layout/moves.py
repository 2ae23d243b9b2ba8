"""Shards that move to another server: the worker follows, and resends what only it has of the open step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Send
from zmqps.core.protocol.messages import Followed, View
from zmqps.core.worker.host import listen
from zmqps.core.worker.operations import Attached, Exchange, Operation
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import AnyTransfer, Cargo, PushTransfer, Source
from zmqps.errors import JobEndedError, JobError, PeerLostError, ProtocolError, PSError, StaleEpochError


@dataclass(slots=True, eq=False, kw_only=True)
class ReplayGradients(Operation):
    """Resend a part of a step's gradients, as the session's own operation: until it is there, or the step is over."""

    shard: int
    revision: int  # of the view that it is done for

    title = "bringing gradients again"


class ShardMoves:
    """The moves of one session's shards.

    Servers keep the gradients of a synchronous step until it is committed, and a backup has none of them. So a worker
    keeps its gradients until it may proceed: in place, if the user's call waits for that; else as copies.
    """

    def __init__(self, session: SessionKernel) -> None:
        self.replicas = 0  # backups of each shard
        self._session = session
        self._links = session.links
        self._pace = session.transfers.pace
        self._kept: list[PushTransfer] = []  # complete pushes of steps that may be open
        self._bringing: dict[int, set[ReplayGradients]] = {}  # by shard

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job has changed."""
        replicas = placement.get("replicas", 0)
        self.replicas = replicas if type(replicas) is int else 0
        hooks, mode = self._session.transfers.hooks, attached.job.mode if self.replicas else ""
        again = mode == "sync"
        # else no message says where a lost server's shard is
        listen(hooks.excusing, _may_move, wanted=self.replicas > 0 or placement.get("falls_back") == 1)
        listen(hooks.starting, self._start, wanted=mode in ("sync", "bounded"))
        listen(hooks.pushed, self._keep, wanted=again)
        listen(hooks.proceeded, self._proceeded, wanted=again)
        listen(self._session.hooks.staying, self._is_needed, wanted=again)
        self.recut()

    def recut(self) -> None:
        """The job is divided into other shards, which have not moved yet and have all earlier steps."""
        self._kept.clear()
        self._bringing.clear()

    def go_back(self) -> None:
        """All shards are at an earlier step: nothing needs to be resent."""
        self._kept.clear()
        self._bringing.clear()

    # --- kept gradients ------------------------------------------------------------------------

    def _start(self, transfer: AnyTransfer) -> None:
        if isinstance(transfer, PushTransfer):
            transfer.blobs, transfer.source.stays = {}, False

    def _keep(self, push: PushTransfer, operation: Operation, now: float) -> None:
        """All shards have a push: keep it until its step is over."""
        if not push.attempt:
            return
        self._kept.append(_like(push, push.cargoes, self._apart(push, operation)))

    def _apart(self, push: PushTransfer, operation: Operation) -> Source:
        """Return what to send of a push again, which stays as it is until the push's step is over.

        The arrays are the user's, or memory for one push at a time: both are written to once the call has returned. A
        push_pull of the whole model returns with the values after its step, unless a step takes more gradients than
        there are workers; a part of the model, or a push alone, returns before.
        """
        attached = self._session.attached
        assert attached is not None
        waits = isinstance(operation, Exchange) and operation.pull is not None and push.whole
        stays = waits and attached.job.aggregate is None and not push.blobs
        return _as_sent(push) if stays else _copied(push)

    def _proceeded(self, now: float) -> None:
        """All steps before this one are committed, and the backups have them."""
        if self._kept:
            self._kept = [push for push in self._kept if push.step >= self._pace.clock]

    def _is_needed(self, now: float) -> bool:
        """Whether a step may need our gradients until it is committed."""
        return self._pace.arrive is not None

    # --- moves ---------------------------------------------------------------------------------

    def take(self, message: View, now: float) -> list[Action]:
        """A shard has another server, or will have."""
        if len(message.shards) > 1:
            raise ProtocolError("shards move one by one")
        shard, link = message.shards[0], self._links.by_shard[message.shards[0]]
        if not message.placement:
            link.promise()
            return [Log("warning", f"{link.server.title} was lost; its backup takes over")]
        server = message.placement["servers"][0]
        if server["epoch"] == link.server.epoch and not link.server.promised:
            return self._followed(shard, message.revision)  # repeated, or the job came with it
        actions = self._links.move(shard, server, now)
        again = self._again(shard, message.revision)
        self._bringing[shard] = {bring for bring, _ in again}
        for ended in [o for o in self._session.operations if isinstance(o, ReplayGradients) and o.shard == shard]:
            actions += self._session.resolve(ended, None)  # in flight to the shard's earlier server
        actions += [Log("warning", f"shard {shard} is on {link.server.title} now")]
        actions += self._followed(shard, message.revision)
        for bring, push in again:
            bring.transfer, bring.started_at = push, now
            self._session.operations[bring] = None
            self._session.transfers.under_way[push] = bring
            link.enqueue(push, push.cargoes[shard])
            actions += link.pump(now)
        return actions

    def _again(self, shard: int, revision: int) -> list[tuple[ReplayGradients, PushTransfer]]:
        """Return the pushes that the old server has acknowledged and the new one lacks."""
        if self._pace.mode != "sync":
            return []
        link, again = self._links.by_shard[shard], list[tuple[ReplayGradients, PushTransfer]]()
        under_way = self._session.transfers.under_way.items()
        pushes: list[tuple[PushTransfer, Operation | None]] = [(push, None) for push in self._kept]
        for begun, operation in under_way:
            if isinstance(begun, PushTransfer) and begun.attempt and not isinstance(operation, ReplayGradients):
                pushes.append((begun, operation))
        for push, by in pushes:
            unanswered = {cargo for request in link.requests_of(push) for cargo in request.cargoes}
            cargoes = tuple(cargo for cargo in push.cargoes[shard] if cargo not in unanswered)
            if cargoes and push.step >= self._pace.clock - 1:
                where: list[tuple[Cargo, ...]] = [() for _ in push.cargoes]
                where[shard] = cargoes
                source = push.source if by is None else self._apart(push, by)
                part = _like(push, tuple(where), source)
                again.append((ReplayGradients(deadline=inf, shard=shard, revision=revision), part))
        return again

    def brought(self, bring: ReplayGradients, error: PSError | None) -> list[Action]:
        """A part of a step's gradients has reached the new server; or could not, and the coordinator will repeat it."""
        bringing = self._bringing.get(bring.shard, set())
        if bring not in bringing:
            return []  # it has moved again
        if error is not None:
            self._bringing.pop(bring.shard)
            self._links.by_shard[bring.shard].promise()  # repeated, it starts again
            return []
        bringing.discard(bring)
        return self._followed(bring.shard, bring.revision)

    def _followed(self, shard: int, revision: int) -> list[Action]:
        for bring in self._bringing.get(shard, ()):
            bring.revision = revision
        if self._bringing.get(shard):
            return []
        self._bringing.pop(shard, None)
        return [Send(COORDINATOR, Followed(self._session.epoch, revision, 0))]


def _like(push: PushTransfer, cargoes: tuple[tuple[Cargo, ...], ...], source: Source) -> PushTransfer:
    """Return a push with the same gradients of a step, or a part of them."""
    return PushTransfer(
        cargoes=cargoes, source=source, examples=push.examples, step=push.step, attempt=push.attempt, terms=push.terms
    )


def _as_sent(push: PushTransfer) -> Source:
    """Return the source of a push in its sent form, to repeat it in the same form."""
    return push.source if push.source.encoded is not None else replace(push.source, codec=RAW)


def _copied(push: PushTransfer) -> Source:
    """Return a push's sent form, apart from the user's arrays: encoded, or plain."""
    encoded = dict(push.blobs or {})
    for cargo in (cargo for cargoes in push.cargoes for cargo in cargoes):
        if cargo not in encoded:
            source = push.source
            if source.encoded is not None:
                encoded[cargo] = source.encoded[cargo]
            else:
                encoded[cargo] = RAW, np.concatenate([piece.reshape(-1) for piece in source.pieces(cargo)])
    return Source(encoded=encoded, checked=push.source.checked)


def _may_move(error: PSError) -> bool:
    """Whether an error without a request is that of a server that has lost its shard, or its leadership."""
    lost = isinstance(error, PeerLostError) and error.role == "coordinator"
    return lost or isinstance(error, StaleEpochError | JobEndedError) or type(error) is JobError
