"""The flat key space: every element on exactly one shard, in balance, whatever the tensors are."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.models import RESNET50
from tests.core.strategies import PLAIN, keyspaces, placements
from tests.tables import for_each
from zmqps.core.job.keyspace import CUT_ALIGNMENT_NBYTES, CUT_SHARE, MAX_SLICES, SPLIT_NBYTES, KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import gather, scatter
from zmqps.errors import LimitError, ProtocolError

RESNET = KeySpace([Parameter(name, shape, "float32") for name, shape in RESNET50.items()])


@given(placements())
def test_every_element_is_in_exactly_one_slice_of_one_shard(placement) -> None:  # type: ignore[no-untyped-def]
    found = [slice_ for slices in placement.slices for slice_ in slices]
    for number, table in enumerate(placement.keyspace.tables):
        bounds = sorted((p.start, p.stop) for p in found if p.table == number)
        assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds)][: len(bounds)]
        assert (bounds[-1][1] if bounds else 0) == table.size
    assert sum(placement.nbytes(shard) for shard in range(placement.num_shards)) == placement.keyspace.nbytes


@given(placements())
def test_segments_cover_every_element_of_every_parameter_once(placement) -> None:  # type: ignore[no-untyped-def]
    seen = [np.zeros(p.size, int) for p in placement.keyspace.parameters]
    for shard, slices in enumerate(placement.slices):
        for index, slice_ in enumerate(slices):
            assert (slice_.shard, slice_.index) == (shard, index)
            assert 0 < slice_.size * placement.keyspace.tables[slice_.table].dtype.itemsize <= placement.slice_nbytes
            position = 0
            for segment in slice_.segments:
                assert segment.position == position
                assert segment.size > 0
                position += segment.size
                seen[segment.parameter][segment.start : segment.start + segment.size] += 1
            assert position == slice_.size
    assert all((count == 1).all() for count in seen)


@given(placements())
def test_slicing_then_gathering_is_the_identity(placement) -> None:  # type: ignore[no-untyped-def]
    keyspace = placement.keyspace
    dtype_of = {i: table.dtype for table in keyspace.tables for i in table.parameters}
    values = [np.arange(p.size, dtype=dtype_of[i]) + i for i, p in enumerate(keyspace.parameters)]
    landed = [np.zeros_like(value) for value in values]
    for slices in placement.slices:
        for slice_ in slices:
            spans = [(s.parameter, s.start, s.start + s.size) for s in slice_.segments]
            payload = gather(values[parameter][start:stop] for parameter, start, stop in spans)
            targets = [landed[parameter][start:stop] for parameter, start, stop in spans]
            for run, offset, array in scatter(payload, [(target.size, target.dtype) for target in targets]):
                targets[run][offset : offset + array.size] = array
    assert all(np.array_equal(a, b) for a, b in zip(values, landed, strict=True))


@given(placements())
def test_small_parameters_are_not_split_and_large_ones_between_rows_or_aligned(placement) -> None:  # type: ignore[no-untyped-def]
    for table, cuts in zip(placement.keyspace.tables, placement.cuts, strict=True):
        for cut in set(cuts) - set(table.offsets):
            i = next(i for i, stop in enumerate(table.offsets[1:]) if cut < stop)
            assert (table.offsets[i + 1] - table.offsets[i]) * table.dtype.itemsize >= SPLIT_NBYTES
            shape = placement.keyspace.parameters[table.parameters[i]].shape
            row = math.prod(shape[1:])
            fits = row * table.dtype.itemsize <= max(SPLIT_NBYTES, CUT_SHARE * table.nbytes / placement.num_shards)
            if row > 1 and fits:
                assert (cut - table.offsets[i]) % row == 0
            elif row == 1:
                assert cut * table.dtype.itemsize % CUT_ALIGNMENT_NBYTES == 0


def test_large_rows_are_cut_between_those_of_the_next_dimension() -> None:
    keyspace = KeySpace([Parameter("p", (3, 1000, 100), "float32")])
    (cuts,) = Placement.balance(keyspace, 2).cuts
    assert cuts == (
        0,
        150_000,
        300_000,
    )  # in the middle of the second of three rows of 400 kB, between rows of 400 bytes
    assert cuts[1] % 100 == 0


@given(placements())
def test_a_placement_survives_the_wire(placement) -> None:  # type: ignore[no-untyped-def]
    again = Placement.from_wire(KeySpace(placement.keyspace.parameters), placement.to_wire())
    assert (again.cuts, again.slice_nbytes, again.slices) == (placement.cuts, placement.slice_nbytes, placement.slices)


@given(keyspaces(), st.integers(1, 9))
def test_placing_is_deterministic(keyspace, num_shards) -> None:  # type: ignore[no-untyped-def]
    again = KeySpace(list(keyspace.parameters))
    assert Placement.balance(keyspace, num_shards).cuts == Placement.balance(again, num_shards).cuts


@given(keyspaces(), st.integers(1, 9))
def test_no_shard_is_further_from_its_share_than_two_small_parameters_a_table(keyspace, num_shards) -> None:  # type: ignore[no-untyped-def]
    placement = Placement.balance(keyspace, num_shards)
    slack = len(keyspace.tables) * (SPLIT_NBYTES + 2 * CUT_ALIGNMENT_NBYTES)
    for shard in range(num_shards):
        share = keyspace.nbytes / num_shards
        assert abs(placement.nbytes(shard) - share) <= max(slack, CUT_SHARE * share)


def test_resnet50_has_161_tensors() -> None:
    assert len(RESNET50) == 161
    assert sum(math.prod(shape) for shape in RESNET50.values()) == 25_557_032


@for_each("num_shards", range(1, 9))
def test_resnet50_is_balanced_within_one_percent(num_shards) -> None:  # type: ignore[no-untyped-def]
    placement = Placement.balance(RESNET, num_shards)
    sizes = [placement.nbytes(shard) for shard in range(num_shards)]
    share = RESNET.nbytes / num_shards
    assert max(abs(size - share) for size in sizes) <= 0.01 * share


def test_a_large_tensor_is_split_where_it_must_be() -> None:
    keyspace = KeySpace([Parameter("small", (10,), "float32"), Parameter("large", (1_000_000,), "float32")])
    placement = Placement.balance(keyspace, 4)
    for slices in placement.slices:
        assert 1 in {segment.parameter for slice_ in slices for segment in slice_.segments}


def test_a_cut_is_not_aligned_into_the_small_parameter_before_a_large_one() -> None:
    small = SPLIT_NBYTES // 4 - 10
    names_and_sizes = {"one": small, "two": small, "large": 2 * small}
    keyspace = KeySpace([Parameter(name, (size,), "float32") for name, size in names_and_sizes.items()])
    assert 2 * small * 4 % CUT_ALIGNMENT_NBYTES != 0
    assert Placement.balance(keyspace, 2).cuts == ((0, 2 * small, 4 * small),)


def test_dtypes_have_tables_of_their_own_and_halves_share_one_with_float32() -> None:
    dtypes = ["float32", "float64", "float16", "bfloat16", "float64"]
    keyspace = KeySpace([Parameter(f"p{i}", (i + 1,), dtype) for i, dtype in enumerate(dtypes)])
    assert [(t.dtype.str, t.parameters, t.offsets) for t in keyspace.tables] == [
        ("<f4", (0, 2, 3), (0, 1, 4, 8)),
        ("<f8", (1, 4), (0, 2, 7)),
    ]
    assert keyspace.nbytes == 8 * 4 + 7 * 8


def test_a_scalar_is_one_element() -> None:
    assert KeySpace([Parameter("s", (), "float32")]).tables[0].size == 1


def test_there_may_be_more_shards_than_elements() -> None:
    placement = Placement.balance(KeySpace([Parameter("p", (2,), "float32")]), 5)
    assert sum(len(slices) for slices in placement.slices) == 1
    assert [row["share"] for row in placement.rows()].count(1.0) == 1


def test_no_shards_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        Placement.balance(RESNET, 0)


def test_rows_tell_where_everything_is() -> None:
    rows = Placement.balance(RESNET, 2).rows()
    assert [row["shard"] for row in rows] == [0, 1]
    assert sum(row["nbytes"] for row in rows) == RESNET.nbytes
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert rows[0]["first"] == "conv1.weight"
    assert rows[1]["last"] == "fc.bias"
    assert rows[0]["last"] == rows[1]["first"], "the tensor in the middle is on both"
    assert sum(row["parameters"] for row in rows) == 162


@given(placements())
def test_what_is_told_of_shards_is_what_their_slices_are(placement) -> None:  # type: ignore[no-untyped-def]
    sizes = {number: table.dtype.itemsize for number, table in enumerate(placement.keyspace.tables)}
    for row, slices in zip(placement.rows(), placement.slices, strict=True):
        names = [placement.keyspace.parameters[s.parameter].name for slice_ in slices for s in slice_.segments]
        told = {name: row[name] for name in ("slices", "parameters", "first", "last")}
        ends = {"first": names[0], "last": names[-1]} if names else {"first": "", "last": ""}
        assert told == {"slices": len(slices), "parameters": len(set(names)), **ends}
        assert placement.num_slices(row["shard"]) == len(slices)
        largest = max((slice_.size * sizes[slice_.table] for slice_ in slices), default=0)
        assert placement.largest_slice(row["shard"]) == largest


def test_a_placement_of_100_billion_elements_is_told_without_its_slices() -> None:
    layers = [Parameter(f"{i}", (1 << 16, 1 << 14), "float32") for i in range(94)]
    placement = Placement.balance(KeySpace(layers), 64)
    rows = Placement.from_wire(placement.keyspace, placement.to_wire()).rows()
    assert sum(row["slices"] for row in rows) == sum(map(placement.num_slices, range(64))) >= 94 * (1 << 10)
    assert [placement.largest_slice(0), placement.weight(0)] == [4 << 20, placement.nbytes(0)]
    assert "slices" not in vars(placement), "100,000 of them, which nobody has asked for"


def test_more_slices_than_anybody_makes_are_refused() -> None:
    keyspace = KeySpace([Parameter("w", (MAX_SLICES + 1,), "float32")])
    wire = Placement.balance(keyspace, 1).to_wire()
    with pytest.raises(LimitError, match="number of slices of a job of 16777217"):
        Placement.from_wire(keyspace, {**wire, "slice_nbytes": 4})
    with pytest.raises(LimitError, match="number of slices"):
        Placement.balance(keyspace, 1, 4)


def test_as_many_slices_as_are_allowed_are_made() -> None:
    keyspace = KeySpace([Parameter("w", (MAX_SLICES,), "float32")])
    assert Placement.balance(keyspace, 1, 4).num_dense_slices(0) == MAX_SLICES


# --- junk ---------------------------------------------------------------------------------------

SMALL = KeySpace([Parameter("a", (5,), "float32"), Parameter("b", (3,), "float64")])
GOOD = {"cuts": [[0, 2, 5], [0, 0, 3]], "slice_nbytes": 4096}


@for_each(
    "change",
    [
        {"cuts": None},
        {"cuts": []},
        {"cuts": [[0, 2, 5]]},
        {"cuts": [[0, 2, 5], [0, 3]]},
        {"cuts": [[0, 2, 5], 3]},
        {"cuts": [[0], [0]]},
        {"cuts": [[0, 2, 6], [0, 0, 3]]},
        {"cuts": [[1, 2, 5], [0, 0, 3]]},
        {"cuts": [[0, 6, 5], [0, 0, 3]]},
        {"cuts": [[0, -1, 5], [0, 0, 3]]},
        {"cuts": [[0, 2.0, 5], [0, 0, 3]]},
        {"cuts": [[0, True, 5], [0, 0, 3]]},
        {"slice_nbytes": None},
        {"slice_nbytes": 0},
        {"slice_nbytes": (32 << 20) + 1},
        {"slice_nbytes": "4096"},
    ],
)
def test_cuts_that_do_not_fit_are_a_protocol_error(change) -> None:  # type: ignore[no-untyped-def]
    assert Placement.from_wire(SMALL, GOOD).to_wire() == GOOD
    with pytest.raises(ProtocolError):
        Placement.from_wire(SMALL, {**GOOD, **change})


def test_a_slice_has_an_element_at_least_however_small_it_may_be() -> None:
    assert [piece.size for piece in Placement.balance(SMALL, 1, 1).slices[0]] == [1] * 8


@for_each("slice_nbytes", [1, 32 << 20])
def test_the_smallest_and_the_largest_slice_are_taken(slice_nbytes: int) -> None:
    assert Placement.from_wire(SMALL, {**GOOD, "slice_nbytes": slice_nbytes}).slice_nbytes == slice_nbytes


@given(st.dictionaries(st.sampled_from(["cuts", "slice_nbytes"]), PLAIN | st.lists(st.lists(st.integers(-1, 6)))))
def test_any_map_is_a_placement_or_a_protocol_error(wire) -> None:  # type: ignore[no-untyped-def]
    with contextlib.suppress(ProtocolError):
        Placement.from_wire(SMALL, {**GOOD, **wire}).rows()
