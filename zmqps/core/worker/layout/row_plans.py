"""Transfers of rows that were planned for the shards before they were cut anew."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.arrays import Array
from zmqps.core.worker.rows import NO_IDS, RowCargo, RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import LoadTransfer, PullTransfer, PushTransfer


def plan_rows_again(
    transfer: PushTransfer | PullTransfer | LoadTransfer, placement: Placement, *, everywhere: bool
) -> None:
    """Plan a transfer of rows for other shards.

    Parameters
    ----------
    transfer
        None of it has been carried out. A scan comes to ask any shard: places are others now, and who goes through
        all of them begins again.
    placement
        Where the job lies now.
    everywhere
        As for `RowParts.cargoes`.
    """
    cargoes = [cargo for row in transfer.cargoes for cargo in row if isinstance(cargo, RowCargo)]
    parts = RowParts(placement, cargoes[0].slice.table)
    target, source = transfer.target, transfer.source
    if isinstance(target, ScanTarget):
        transfer.cargoes = parts.whole(parts.slices[0])
        return
    pushed = _in_order((cargo.first, cargo.pushed) for cargo in cargoes)
    wanted = _in_order((cargo.wanted_first, cargo.wanted) for cargo in cargoes)
    by_bucket = parts.part_of_bucket(pushed.size + wanted.size)
    going, coming = (parts.group(parts.different(ids), by_bucket) for ids in (pushed, wanted))
    if isinstance(source, RowSource):
        rows = np.empty_like(source.rows)
        rows[going.inverse] = source.rows
        source.rows = rows
    if isinstance(target, RowTarget):
        target.inverse = coming.inverse[target.inverse]
    transfer.cargoes = parts.cargoes(by_bucket, going, coming, everywhere=everywhere)


def _in_order(some: Iterable[tuple[int, Array]]) -> Array:
    """Return ids by their numbers, from 0; each comes with the number of the first."""
    return np.concatenate([NO_IDS, *(ids for _, ids in sorted(some, key=lambda pair: pair[0]))])
