"""Shards that go back to a checkpoint: the worker goes back with them, and reports the loss.

If each push is applied on arrival, unacknowledged pushes are resent, and a shard's other pushes since the checkpoint
are lost. If a step is one for all, nothing begun before counts: pulls are repeated, and gradients of lost values are
dropped like those of a past step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zmqps.core.protocol.events import COORDINATOR, Action, Log, Notify, Peer, Send
from zmqps.core.protocol.messages import Followed, Recalled, View
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.host import listen
from zmqps.core.worker.layout.moves import ShardMoves
from zmqps.core.worker.layout.sent import MAX_HEADS, Sent
from zmqps.core.worker.operations import Advance, Attached, Exchange, Operation, Restored
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import AnyTransfer, PullTransfer, PushTransfer, Request
from zmqps.errors import ProtocolError, VersionError, counted, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """The job went back to a checkpoint, because the last copy of a part of it was lost.

    Attributes
    ----------
    version : int
        The clock of the checkpoint: steps in the synchronous mode, where ``Params.version`` goes back to it.
    shards : tuple of int
        The parts that went back: all of them in synchronous mode, else the lost ones.
    lost : int
        Synchronous: the number of lost steps. Otherwise: how many of this worker's acknowledged pushes are lost.
    state : mapping
        The state saved with the checkpoint: ``worker.checkpoint(state=…)``.
    path : str
        Of the checkpoint.
    """

    version: int
    shards: tuple[int, ...]
    lost: int
    state: Mapping[str, Any]
    path: str


@dataclass(slots=True, eq=False)
class Rewound:
    """Shards that went back together, and what that has cost."""

    message: View
    restored: Restored
    awaited: set[int] = field(default_factory=set)  # shards whose new servers have not said what they know
    lost: int = 0  # pushes, as far as it is known; or steps


class Rollbacks:
    """What one session does when shards go back."""

    def __init__(self, session: SessionKernel, moves: ShardMoves) -> None:
        self.stale_values = False  # since the job went back: the next gradients are of lost values
        self.has_range = False  # of a data set
        self.has_stale_range = False  # since then, likewise
        self._session = session
        self._pace = session.transfers.pace
        self._moves = moves
        self._sent: defaultdict[int, Sent] = defaultdict(Sent)  # by shard
        self._rewound: dict[int, Rewound] = {}  # by shard: its last rollback
        self._is_told = True  # the addresses of our servers came together with the clock

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job has changed."""
        commons, counts = self._session.links.commons, placement.get("falls_back") == 1
        listen(commons.sending, self._sending, wanted=counts)
        listen(commons.voiding, self._voiding, wanted=counts)
        listen(commons.moving, self._moving, wanted=counts)
        self._is_told = True
        self._clear()

    def recut(self) -> None:
        """The job is divided into other shards."""
        self._is_told = False
        self._clear()

    def _clear(self) -> None:
        self._rewound.clear()
        self._sent.clear()

    # --- sent pushes ---------------------------------------------------------------------------

    def _sending(self, link: Link, request: Request) -> None:
        sent = self._sent[link.shard]
        sent.next_seq = request.seq + 1
        if request.head:
            sent.heads.append(request.seq)
            if len(sent.heads) >= MAX_HEADS:
                sent.fold()

    def _voiding(self, link: Link, seq: int) -> None:
        self._sent[link.shard].void(seq)

    def _moving(self, link: Link) -> None:
        self._sent[link.shard].mark(request.seq for request in link.in_flight.values())

    # --- messages of the coordinator -----------------------------------------------------------

    def take(self, message: View, now: float) -> list[Action]:
        """Shards go back, or have."""
        shards, links = message.shards, self._session.links.by_shard
        if not message.placement:
            path = printable(str(message.restored.get("path", "")))
            for shard in shards:
                links[shard].promise(f"its shard goes back to the checkpoint {path}")
            titles = ", ".join(dict.fromkeys(links[shard].server.title for shard in shards))
            return [Log("warning", f"the job goes back to the checkpoint {path}, for its shards on {titles}")]
        restored, its = Restored.from_wire(message.restored), self._rewound.get(shards[0])
        if restored is None:
            raise ProtocolError("shards that went back have a checkpoint")
        if its is None or its.message.revision != message.revision:
            its = Rewound(message, restored)
        begun, servers = self._rewound.get(shards[0]) is its, message.placement["servers"]
        there = all(row["epoch"] == links[shard].server.epoch for shard, row in zip(shards, servers, strict=True))
        if there and (begun or self._is_told):  # repeated, or the job came with it
            return [] if its.awaited else self._confirm(its)
        its.message = message
        for shard in shards:
            if (before := self._rewound.get(shard)) is not None:
                before.awaited.discard(shard)
        self._rewound |= dict.fromkeys(shards, its)
        if self._pace.mode == "sync":
            return self._all(its, now)
        its.awaited = set(shards)
        return self._move(message, now)

    def _move(self, message: View, now: float) -> list[Action]:
        moves = zip(message.shards, message.placement["servers"], strict=True)
        return [action for shard, row in moves for action in self._session.links.move(shard, row, now)]

    def _confirm(self, its: Rewound) -> list[Action]:
        return [Send(COORDINATOR, Followed(self._session.epoch, its.message.revision, its.lost))]

    def _done(self, its: Rewound) -> list[Action]:
        """Inform the user, and the coordinator."""
        message, restored, lost = its.message, its.restored, its.lost
        event = Rollback(
            version=restored.version, shards=tuple(message.shards), lost=lost, state=restored.state, path=restored.path
        )
        what = counted(lost, "step") if self._pace.mode == "sync" else _pushes(lost)
        which = ", ".join(map(str, message.shards))
        text = (
            f"shard{'s' * (len(message.shards) > 1)} {which} went back to version {restored.version} of {restored.path}"
        )
        return [Log("warning", f"{text}: {what} lost"), Notify(event), *self._confirm(its)]

    # --- if each push is applied on arrival ----------------------------------------------------

    def recalled(self, peer: Peer, links: Iterable[Link], message: Recalled, now: float) -> list[Action]:
        """A server reports which of our pushes it has."""
        actions: list[Action] = []
        for link in links:
            its = self._rewound.get(link.shard)
            if link.server.epoch != message.epoch or its is None or link.shard not in its.awaited:
                continue
            its.awaited.discard(link.shard)
            its.lost += self._sent[link.shard].lose(message.floor, message.applied)
            if not its.awaited:
                actions += self._done(its)
        return actions

    # --- if a step is one for all --------------------------------------------------------------

    def _all(self, its: Rewound, now: float) -> list[Action]:
        """Everything goes back: nothing begun before counts."""
        host, pace, transfers = self._session, self._pace, self._session.transfers
        version, its.lost = its.restored.version, its.message.lost
        listen(transfers.hooks.dropping, self.drops)
        listen(transfers.hooks.starting, self._reads)
        recalled = transfers.take_back_ahead(now)
        under_way, ends = list(transfers.under_way.items()), list[Operation]()
        complete = isinstance(pace.step.closing, Advance)  # whether a whole step's gradients are dropped
        for link in host.links.by_shard:
            link.forget()
        for transfer, operation in under_way:
            transfer.remaining = 0
            if not isinstance(transfer, PushTransfer):
                continue
            transfers.drop(transfer)
            complete |= transfer.whole
            if isinstance(operation, Exchange) and operation.pull is not None:
                pace.held[operation] = None  # now for the values
                pace.held.move_to_end(operation, last=False)
            else:
                ends.append(operation)
        for operation in list(pace.held):
            if isinstance(operation, Advance):
                complete = True
                ends.append(operation)
            elif operation.push is not None and not operation.push.done:
                operation.push.done = True
                complete |= operation.push.whole
                if operation.pull is None:
                    ends.append(operation)
        ends += [pace.step.closing] if isinstance(pace.step.closing, Advance) else []
        reads = [operation for _, operation in under_way] + list(pace.held)
        actions: list[Action] = []
        for operation in ends:
            actions += host.resolve(operation, None)
        for operation in reads:
            if not operation.done and (gone := self._gone(operation, version)) is not None:
                error = VersionError(version=gone, oldest=version, newest=version)
                actions += host.resolve(operation, error)
        if pace.brought or pace.arrive is not None or complete:
            transfers.counts["dropped"] += 1
        if pace.arrive is not None:
            host.questions.answered(pace.arrive.request)
        pace.go_back(version)
        self.stale_values, self.has_stale_range = not complete, self.has_range and not complete
        self._moves.go_back()
        actions += self._move(its.message, now)
        pulls = [transfer for transfer, _ in under_way if isinstance(transfer, PullTransfer) and not transfer.done]
        for pull in pulls:
            self._again(pull)
        return [*recalled, *self._done(its), *actions]

    def _gone(self, operation: Operation, version: int) -> int | None:
        """Return the version that an operation reads if it is lost, and will not exist before we proceed."""
        pull = operation.pull if isinstance(operation, Exchange) else None
        if pull is None or not pull.exact or pull.target.missing is not None:
            return None
        return pull.version if version < pull.version <= self._pace.clock else None

    def _again(self, pull: PullTransfer) -> None:
        """Request all of a pull again, of the present version."""
        target = pull.target
        if not pull.exact or target.missing is not None:
            pull.version, self.stale_values = self._pace.version, False
        target.forget(list(target.versions))
        if target.missing is not None:
            sizes = dict.fromkeys(target.missing, 0)
            for cargo in (cargo for cargoes in pull.cargoes for cargo in cargoes):
                for extent in cargo.extents:
                    sizes[extent.parameter] += extent.stop - extent.start
            handed_out = [number for number, missing in target.missing.items() if not missing and sizes[number]]
            target.missing |= {number: sizes[number] for number in sizes if number not in handed_out}
            self.stale_values = bool(handed_out)  # results computed from both must not count
        for link, cargoes in zip(self._session.links.by_shard, pull.cargoes, strict=True):
            if cargoes:
                link.enqueue(pull, cargoes)

    def drops(self, operation: Exchange | Advance) -> bool:
        """Drop an operation's gradients of lost values or examples; return whether that completes it.

        At most those of one step.
        """
        if not (self.stale_values or self.has_stale_range):
            return False
        if isinstance(operation, Advance):
            self._dropped()
            return True  # it was meant to end the lost step
        push = operation.push
        if push is None or push.done:
            return False
        push.done = True
        if push.whole:
            self._dropped()
        return operation.pull is None

    def took(self, *, some: bool) -> None:
        """A range of examples was handed out, or there is none any more."""
        self.has_range, self.has_stale_range = some, False

    def _dropped(self) -> None:
        """The next gradients are of new values, and examples."""
        self.stale_values = self.has_stale_range = False
        self._session.transfers.counts["dropped"] += 1

    def _reads(self, transfer: AnyTransfer) -> None:
        if self.stale_values and isinstance(transfer, PullTransfer):
            self.stale_values = False
            transfer.version = transfer.version if transfer.exact else 0  # it had learned the requested version before


def _pushes(number: int) -> str:
    return "1 push" if number == 1 else f"{number} pushes"
