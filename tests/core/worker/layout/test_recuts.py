"""Shards that are cut anew while a worker trains: what it has begun begins anew, once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.core.machines import CUT, job, resolved, sent
from tests.core.worker.test_rows import DIM, IDS, OTHER, SHARDS, TABLE, W, flat
from tests.core.worker.test_session import Session, row
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.worker.layout.recuts import plan_rows_again
from zmqps.core.worker.rows import RowParts, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.rows.hashing import buckets_of
from zmqps.rows.unique import summed


def lies(spec: Any, cut: int, shards: int) -> dict[str, Any]:
    """Return where a job lies since it was cut last."""
    rows = [row(number, 10 * cut + number) for number in range(shards)]
    cuts = Placement.balance(KeySpace(spec.parameters), shards, 32).to_wire()
    return {**cuts, "cut": cut, "servers": rows}


def begun(cut: int) -> Session:
    """Return a worker that was told a job that was cut before."""
    session = Session(job("a", "b"))
    session.attach(**lies(session.spec, cut, 2))
    return session


def test_who_was_told_the_shards_with_the_job_does_not_begin_its_pushes_anew() -> None:
    session = begun(cut=3)
    push = session.transfer("push")
    asked = session.ask(push)
    told = session.get(m.View(1, 3, CUT, (), lies(session.spec, 3, 2)))
    assert sent(told, m.Followed, COORDINATOR) == [m.Followed(1, 3, 0)]
    assert not sent(told, m.Hello)
    assert not sent(told, m.Push)
    assert resolved(session.acknowledge(asked)) == [(push, None)]
    assert {second.seq for second in sent(session.ask(session.transfer("push")), m.Push)} == {2}


def test_who_was_told_the_shards_before_goes_by_those_that_there_are() -> None:
    session = begun(cut=3)
    assert session.get(m.View(1, 2, CUT, (), lies(session.spec, 2, 2))) == [], "an older one"
    told = session.get(m.View(1, 4, CUT, (), lies(session.spec, 4, 3)))
    assert sent(told, m.Followed, COORDINATOR) == [m.Followed(1, 4, 0)]
    assert [hello.epoch for hello in sent(told, m.Hello)] == [40, 41, 42]


# --- transfers of rows that were planned for other shards ----------------------------------------


KEYSPACE = KeySpace((W,), (OTHER, TABLE))
NUMBER = len(KEYSPACE.tables) - 1


def rows_lie(shards: int) -> Placement:
    return Placement.balance(KEYSPACE, shards, 64)


@given(IDS, IDS, SHARDS, SHARDS, st.booleans())
def test_each_id_has_what_it_had(pushed: Any, wanted: Any, few: int, many: int, everywhere: bool) -> None:
    before, after = RowParts(rows_lie(few), NUMBER), rows_lie(many)
    by_bucket = before.part_of_bucket(pushed.size + wanted.size)
    going, coming = (before.group(before.different(ids), by_bucket) for ids in (pushed, wanted))
    grads = np.arange(pushed.size * DIM, dtype=np.float32).reshape(-1, DIM)
    source = RowSource(rows=summed(grads, going.inverse, going.size)[0])
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
    parts, target = RowParts(rows_lie(4), NUMBER), ScanTarget(start=100, most=10, dim=DIM)
    pull = PullTransfer(cargoes=parts.whole(parts.slices[3]), target=target)
    plan_rows_again(pull, after := rows_lie(2), everywhere=False)
    assert [len(cargoes) for cargoes in pull.cargoes] == [1, 0]
    assert pull.cargoes[0][0].slice is after.row_slices[0][1]
