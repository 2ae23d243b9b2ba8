"""Where the shards of a job are: the coordinator's messages about it, and new plans once they are divided again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import KeySpace, Placement, Slice
from zmqps.core.job.recut import Lookup
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, decompress, named
from zmqps.core.protocol.events import COORDINATOR, Action, Log, Notify, Send
from zmqps.core.protocol.messages import ChangeKind, Followed, View
from zmqps.core.protocol.terms import are_values
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.connections.links import servers_of
from zmqps.core.worker.host import listen
from zmqps.core.worker.layout.moves import ShardMoves
from zmqps.core.worker.layout.rollbacks import Rollbacks
from zmqps.core.worker.operations import Attached
from zmqps.core.worker.rows import NO_IDS, RowCargo, RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import AnyTransfer, Cargo, PushTransfer, Source, in_order, plan

#: Cached plans, of transfers planned for the earlier shards.
MAX_PLANS = 64

Plan = tuple[tuple[Cargo, ...], ...]


class SessionRecuts:
    """Takes the coordinator's views of where shards are, and plans again when they are divided again."""

    def __init__(self, session: SessionKernel, moves: ShardMoves, rollbacks: Rollbacks) -> None:
        self._session = session
        self._links = session.links
        self._moves = moves
        self._rollbacks = rollbacks
        self._cut = 0  # revision of the last division: a lower one is of shards that no longer exist
        self._revisions: dict[tuple[ChangeKind, int], int] = {}  # by change and shard: the newest
        self._plans: dict[frozenset[int], Plan] = {}

    def attached(self, attached: Attached, placement: Mapping[str, Any]) -> None:
        """The job has changed."""
        revision = placement.get("cut", 0)
        self._cut = revision if type(revision) is int else 0
        self._revisions.clear()
        listen(self._session.transfers.hooks.starting, self.adapt, wanted=False)
        self._plans.clear()

    # --- messages of the coordinator -----------------------------------------------------------

    def take(self, message: View, now: float) -> list[Action]:
        """Shards are elsewhere, or will be: pass it on, unless it is out of date."""
        attached, change, shards = self._session.attached, message.change, message.shards
        if attached is None or message.epoch != attached.epoch or message.revision < self._cut:
            return []
        if change is ChangeKind.CUT:
            actions = self._cut_anew(attached, message, now) if message.revision > self._cut else []
            return [Send(COORDINATOR, Followed(message.epoch, message.revision, 0)), *actions]
        if not shards or max(shards) >= len(self._links.by_shard):
            return []
        if any(message.revision < self._revisions.get((change, shard), 0) for shard in shards):
            return []
        if message.placement:
            servers_of(message.placement, len(shards))
        self._revisions |= {(change, shard): message.revision for shard in shards}
        return (self._moves if change is ChangeKind.MOVED else self._rollbacks).take(message, now)

    def _cut_anew(self, attached: Attached, message: View, now: float) -> list[Action]:
        """Use the new shards, and restart pending operations.

        None of them is a push: workers have none when shards are divided. One that resumed by itself since was refused.
        """
        session = self._session
        placement = Placement.from_wire(KeySpace.of(attached.job), message.placement)
        before = self._links.by_shard
        recalled = session.transfers.take_back_ahead(now)
        actions = self._links.connect(placement, message.placement, now)
        listen(session.transfers.hooks.starting, self.adapt)  # transfers may be planned for other shards from now on
        self._cut = message.revision
        self._revisions.clear()
        self._plans.clear()
        _inherit(before, attached.placement, self._links.by_shard, placement)
        session.attached = replace(attached, placement=placement)
        for transfer in list(session.transfers.under_way):
            self._begin_anew(transfer)
        self._moves.recut()
        self._rollbacks.recut()
        for link in self._links.by_shard:
            actions += link.pump(now)
        text = f"the job has {placement.num_shards} shards now, instead of {len(before)}"
        actions += session.transfers.unpause(now)
        return [Log("info", text), Notify(session.attached), *recalled, *actions]

    def _begin_anew(self, transfer: AnyTransfer) -> None:
        transfer.remaining = 0
        if transfer.target is not None and transfer.target.missing is not None:
            self._fetch_missing(transfer)
        else:
            if transfer.target is not None:
                transfer.target.forget(list(transfer.target.versions))
            self.adapt(transfer)
        for link, cargoes in zip(self._links.by_shard, transfer.cargoes, strict=True):
            if cargoes:
                link.enqueue(transfer, cargoes)

    def _fetch_missing(self, transfer: AnyTransfer) -> None:
        """Request again the parameters that the caller does not have yet, and no others."""
        target, attached = transfer.target, self._session.attached
        assert target is not None
        assert target.missing is not None
        assert attached is not None
        wanted = [number for number, missing in target.missing.items() if missing]
        for number in wanted:
            target.missing[number] = attached.job.parameters[number].size
        some = set(wanted)
        target.forget([c for c in target.versions if not some.isdisjoint(extent.parameter for extent in c.extents)])
        transfer.cargoes = in_order(self._plan(frozenset(wanted)), wanted)

    # --- plans for other shards ----------------------------------------------------------------

    def adapt(self, transfer: AnyTransfer) -> None:
        """Plan a transfer again if it was planned for the earlier shards."""
        attached = self._session.attached
        if attached is None:
            return
        first = next((cargo.slice for cargoes in transfer.cargoes for cargo in cargoes), None)
        if len(transfer.cargoes) == attached.placement.num_shards and (
            first is None or _is_in(attached.placement, first)
        ):
            return
        if first is not None and attached.placement.keyspace.tables[first.table].rows is not None:
            brings = isinstance(transfer, PushTransfer) and not are_values(transfer.terms)
            plan_rows_again(transfer, attached.placement, everywhere=brings and attached.job.mode == "sync")
            return
        numbers = list(dict.fromkeys(e.parameter for row in transfer.cargoes for cargo in row for e in cargo.extents))
        if isinstance(transfer, PushTransfer) and transfer.source.encoded is not None:
            transfer.source = _decoded(transfer.source, attached)
        transfer.cargoes = self._plan(frozenset(numbers))
        if transfer.target is not None and transfer.target.missing is not None:
            transfer.cargoes = in_order(transfer.cargoes, list(transfer.target.missing))

    def _plan(self, numbers: frozenset[int]) -> Plan:
        attached = self._session.attached
        assert attached is not None
        if numbers not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            some = None if len(numbers) == len(attached.job.parameters) else numbers
            self._plans[numbers] = plan(attached.placement, some)
        return self._plans[numbers]


def _is_in(placement: Placement, slice_: Slice) -> bool:
    if slice_.shard >= placement.num_shards:
        return False
    return any(own is slice_ for own in (*placement.slices[slice_.shard], *placement.row_slices[slice_.shard]))


def _inherit(before: Sequence[Link], old: Placement, after: Sequence[Link], new: Placement) -> None:
    """Copy to links what the earlier ones knew of the same elements: versions, and residuals of lossy codecs."""
    there = Lookup(
        [
            (slice_, (link.versions[slice_.index], link.packer.left_out.get(slice_.index)))
            for link, slices in zip(before, old.slices, strict=True)
            for slice_ in slices
        ]
    )
    for link, slices in zip(after, new.slices, strict=True):
        for mine in slices:
            for (version, left_out), here, its in there.over(mine):
                link.versions[mine.index] = max(link.versions[mine.index], version)
                if left_out is not None:
                    link.packer.left_out.setdefault(mine.index, np.zeros(mine.size, left_out.dtype))[here] = left_out[
                        its
                    ]
    for other in before:
        after[0].counts.update(other.counts)
        other.server.handshake.stop()


def _decoded(source: Source, attached: Attached) -> Source:
    """Return encoded gradients as arrays, to be sent raw: they are in other slices now."""
    assert source.encoded is not None
    flat: list[Array | None] = [None] * len(attached.job.parameters)
    for cargo, (spec, blob) in source.encoded.items():
        sizes = [(cargo.nbytes // cargo.dtype.itemsize, cargo.dtype)]
        codec = None if spec == RAW else named(spec)
        values = [blob] if codec is None else decompress(codec, [blob], sizes)
        stretch, at = np.concatenate([np.asarray(value).reshape(-1).view(cargo.dtype) for value in values]), 0
        for parameter, start, stop in cargo.extents:
            whole = flat[parameter]
            if whole is None:
                whole = flat[parameter] = np.zeros(attached.job.parameters[parameter].size, cargo.dtype)
            whole[start:stop] = stretch[at : at + stop - start]
            at += stop - start
    return Source(arrays=flat, checked=source.checked)


def plan_rows_again(transfer: AnyTransfer, placement: Placement, *, everywhere: bool) -> None:
    """Plan a transfer of rows, of which nothing has been done, for other shards; see `RowParts.cargoes`.

    A scan asks any shard: places have changed, and every scan of them restarts.
    """
    cargoes = [cargo for row in transfer.cargoes for cargo in row if isinstance(cargo, RowCargo)]
    parts = RowParts(placement, cargoes[0].slice.table)
    target, source = transfer.target, transfer.source
    if isinstance(target, ScanTarget):
        transfer.cargoes = parts.whole(parts.slices[0])
        return
    pushed = _ids_in_order((cargo.first, cargo.pushed) for cargo in cargoes)
    wanted = _ids_in_order((cargo.wanted_first, cargo.wanted) for cargo in cargoes)
    by_bucket = parts.part_of_bucket(pushed.size + wanted.size)
    going, coming = (parts.group(parts.different(ids), by_bucket) for ids in (pushed, wanted))
    if isinstance(source, RowSource):
        rows = np.empty_like(source.rows)
        rows[going.inverse] = source.rows
        source.rows = rows
    if isinstance(target, RowTarget):
        target.inverse = coming.inverse[target.inverse]
    transfer.cargoes = parts.cargoes(by_bucket, going, coming, everywhere=everywhere)


def _ids_in_order(some: Iterable[tuple[int, Array]]) -> Array:
    """Return ids by their numbers, from 0; each with the number of the first."""
    return np.concatenate([NO_IDS, *(ids for _, ids in sorted(some, key=lambda pair: pair[0]))])
