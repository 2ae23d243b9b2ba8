"""Sparse tables of a job: their wire form, what cannot be one, and their buckets in the key space."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import PLAIN
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import (
    MAX_ADMIT,
    MAX_DIM,
    MAX_TABLE_NAME_CHARS,
    MAX_TABLES,
    NUM_BUCKETS,
    STEP_COUNTS,
    WHEN_FULL,
    TableSpec,
)
from zmqps.errors import ConfigurationError, JobMismatchError, ProtocolError, PSError
from zmqps.optim import sgd
from zmqps.rows.hashing import buckets_of
from zmqps.rows.initial import Initial
from zmqps.stale import divide

SGD = sgd(1.0).to_wire()
ITEMS = TableSpec(name="items", dim=4, optimizer=SGD, initial=Initial("normal", 0.0, 0.1, 3).to_wire())
USERS = TableSpec(
    name="users",
    dim=MAX_DIM,
    optimizer=SGD,
    initial=Initial("zeros").to_wire(),
    capacity_nbytes=1 << 20,
    when_full="evict",
    admit=MAX_ADMIT,
    expire_steps=7,
    expire_s=0.5,
    step_counts="table",
    lazy_decay=True,
)
W, B = Parameter("w", (300, 300), "float32"), Parameter("b", (10,), "float64")
JOB = JobSpec(parameters=(W, B), optimizer=SGD, mode="async", tables=(ITEMS, USERS))


def named(name: str, dim: int = 4) -> TableSpec:
    return replace(ITEMS, name=name, dim=dim)


# --- a table ------------------------------------------------------------------------------------


@for_each("table", [ITEMS, USERS], ids=["plain", "with all options"])
def test_a_table_survives_the_wire(table: TableSpec) -> None:
    again = TableSpec.from_wire(table.to_wire())
    assert again == table
    assert again.to_wire() == table.to_wire()


@given(
    when_full=st.sampled_from(WHEN_FULL),
    admit=st.integers(1, MAX_ADMIT),
    expire_steps=st.none() | st.integers(1, (1 << 31) - 1),
    expire_s=st.none() | st.floats(1e-3, 1e9),
    step_counts=st.sampled_from(STEP_COUNTS),
    lazy_decay=st.booleans(),
    name=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=MAX_TABLE_NAME_CHARS),
)
def test_every_table_that_there_can_be_survives_the_wire(**options: Any) -> None:
    table = replace(USERS, **options)
    assert TableSpec.from_wire(table.to_wire()) == table


@for_each(
    "options",
    [
        {"name": ""},
        {"name": "line\nbreak"},
        {"name": "n" * (MAX_TABLE_NAME_CHARS + 1)},
        {"dim": 0},
        {"dim": MAX_DIM + 1},
        {"dim": 4.5},
        {"dim": True},
        {"capacity_nbytes": 0},
        {"capacity_nbytes": 1 << 63},
        {"when_full": "grow"},
        {"admit": 0},
        {"admit": MAX_ADMIT + 1},
        {"expire_steps": 0},
        {"expire_steps": 1 << 31},
        {"expire_s": 0.0},
        {"expire_s": -1.0},
        {"expire_s": math.nan},
        {"step_counts": "pushes"},
        {"lazy_decay": 1},
        {"initial": Initial("zeros").to_wire() | {"kind": "ones"}},
        {"initial": Initial("zeros").to_wire() | {"a": math.inf}},
    ],
)
def test_what_no_table_can_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        replace(ITEMS, **options)


def test_rows_make_way_only_where_there_is_a_capacity() -> None:
    with pytest.raises(ConfigurationError, match=r"table 'items': .* name capacity_nbytes"):
        replace(ITEMS, when_full="evict")


@for_each("wire", [None, [], "items", {}, {"name": "items"}, {**ITEMS.to_wire(), "more": 1}])
def test_a_map_without_just_those_entries_is_a_protocol_error(wire: Any) -> None:
    with pytest.raises(ProtocolError, match="a table has name, dim, optimizer"):
        TableSpec.from_wire(wire)


@pytest.mark.hypothesis
@for_each("entry", list(ITEMS.to_wire()))
def test_a_table_with_one_entry_replaced_is_a_table_or_an_error_of_ours(entry: str) -> None:
    @given(PLAIN)
    def is_read_or_refused(value: Any) -> None:
        with contextlib.suppress(PSError):
            TableSpec.from_wire({**ITEMS.to_wire(), entry: value})

    is_read_or_refused()


@for_each(
    "entry, value",
    [("name", 3), ("dim", True), ("dim", 4.0), ("optimizer", []), ("initial", None), ("lazy_decay", 1), ("admit", "2")],
)
def test_an_entry_of_another_type_is_a_protocol_error(entry: str, value: Any) -> None:
    with pytest.raises(ProtocolError, match=f"a table's {entry} is"):
        TableSpec.from_wire({**ITEMS.to_wire(), entry: value})


def test_a_row_has_four_bytes_an_element() -> None:
    assert (ITEMS.nbytes, USERS.nbytes) == (16, 4 * MAX_DIM)


def test_rows_that_are_not_finite_are_named_by_table_and_id() -> None:
    ids = np.array([17, -3, 2**63 - 1])
    rows = np.array([[0.0, np.nan], [1.0, 2.0], [-np.inf, 0.0]], np.float32)
    assert ITEMS.nonfinite(ids, rows) == ["items[17]", f"items[{2**63 - 1}]"]
    assert ITEMS.nonfinite(ids[:0], rows[:0]) == []


def test_buckets_depend_on_the_name_of_the_table_alone() -> None:
    assert (
        ITEMS.bucket_seed
        == replace(USERS, name="items").bucket_seed
        == TableSpec.from_wire(ITEMS.to_wire()).bucket_seed
    )
    assert ITEMS.bucket_seed != USERS.bucket_seed


# --- a job with tables --------------------------------------------------------------------------


def test_a_job_with_tables_survives_the_wire() -> None:
    assert JobSpec.from_wire(JOB.to_wire()) == JOB
    alone = replace(JOB, parameters=())
    assert JobSpec.from_wire(alone.to_wire()) == alone


def test_a_job_without_tables_travels_as_it_always_has() -> None:
    assert "tables" not in replace(JOB, tables=()).to_wire()


def test_tables_that_are_no_list_are_a_protocol_error() -> None:
    wrong: list[Any] = [None, {}, "items", 1]
    for tables in wrong:
        with pytest.raises(ProtocolError):
            JobSpec.from_wire({**JOB.to_wire(), "tables": tables})


@for_each(
    "options, said",
    [
        ({"parameters": (), "tables": ()}, "at least one parameter, or a table"),
        ({"tables": (ITEMS, ITEMS)}, "named 'items'"),
        ({"tables": (named("w"),)}, "named 'w'"),
        ({"tables": tuple(named(f"t{number}") for number in range(MAX_TABLES + 1))}, str(MAX_TABLES)),
        ({"mode": "sync", "retain": 1}, "leave out retain"),
        ({"treatment": divide().to_wire()}, "leave out treatment"),
    ],
)
def test_what_does_not_go_with_tables_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        replace(JOB, **options)


def test_as_many_tables_as_are_allowed_make_a_job() -> None:
    tables = tuple(named(f"t{number}") for number in range(MAX_TABLES))
    assert len(replace(JOB, tables=tables).tables) == MAX_TABLES


def test_the_order_of_tables_need_not_be_the_same() -> None:
    JOB.check_same(replace(JOB, tables=(USERS, ITEMS)), "worker 0")


@for_each(
    "tables, what, ours, theirs",
    [
        ((ITEMS,), "table 'users'", "no such table", "a table"),
        ((ITEMS, USERS, named("more")), "table 'more'", "a table", "no such table"),
        ((replace(ITEMS, dim=5), USERS), "table 'items'", "dim 5", "dim 4"),
        ((replace(ITEMS, admit=2), USERS), "table 'items'", "admit 2", "admit 1"),
        ((ITEMS, replace(USERS, expire_s=1.0, expire_steps=8)), "table 'users'", "expire_steps 8", "expire_s 0.5"),
    ],
)
def test_tables_that_differ_make_another_job(tables: tuple[TableSpec, ...], what: str, ours: str, theirs: str) -> None:
    mine = replace(JOB, tables=tables)
    with pytest.raises(JobMismatchError) as caught:
        JOB.check_same(mine, "worker 0")
    assert caught.value.what == what
    assert ours in caught.value.ours
    assert theirs in caught.value.theirs


# --- the key space ------------------------------------------------------------------------------


def test_sparse_tables_come_after_those_of_the_parameters() -> None:
    keyspace = KeySpace.of(JOB)
    assert [table.dtype.str for table in keyspace.dense] == ["<f4", "<f8"]
    assert [table.rows for table in keyspace.tables] == [None, None, ITEMS, USERS]
    assert [table.size for table in keyspace.tables[keyspace.num_dense :]] == [NUM_BUCKETS] * 2
    assert keyspace.sparse == JOB.tables


def test_buckets_take_no_bytes_that_anybody_knows_of() -> None:
    assert KeySpace.of(JOB).nbytes == KeySpace(JOB.parameters).nbytes
    placement = Placement.balance(KeySpace.of(replace(JOB, parameters=())), 3)
    assert [placement.nbytes(shard) for shard in range(3)] == [0] * 3


def test_tables_leave_parameters_where_they_are() -> None:
    with_tables, without = (Placement.balance(space, 3) for space in (KeySpace.of(JOB), KeySpace(JOB.parameters)))
    assert with_tables.cuts[:2] == without.cuts
    assert with_tables.slices == without.slices


@pytest.mark.parametrize("parameters", [(), (W, B)], ids=["tables alone", "beside parameters"])
@given(num_shards=st.integers(1, 40))
def test_every_bucket_of_every_table_is_on_one_shard_and_none_has_more_than_its_share(
    parameters: tuple[Parameter, ...], num_shards: int
) -> None:
    placement = Placement.balance(KeySpace.of(replace(JOB, parameters=parameters)), num_shards)
    assert placement.num_shards == num_shards
    found = [slice_ for row in placement.row_slices for slice_ in row]
    for number in range(placement.keyspace.num_dense, len(placement.keyspace.tables)):
        bounds = [(slice_.start, slice_.stop) for slice_ in found if slice_.table == number]
        assert bounds[0][0] == 0
        assert bounds[-1][1] == NUM_BUCKETS
        assert all(before[1] == after[0] for before, after in pairwise(bounds))
        sizes = [stop - start for start, stop in bounds]
        assert max(sizes) - min(sizes) <= 1
    assert sum(placement.buckets(shard) for shard in range(num_shards)) == 2 * NUM_BUCKETS


@given(num_shards=st.integers(1, 9))
def test_buckets_are_numbered_after_a_shards_slices(num_shards: int) -> None:
    placement = Placement.balance(KeySpace.of(JOB), num_shards, 4096)
    for shard, (dense, sparse) in enumerate(zip(placement.slices, placement.row_slices, strict=True)):
        assert [slice_.index for slice_ in (*dense, *sparse)] == list(range(placement.num_slices(shard)))
        assert [slice_.shard for slice_ in sparse] == [shard] * 2
        assert not any(slice_.segments for slice_ in sparse)


def test_there_may_be_more_shards_than_buckets() -> None:
    placement = Placement.balance(KeySpace((), (ITEMS,)), NUM_BUCKETS + 5)
    sizes = [placement.buckets(shard) for shard in range(placement.num_shards)]
    assert sorted(sizes) == [0] * 5 + [1] * NUM_BUCKETS
    assert [placement.num_slices(shard) for shard in range(placement.num_shards)] == sizes


def test_ids_next_to_each_other_are_spread_evenly() -> None:
    ids = np.arange(100_000)
    for table in JOB.tables:
        counts = np.bincount(buckets_of(ids, table.bucket_seed), minlength=NUM_BUCKETS)
        assert counts.size == NUM_BUCKETS
        mean = ids.size / NUM_BUCKETS
        assert abs(counts - mean).max() < 6 * math.sqrt(mean)


@for_each("parameters", [(), (W, B)], ids=["tables alone", "beside parameters"])
def test_a_placement_with_buckets_survives_the_wire(parameters: tuple[Parameter, ...]) -> None:
    job = replace(JOB, parameters=parameters)
    placement = Placement.balance(KeySpace.of(job), 3, 4096)
    again = Placement.from_wire(KeySpace.of(job), placement.to_wire())
    assert (again.cuts, again.slices, again.row_slices) == (placement.cuts, placement.slices, placement.row_slices)


@for_each(
    "cuts",
    [[[0, NUM_BUCKETS - 1]], [[0, NUM_BUCKETS + 1]], [[1, NUM_BUCKETS]], [[0, 600, 500, NUM_BUCKETS]], [[0]], []],
)
def test_cuts_that_are_not_those_of_all_buckets_are_a_protocol_error(cuts: list[list[int]]) -> None:
    with pytest.raises(ProtocolError):
        Placement.from_wire(KeySpace((), (ITEMS,)), {"cuts": cuts, "slice_nbytes": 4096})


def test_rows_tell_how_many_buckets_a_shard_has() -> None:
    rows = Placement.balance(KeySpace.of(JOB), 3).rows()
    assert [row["buckets"] for row in rows] == [2 * 341, 2 * 341, 2 * 342]
    alone = Placement.balance(KeySpace((), (ITEMS,)), 2).rows()
    assert [(row["buckets"], row["nbytes"], row["share"], row["first"]) for row in alone] == [(512, 0, 0.0, "")] * 2
    assert all("buckets" not in row for row in Placement.balance(KeySpace(JOB.parameters), 3).rows())
