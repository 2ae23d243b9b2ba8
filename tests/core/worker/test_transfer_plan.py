"""The plan of a transfer: cargoes that cover the parameters asked for, all of them and nothing else."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.core.machines import job, placement
from tests.core.strategies import placements
from zmqps.core.worker.transfer import Target, in_order, plan


@given(placements(), st.data())
def test_pieces_cover_exactly_the_parameters_asked_for(where, data) -> None:  # type: ignore[no-untyped-def]
    parameters = where.keyspace.parameters
    asked = data.draw(st.none() | st.frozensets(st.integers(0, len(parameters) - 1)))
    seen = [np.zeros(p.size, int) for p in parameters]
    for shard, cargoes in enumerate(plan(where, asked)):
        assert len({cargo.slice.index for cargo in cargoes}) == len(cargoes), "a slice is named once a shard"
        for cargo in cargoes:
            assert cargo.slice is where.slices[shard][cargo.slice.index]
            for parameter, start, stop in cargo.extents:
                seen[parameter][start:stop] += 1
    for i, count in enumerate(seen):
        assert (count == (asked is None or i in asked)).all()


@given(placements(), st.data())
def test_ranges_ascend_end_at_parameters_and_hold_the_extents(where, data) -> None:  # type: ignore[no-untyped-def]
    asked = data.draw(st.frozensets(st.integers(0, len(where.keyspace.parameters) - 1)))
    for cargoes in plan(where, asked):
        for cargo in cargoes:
            size = sum(stop - start for start, stop in cargo.bounds)
            assert size == sum(extent.stop - extent.start for extent in cargo.extents)
            assert cargo.nbytes == size * cargo.dtype.itemsize
            flat = [bound for pair in cargo.bounds for bound in pair]
            assert flat == sorted(set(flat)), "neighbours are joined"
            ends = {0, cargo.slice.size} | {segment.position for segment in cargo.slice.segments}
            assert set(flat) <= ends


def test_parameters_that_are_no_neighbours_in_a_slice_are_ranges_of_their_own() -> None:
    ((cargo,),) = plan(placement(job(*"abcd"), slice_nbytes=4 * 32), frozenset([0, 2]))
    assert cargo.bounds == ((0, 8), (16, 24))
    assert [(extent.parameter, extent.start, extent.stop) for extent in cargo.extents] == [(0, 0, 8), (2, 0, 8)]


@given(placements(), st.data())
def test_targets_are_the_same_elements_in_arrays_as_in_tables(where, data) -> None:  # type: ignore[no-untyped-def]
    keyspace = where.keyspace
    asked = data.draw(st.none() | st.frozensets(st.integers(0, len(keyspace.parameters) - 1)))
    cargoes = plan(where, asked)
    tables = [np.arange(table.size, dtype=table.dtype) for table in keyspace.tables]
    out: list = [None] * len(keyspace.parameters)
    for table, values in zip(keyspace.tables, tables, strict=True):
        for i, (start, stop) in zip(table.parameters, pairwise(table.offsets), strict=True):
            out[i] = values[start:stop]
    by_array, by_table = Target(arrays=out), Target(tables=tables)
    for cargo in (cargo for row in cargoes for cargo in row):
        in_arrays, in_tables = by_array.places(cargo), by_table.places(cargo)
        assert np.array_equal(np.concatenate(in_arrays), np.concatenate(in_tables))
        assert np.shares_memory(in_arrays[0], in_tables[0])


@given(placements(), st.data())
def test_in_order_moves_the_same_and_what_is_named_first_first(where, data) -> None:  # type: ignore[no-untyped-def]
    count = len(where.keyspace.parameters)
    asked = data.draw(st.lists(st.integers(0, count - 1), unique=True))
    cargoes = plan(where, frozenset(asked))
    for before, after in zip(cargoes, in_order(cargoes, asked), strict=True):
        assert sorted(before, key=id) == sorted(after, key=id)
        firsts = [min(asked.index(extent.parameter) for extent in cargo.extents) for cargo in after]
        assert firsts == sorted(firsts)


@given(placements(), st.data())
def test_a_parameter_has_arrived_when_its_last_extent_has_landed(where, data) -> None:  # type: ignore[no-untyped-def]
    parameters = where.keyspace.parameters
    target = Target(missing={i: p.size for i, p in enumerate(parameters)})
    rest = {i: p.size for i, p in enumerate(parameters)}
    for cargo in data.draw(st.permutations([cargo for row in plan(where) for cargo in row])):
        target.landed(cargo, 7)
        for extent in cargo.extents:
            rest[extent.parameter] -= extent.stop - extent.start
        assert sorted(target.arrived) == sorted(i for i in rest if not rest[i] and parameters[i].size)
    assert set(target.versions.values()) <= {7}
