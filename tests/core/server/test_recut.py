"""A shard that is filled with what others have of it: values, slots, counts, versions, and older versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.jobs.training import ReferenceRules, row_rule
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.recut import parents, pieces_of
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.server.recut import cut, fill
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import make_rows, rows_in
from zmqps.errors import ProtocolError
from zmqps.optim import adam
from zmqps.rows.hashing import buckets_of
from zmqps.rows.initial import Initial

KEYSPACE = KeySpace([Parameter("w", (700, 60), "float32"), Parameter("b", (5,), "float32")])


def shards(placement: Placement, **options: bool) -> list[Shard]:
    spec = adam(learning_rate=0.1)
    return [Shard(placement, index, ReferenceRules(spec), **options) for index in range(placement.num_shards)]


def numbered(placement: Placement, **options: bool) -> list[Shard]:
    """Return shards in which each element is its own number, and a slot the same, negated."""
    made = shards(placement, **options)
    for shard in made:
        for state in shard.slices:
            state.value[:] = np.arange(state.slice.start, state.slice.stop)
            for slot in state.slots:
                slot[:] = -state.value
            state.version, state.steps[:] = 4, 3
        shard.begin_at(4)
        shard.filled()
    return made


@given(st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=16, deadline=None)
def test_shards_go_to_pieces_and_together_again_with_all_they_have(few: int, many: int) -> None:
    before, after = (Placement.balance(KEYSPACE, number, 1 << 14) for number in (few, many))
    there, placement = numbered(before), before
    for following in (pieces_of(before, after), after):
        made = shards(following)
        for shard in made:
            fill(shard, [there[number] for number in parents(placement, following, shard.index)])
            assert shard.loaded
            shard.validate()
            for state in shard.slices:
                numbers = np.arange(state.slice.start, state.slice.stop)
                assert (state.value == numbers).all()
                assert all((slot == -numbers).all() for slot in state.slots)
                assert state.version == 4
                assert (state.steps == 3).all()
        there, placement = made, following


SPECS = tuple(
    TableSpec(
        name=name, dim=2, optimizer=adam(0.1).to_wire(), initial=Initial("normal", 0.0, 1.0).to_wire(), expire_steps=50
    )
    for name in ("items", "users")
)
TABLES = JobSpec(parameters=(), optimizer=adam(0.1).to_wire(), mode="async", tables=SPECS)


def with_tables(placement: Placement) -> list[Shard]:
    return [with_rows(TABLES, placement, index) for index in range(placement.num_shards)]


def with_rows(job: JobSpec, placement: Placement, index: int) -> Shard:
    rows = make_rows(job, placement, index, lambda spec: row_rule(job, spec), available_nbytes=1 << 22)
    return Shard(placement, index, ReferenceRules(adam(0.1)), others=[rows])


def rows_of(made: Sequence[Shard], name: str) -> dict[int, list[Any]]:
    """Return all rows of a table by their ids: what is kept of them, and how old they are."""
    found: dict[int, list[Any]] = {}
    for table in (t for shard in made for t in rows_in(shard).tables if t.spec.name == name):
        rows = np.flatnonzero(table.store.live[: table.store.end])
        kept = table.kept(rows)
        ages = table.store.ages(rows, table.steps)
        buckets = buckets_of(kept.ids, table.spec.bucket_seed)
        assert ((table.slice.start <= buckets) & (buckets < table.slice.stop)).all()
        assert kept.counts is not None
        for i, id_ in enumerate(kept.ids.tolist()):
            assert id_ not in found
            slots = [slot[i].tolist() for slot in (kept.values, *kept.slots)]
            found[id_] = [*slots, int(kept.counts[i]), int(ages[i])]
    return found


@for_each("few, many", [(1, 3), (3, 2), (2, 5)])
def test_rows_go_with_their_buckets_and_are_as_old_as_they_were(few: int, many: int) -> None:
    before, after = (Placement.balance(KeySpace.of(TABLES), number, 1 << 14) for number in (few, many))
    there, placement, rng = with_tables(before), before, np.random.default_rng(few)
    for shard in there:
        for table in rows_in(shard).tables:
            table.version = 70 + shard.index
            for _ in range(60 + 3 * shard.index):  # not all shards have had as many
                ids = rng.integers(-(1 << 40), 1 << 40, 40)
                buckets = buckets_of(ids, table.spec.bucket_seed)
                mine = np.unique(ids[(table.slice.start <= buckets) & (buckets < table.slice.stop)])
                table.update(mine, np.ones((mine.size, 2), np.float32))
            table.expiry.before = 20
    wanted = {spec.name: rows_of(there, spec.name) for spec in SPECS}
    for following in (pieces_of(before, after), after):
        made = with_tables(following)
        for shard in made:
            shard.follow()
            assert not shard.loaded
            fill(shard, [there[number] for number in parents(placement, following, shard.index)])
            assert shard.loaded
            shard.validate()
        there, placement = made, following
    for name, rows in wanted.items():
        assert rows_of(there, name) == rows
    tables = [table for shard in there for table in rows_in(shard).tables]
    assert {table.version for table in tables} <= set(range(70, 70 + few))


def test_a_full_table_is_cut_although_buckets_have_not_as_many_rows_each() -> None:
    capacity = 200 * 2 * (4 * 2 * 3 + 17)
    spec = replace(SPECS[0], capacity_nbytes=capacity, when_full="evict", expire_steps=None)
    full = replace(TABLES, tables=(spec,))
    one, four = (Placement.balance(KeySpace.of(full), number, 1 << 14) for number in (1, 4))

    parent = with_rows(full, one, 0)
    [table] = rows_in(parent).tables
    table.update(np.arange(table.room.limit), np.ones((table.room.limit, 2), np.float32))
    children = [with_rows(full, four, index) for index in range(4)]
    for child in children:
        child.follow()
        fill(child, [parent])
        child.validate()
    found = [rows_in(child).tables[0] for child in children]
    assert sum(len(one) for one in found) == len(table)
    assert rows_of(children, "items") == rows_of([parent], "items")
    fullest = max(found, key=len)
    assert len(fullest) > table.room.limit // 4, "more than its share"
    before = len(fullest)
    buckets = buckets_of(ids := np.arange(10_000, 10_200), spec.bucket_seed)
    new = ids[(fullest.slice.start <= buckets) & (buckets < fullest.slice.stop)]
    fullest.update(new, np.ones((new.size, 2), np.float32))
    assert len(fullest) == before, "others have made way"


def test_buckets_that_are_missing_are_named() -> None:
    one, two = (Placement.balance(KeySpace.of(TABLES), number, 1 << 14) for number in (1, 2))
    (whole,) = with_tables(one)
    with pytest.raises(ProtocolError, match="of table items 1024 buckets are wanted, 512 are here"):
        fill(whole, with_tables(two)[:1])


def test_a_leader_that_may_change_yet_is_no_source() -> None:
    placement = Placement.balance(KEYSPACE, 1, 1 << 14)
    (whole,), (parent,) = shards(placement), numbered(placement)
    there = SimpleNamespace(yielding=False, assign=SimpleNamespace(shard=0, epoch=1), ready=lambda: parent)
    copy: Any = SimpleNamespace(built=lambda: whole)
    with pytest.raises(ProtocolError, match="has not yielded"):
        cut(copy, [cast("Any", there)], {}, 4)
    there.yielding = True
    cut(copy, [cast("Any", there)], {}, 4)
    assert whole.loaded


def test_what_is_missing_is_said() -> None:
    one, two = Placement.balance(KEYSPACE, 1, 1 << 14), Placement.balance(KEYSPACE, 2, 1 << 14)
    (whole,) = shards(one)
    with pytest.raises(ProtocolError, match="elements are wanted"):
        fill(whole, numbered(two)[:1])


def test_shards_of_different_steps_are_not_put_together() -> None:
    one, two = Placement.balance(KEYSPACE, 1, 1 << 14), Placement.balance(KEYSPACE, 2, 1 << 14)
    (whole,) = shards(one, synchronous=True)
    there = numbered(two, synchronous=True)
    there[1].begin_at(5)
    with pytest.raises(ProtocolError, match="of versions"):
        fill(whole, there)


def test_a_shard_without_a_slice_is_at_the_step_of_the_others() -> None:
    small = KeySpace([Parameter("b", (5,), "float32")])
    placement = Placement.balance(small, 2, 1 << 14)
    (empty,) = [shard for shard in shards(placement, synchronous=True) if not shard.slices]
    empty.follow()
    assert not empty.loaded, "it is yet to be told which that is"
    cut(cast("Any", SimpleNamespace(built=lambda: empty)), [], {}, 4)
    assert empty.loaded
    assert empty.version == 4
