"""Shards that move to another server: the worker follows, and brings again what only it has of the open step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Send
from zmqps.core.protocol.messages import Followed, Moved
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.operations import Exchange, Operation, SessionHost
from zmqps.core.worker.pace import Pace
from zmqps.core.worker.plan import Cargo
from zmqps.core.worker.transfer import PushTransfer, Source
from zmqps.errors import PSError

#: Gradients that are brought again have no deadline of their own: they are over when the step is.
FOREVER_S = 1e9


@dataclass(slots=True, eq=False, kw_only=True)
class ReplayGradients(Operation):
    """Bring a part of a step's gradients again, on the session's own behalf."""

    shard: int
    revision: int

    title = "bringing gradients again"


class ShardMoves:
    """Where the shards of one session's job have moved to.

    Gradients of a synchronous step are kept by servers until it is committed, and a backup has none of them. So a
    worker keeps what it has brought until it may proceed: as it is, where the user waits for that; else in copies.
    """

    def __init__(self, host: SessionHost, links: Links, pace: Pace) -> None:
        self.replicas = 0  # backups of each shard
        self.follows = False  # whether the coordinator says where a shard is whose server is lost
        self._host = host
        self._links = links
        self._pace = pace
        self._kept: list[PushTransfer] = []  # complete pushes of steps that may be open
        self._revisions: dict[int, int] = {}  # the newest that was told, by shard
        self._bringing: dict[int, set[ReplayGradients]] = {}  # by shard

    def attach(self, replicas: int, *, falls_back: bool = False) -> None:
        """The job is another one."""
        self.replicas, self.follows = replicas, replicas > 0 or falls_back
        self._kept.clear()
        self._revisions.clear()
        self._bringing.clear()

    def recut(self) -> None:
        """The job lies in other shards, which have not moved yet and have all of the steps before."""
        self._revisions.clear()
        self._kept.clear()
        self._bringing.clear()

    def go_back(self) -> None:
        """All shards are at an earlier step: nothing is to be brought again."""
        self._kept.clear()
        self._bringing.clear()

    # --- what is kept --------------------------------------------------------------------------

    def keep(self, push: PushTransfer, operation: Operation) -> None:
        """All shards have a push: keep it until its step is over."""
        if self._pace.mode != "sync" or not self.replicas:
            return
        waits = isinstance(operation, Exchange) and operation.pull is not None
        source = _as_sent(push) if waits and not push.blobs else _copied(push)
        self._kept.append(_like(push, push.cargoes, source))

    def proceeded(self, clock: int) -> None:
        """All steps before this one are committed, and the backups have them."""
        if self._kept:
            self._kept = [push for push in self._kept if push.step >= clock]

    # --- moves ---------------------------------------------------------------------------------

    def follow(
        self, message: Moved, begun: list[PushTransfer], now: float
    ) -> tuple[list[Action], list[tuple[ReplayGradients, PushTransfer]]]:
        """A shard has moved, or will; return what is to be brought there again, of all that is complete or begun."""
        if message.epoch != self._host.epoch or message.shard >= len(self._links.by_shard):
            return [], []
        shard, link = message.shard, self._links.by_shard[message.shard]
        if message.revision < self._revisions.get(shard, 0):
            return [], []
        self._revisions[shard] = message.revision
        if not message.server:
            link.promise()
            return [Log("warning", f"{link.server.title} was lost; its backup takes over")], []
        if message.server.get("epoch") == link.server.epoch and not link.server.promised:
            return self._followed(shard), []  # told again, or the job was told with it
        actions = self._links.move(shard, message.server, now)
        again = self._again(shard, message.revision, begun)
        self._bringing[shard] = {bring for bring, _ in again}
        text = f"shard {shard} is on {link.server.title} now"
        return [Log("warning", text), *actions, *self._followed(shard)], again

    def _again(
        self, shard: int, revision: int, begun: list[PushTransfer]
    ) -> list[tuple[ReplayGradients, PushTransfer]]:
        """Return the pushes of which a new server lacks what the old one has acknowledged."""
        if self._pace.mode != "sync":
            return []
        link, again = self._links.by_shard[shard], list[tuple[ReplayGradients, PushTransfer]]()
        for push in [*self._kept, *begun]:
            unanswered = {cargo for request in link.requests_of(push) for cargo in request.cargoes}
            cargoes = tuple(cargo for cargo in push.cargoes[shard] if cargo not in unanswered)
            if cargoes and push.step >= self._pace.clock - 1:
                where: list[tuple[Cargo, ...]] = [() for _ in push.cargoes]
                where[shard] = cargoes
                source = _as_sent(push) if not push.blobs else _copied(push)
                part = _like(push, tuple(where), source)
                again.append((ReplayGradients(deadline=FOREVER_S, shard=shard, revision=revision), part))
        return again

    def awaits(self, bring: ReplayGradients) -> bool:
        """Whether a part of a step's gradients is on its way to where the shard is now."""
        return bring in self._bringing.get(bring.shard, ())

    def brought(self, bring: ReplayGradients, error: PSError | None) -> list[Action]:
        """A part of a step's gradients has come to the new server; or could not, and the coordinator asks again."""
        bringing = self._bringing.get(bring.shard, set())
        if bring not in bringing:
            return []  # it has moved once more
        if error is not None:
            self._bringing.pop(bring.shard)
            self._links.by_shard[bring.shard].promise()  # told again, it begins again
            return []
        bringing.discard(bring)
        return self._followed(bring.shard)

    def _followed(self, shard: int) -> list[Action]:
        if self._bringing.get(shard):
            return []
        self._bringing.pop(shard, None)
        return [Send(COORDINATOR, Followed(self._host.epoch, self._revisions.get(shard, 0), 0))]


def _like(push: PushTransfer, cargoes: tuple[tuple[Cargo, ...], ...], source: Source) -> PushTransfer:
    """Return a push that brings the same to a step, or a part of it."""
    return PushTransfer(
        cargoes=cargoes, source=source, examples=push.examples, step=push.step, attempt=push.attempt, terms=push.terms
    )


def _as_sent(push: PushTransfer) -> Source:
    """Return the source of a push that has sent it as it is, to do so again, whatever its worker would choose now."""
    return push.source if push.source.encoded is not None else replace(push.source, codec=RAW)


def _copied(push: PushTransfer) -> Source:
    """Return what a push has sent, apart from the user's arrays: as it was encoded, or plain."""
    encoded = dict(push.blobs or {})
    for cargo in (cargo for cargoes in push.cargoes for cargo in cargoes):
        if cargo not in encoded:
            source = push.source
            if source.encoded is not None:
                encoded[cargo] = source.encoded[cargo]
            else:
                encoded[cargo] = RAW, np.concatenate([piece.reshape(-1) for piece in source.pieces(cargo)])
    return Source(encoded=encoded, checked=push.source.checked)
