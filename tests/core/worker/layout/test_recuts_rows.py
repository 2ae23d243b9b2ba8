"""Transfers of rows that were planned for other shards: every id still has its gradient, and its row comes to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.core.worker.test_rows import DIM, IDS, OTHER, SHARDS, TABLE, W, flat
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.worker.layout.recuts import plan_rows_again
from zmqps.core.worker.rows import RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.rows.hashing import buckets_of
from zmqps.rows.unique import summed

KEYSPACE = KeySpace((W,), (OTHER, TABLE))
NUMBER = len(KEYSPACE.tables) - 1


def lies(shards: int) -> Placement:
    return Placement.balance(KEYSPACE, shards, 64)


@given(IDS, IDS, SHARDS, SHARDS, st.booleans())
def test_each_id_has_what_it_had(pushed: Any, wanted: Any, few: int, many: int, everywhere: bool) -> None:
    before, after = RowParts(lies(few), NUMBER), lies(many)
    by_bucket = before.part_of_bucket(pushed.size + wanted.size)
    going, coming = (before.group(before.different(ids), by_bucket) for ids in (pushed, wanted))
    grads = np.arange(pushed.size * DIM, dtype=np.float32).reshape(-1, DIM)
    source = RowSource(rows=summed(grads, going.inverse, going.size))
    target = RowTarget(inverse=coming.inverse, out=np.zeros((wanted.size, DIM), np.float32))
    push = PushTransfer(
        cargoes=before.cargoes(by_bucket, going, coming, everywhere=everywhere), source=source, target=target
    )
    if not flat(push.cargoes):  # type: ignore[arg-type]
        return
    of_id = {id_: source.rows[number].tolist() for number, id_ in enumerate(going.ids.tolist())}
    plan_rows_again(push, after, everywhere=everywhere)
    assert len(push.cargoes) == many
    found: dict[int, Any] = {}
    for shard, cargoes in enumerate(push.cargoes):
        assert not everywhere or not after.row_slices[shard] or any(c.begins for c in cargoes)  # type: ignore[attr-defined]
        for cargo in cargoes:
            assert any(cargo.slice is slice_ for slice_ in after.row_slices[shard])
            for ids in (cargo.pushed, cargo.wanted):  # type: ignore[attr-defined]
                buckets = buckets_of(ids, TABLE.bucket_seed)
                assert ((cargo.slice.start <= buckets) & (buckets < cargo.slice.stop)).all()
            [rows] = source.pieces(cargo)
            found |= dict(zip(cargo.pushed.tolist(), rows.reshape(-1, DIM).tolist(), strict=True))  # type: ignore[attr-defined]
            if target.size_of(cargo):
                rows = np.repeat(cargo.wanted.astype(np.float32), DIM)  # type: ignore[attr-defined]
                target.land([cargo], [rows], [1])
    assert found == of_id
    np.testing.assert_array_equal(target.out[:, 0], wanted.astype(np.float32))


def test_a_scan_asks_some_shard_that_there_is() -> None:
    parts, target = RowParts(lies(4), NUMBER), ScanTarget(start=100, most=10, dim=DIM)
    pull = PullTransfer(cargoes=parts.whole(parts.slices[3]), target=target)
    plan_rows_again(pull, after := lies(2), everywhere=False)
    assert [len(cargoes) for cargoes in pull.cargoes] == [1, 0]
    assert pull.cargoes[0][0].slice is after.row_slices[0][1]
