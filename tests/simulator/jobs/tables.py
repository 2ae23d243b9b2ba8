"""Sparse tables of simulated jobs: which ids there are, and the transfers that workers make of ids and rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.tables.table import RowTable
from zmqps.core.worker.rows import CHUNK_NBYTES, RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.rows.hashing import buckets_of
from zmqps.rows.initial import Initial, filler
from zmqps.rows.unique import Grouped, summed

#: All ids that simulated workers name: some of all kinds, and the bounds.
IDS = np.array(
    [0, 1, -1, (1 << 63) - 1, -(1 << 63), *np.random.default_rng(5).integers(-(1 << 62), 1 << 62, 19)], np.int64
)
#: Which of them an id is.
NUMBERS = {int(id_): number for number, id_ in enumerate(IDS)}
#: Different ones of a worker's batch.
MOST_IDS = 8


class TableTransfers:
    """Makes the transfers of one table; now and then in more messages a server than its rows need.

    Parameters
    ----------
    placement
        Where the job lies.
    number
        Of the table, among the job's.
    rng
        In how many messages.
    """

    def __init__(self, placement: Placement, number: int, rng: Random) -> None:
        self._parts = RowParts(placement, placement.keyspace.num_dense + number)
        self._rng = rng
        self.spec = self._parts.spec

    def pull(self, ids: Array) -> tuple[PullTransfer, RowTarget]:
        """Return what reads the rows of some ids, which may repeat, and where they come to lie in this order."""
        parts = self._divided()
        wanted, target = self._wanted(parts, ids)
        return PullTransfer(cargoes=self._parts.cargoes(parts, None, wanted), target=target), target

    def push(self, ids: Array, rows: Array, *, everywhere: bool, **options: Any) -> PushTransfer:
        """Return what pushes the sum of the rows of each id, or sets rows."""
        parts = self._divided()
        grouped, source = self._brought(parts, ids, rows)
        cargoes = self._parts.cargoes(parts, grouped, None, everywhere=everywhere)
        return PushTransfer(cargoes=cargoes, source=source, **options)

    def push_pull(self, ids: Array, rows: Array, others: Array) -> tuple[PushTransfer, PullTransfer, RowTarget]:
        """Return what pushes some rows, and reads others by the same messages."""
        parts = self._divided()
        grouped, source = self._brought(parts, ids, rows)
        wanted, target = self._wanted(parts, others)
        cargoes = self._parts.cargoes(parts, grouped, wanted)
        return PushTransfer(cargoes=cargoes, source=source), PullTransfer(cargoes=cargoes, target=target), target

    def scan(self) -> tuple[PullTransfer, ScanTarget, int]:
        """Return what reads all rows of some shard as they lie, where they come to, and which shard that is."""
        slice_ = self._rng.choice(self._parts.slices)
        target = ScanTarget(most=2 * IDS.size, dim=self.spec.dim)
        return PullTransfer(cargoes=self._parts.whole(slice_), target=target), target, slice_.shard

    def _divided(self) -> Any:
        """Return parts of the buckets: as for a small batch, or as for one that is too large for a message."""
        small = CHUNK_NBYTES // (self.spec.nbytes + 8)
        return self._parts.part_of_bucket(self._rng.choice((1, 1, 6 * small)))

    def _brought(self, parts: Any, ids: Array, rows: Array) -> tuple[Grouped, RowSource]:
        grouped = self._parts.group(self._parts.different(ids), parts)
        sums, _ = summed(np.ascontiguousarray(rows, np.float32), grouped.inverse, grouped.size)
        return grouped, RowSource(rows=sums, checked=True)

    def _wanted(self, parts: Any, ids: Array) -> tuple[Grouped, RowTarget]:
        wanted = self._parts.group(self._parts.different(ids), parts)
        out = np.full((ids.size, self.spec.dim), np.nan, np.float32)
        return wanted, RowTarget(inverse=wanted.inverse, out=out)


def shards_of_ids(placement: Placement, number: int) -> Array:
    """Return on which shard each of `IDS` is, for one of a job's tables."""
    table = placement.keyspace.num_dense + number
    spec = placement.keyspace.tables[table].rows
    assert spec is not None
    return _shards_of_ids(placement.cuts[table], spec.bucket_seed)


@lru_cache(maxsize=1024)
def _shards_of_ids(cuts: tuple[int, ...], seed: int) -> Array:
    found: Array = np.searchsorted(cuts, buckets_of(IDS, seed), side="right") - 1
    return found


def beginnings(spec: TableSpec) -> Array:
    """Return what the rows of `IDS` begin with."""
    out = np.empty((IDS.size, spec.dim), np.float32)
    filler(Initial.from_wire(spec.initial), spec.name).fill(IDS, out)
    return out


def numbers_of(ids: Iterable[int]) -> Array:
    """Return which of `IDS` some ids are; assert that they are among them."""
    found = list(ids)
    assert NUMBERS.keys() >= set(found), f"there are rows of ids that no worker has named: {sorted(found)}"
    return np.array([NUMBERS[id_] for id_ in found], np.int64)


def some_ids(rng: Random) -> Array:
    """Return the numbers of a batch: some different ones, of which some occur several times, in any order."""
    different = rng.sample(range(IDS.size), rng.randint(1, MOST_IDS))
    found = [number for number in different for _ in range(rng.choice((1, 1, 2, 3)))]
    rng.shuffle(found)
    return np.array(found, np.int64)


def there(table: RowTable, shards: Array, shard: int) -> Array:
    """Return which of `IDS` a table has rows of; assert that they belong to its shard, and that it has no others."""
    store = table.store
    found = np.zeros(IDS.size, bool)
    found[numbers_of(store.ids[: store.end][store.live[: store.end] != 0].tolist())] = True
    strays = IDS[found & (shards != shard)]
    assert not strays.size, f"rows {strays.tolist()} of {table.spec.name} are on shard {shard}, which is not theirs"
    return found
