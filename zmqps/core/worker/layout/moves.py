"""Shards that move to another server: the worker follows, and resends what only it has of the open step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Send
from zmqps.core.protocol.messages import Followed, Moved
from zmqps.core.worker.host import listen
from zmqps.core.worker.operations import Attached, Exchange, Operation
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import AnyTransfer, Cargo, PushTransfer, Source
from zmqps.errors import JobEndedError, JobError, PeerLostError, PSError, StaleEpochError


@dataclass(slots=True, eq=False, kw_only=True)
class ReplayGradients(Operation):
    """Resend a part of a step's gradients, as the session's own operation: until it is there, or the step is over."""

    shard: int
    revision: int

    title = "bringing gradients again"


class ShardMoves:
    """The moves of one session's shards.

    Servers keep the gradients of a synchronous step until it is committed, and a backup has none of them. So a worker
    keeps its gradients until it may proceed: in place, if the user waits for that; else as copies.
    """

    def __init__(self, session: SessionKernel) -> None:
        self.replicas = 0  # backups of each shard
        self._session = session
        self._links = session.links
        self._pace = session.transfers.pace
        self._kept: list[PushTransfer] = []  # complete pushes of steps that may be open
        self._revisions: dict[int, int] = {}  # the newest revision received, by shard
        self._bringing: dict[int, set[ReplayGradients]] = {}  # by shard

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job has changed."""
        replicas = placement.get("replicas", 0)
        self.replicas = replicas if type(replicas) is int else 0
        hooks, mode = self._session.transfers.hooks, attached.job.mode if self.replicas else ""
        again = mode == "sync"
        # else no message says where a lost server's shard is
        listen(hooks.excusing, _may_move, wanted=self.replicas > 0 or placement.get("falls_back") == 1)
        listen(hooks.starting, self._start, wanted=mode in ("sync", "ssp"))
        listen(hooks.pushed, self._keep, wanted=again)
        listen(hooks.proceeded, self._proceeded, wanted=again)
        listen(self._session.hooks.staying, self._is_needed, wanted=again)
        self.recut()

    def recut(self) -> None:
        """The job is divided into other shards, which have not moved yet and have all earlier steps."""
        self._revisions.clear()
        self._kept.clear()
        self._bringing.clear()

    def go_back(self) -> None:
        """All shards are at an earlier step: nothing is to be resent."""
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
        waits = isinstance(operation, Exchange) and operation.pull is not None
        source = _as_sent(push) if waits and not push.blobs else _copied(push)
        self._kept.append(_like(push, push.cargoes, source))

    def _proceeded(self, now: float) -> None:
        """All steps before this one are committed, and the backups have them."""
        if self._kept:
            self._kept = [push for push in self._kept if push.step >= self._pace.clock]

    def _is_needed(self, now: float) -> bool:
        """Whether a step may need our gradients until it is committed."""
        return self._pace.arrive is not None

    # --- moves ---------------------------------------------------------------------------------

    def follow(self, message: Moved, now: float) -> list[Action]:
        """A shard has another server, or will have."""
        if message.epoch != self._session.epoch or message.shard >= len(self._links.by_shard):
            return []
        shard, link = message.shard, self._links.by_shard[message.shard]
        if message.revision < self._revisions.get(shard, 0):
            return []
        self._revisions[shard] = message.revision
        if not message.server:
            link.promise()
            return [Log("warning", f"{link.server.title} was lost; its backup takes over")]
        if message.server.get("epoch") == link.server.epoch and not link.server.promised:
            return self._followed(shard)  # repeated, or the job came with it
        actions = self._links.move(shard, message.server, now)
        again = self._again(shard, message.revision)
        self._bringing[shard] = {bring for bring, _ in again}
        for ended in [o for o in self._session.operations if isinstance(o, ReplayGradients) and o.shard == shard]:
            actions += self._session.resolve(ended, None)  # in flight to the shard's earlier server
        actions += [Log("warning", f"shard {shard} is on {link.server.title} now"), *self._followed(shard)]
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
        begun = [push for push, operation in under_way if not isinstance(operation, ReplayGradients)]
        for push in [*self._kept, *(push for push in begun if isinstance(push, PushTransfer) and push.attempt)]:
            unanswered = {cargo for request in link.requests_of(push) for cargo in request.cargoes}
            cargoes = tuple(cargo for cargo in push.cargoes[shard] if cargo not in unanswered)
            if cargoes and push.step >= self._pace.clock - 1:
                where: list[tuple[Cargo, ...]] = [() for _ in push.cargoes]
                where[shard] = cargoes
                source = _as_sent(push) if not push.blobs else _copied(push)
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
        return self._followed(bring.shard)

    def _followed(self, shard: int) -> list[Action]:
        if self._bringing.get(shard):
            return []
        self._bringing.pop(shard, None)
        return [Send(COORDINATOR, Followed(self._session.epoch, self._revisions.get(shard, 0), 0))]


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
