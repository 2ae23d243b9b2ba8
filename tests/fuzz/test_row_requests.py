"""Ids and gradients as scripts may hold them, whatever dtypes, strides and sizes: sums by id, rows by position."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps import optim
from zmqps.client.requests import Requests
from zmqps.client.sparse.rows import Brought, RowRequests, Wanted
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.worker.operations import Attached
from zmqps.core.worker.rows import RowCargo, RowSource, RowTarget
from zmqps.gpu.handover import Handover
from zmqps.rows.hashing import buckets_of
from zmqps.rows.initial import Initial

Array = np.ndarray[Any, np.dtype[Any]]

SGD = optim.sgd(1.0).to_wire()
INTEGERS = st.sampled_from(["int8", "int16", ">i4", "int64", ">i8", "uint8", "uint16", "uint32", "uint64"])
FLOATS = st.sampled_from(["float16", "float32", "float64", ">f4", ">f8"])
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


def requests(dim: int, shards: int) -> RowRequests:
    table = TableSpec(name="items", dim=dim, optimizer=SGD, initial=Initial("zeros").to_wire())
    job = JobSpec(parameters=(), optimizer=SGD, mode="async", tables=(table,))
    return Requests(Attached(job, Placement.balance(KeySpace.of(job), shards)), Handover()).table("items")


@st.composite
def laid(draw: st.DrawFn, array: Array) -> Array:
    """Return an array of the same numbers that lies otherwise: in any order of axes, with gaps, backwards."""
    order = draw(st.permutations(range(array.ndim)))
    steps = [draw(st.sampled_from([1, 2, -1, -3])) for _ in range(array.ndim)]
    shape = [size * abs(step) for size, step in zip(array.shape, steps, strict=True)]
    room = np.zeros([shape[axis] for axis in order], array.dtype).transpose(np.argsort(order))
    found: Array = room[(*[slice(None, None, step) for step in steps], ...)]
    found[...] = array
    return found


def cargoes(transfer: Any) -> list[RowCargo]:
    return [cargo for of_shard in transfer.cargoes for cargo in of_shard]


@given(SHAPES, INTEGERS, FLOATS, st.sampled_from([1, 2, 17, 4096]), st.integers(1, 4), st.data())
@settings(max_examples=60)
def test_any_arrays_are_summed_by_id_and_read_by_position(
    shape: tuple[int, ...], ids_dtype: str, dtype: str, dim: int, shards: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    ends = np.iinfo(np.dtype(ids_dtype).newbyteorder("="))
    few = np.array([0, 1, ends.min, ends.max, ends.max // 3], ids_dtype)
    plain = np.asarray(few[rng.integers(0, few.size, shape)])
    numbers = rng.integers(-8, 9, (*shape, dim)).astype(dtype)
    ids, grads = data.draw(laid(plain)), data.draw(laid(numbers))
    made = requests(dim, shards)
    push = made.exchange(Brought(ids, grads))[0].push
    assert push is not None
    source = push.source
    assert isinstance(source, RowSource)
    held: dict[int, Array] = {}
    for shard, of_shard in enumerate(push.cargoes):
        for cargo in of_shard:
            assert isinstance(cargo, RowCargo)
            buckets = buckets_of(cargo.pushed, made.spec.bucket_seed)
            assert ((cargo.slice.start <= buckets) & (buckets < cargo.slice.stop)).all()
            assert cargo.slice.shard == shard
            rows = np.concatenate([np.empty(0, np.float32), *source.pieces(cargo)]).reshape(-1, dim)
            assert not held.keys() & set(cargo.pushed.tolist()), "an id travels once"
            held |= dict(zip(cargo.pushed.tolist(), rows, strict=True))
    as_signed = plain.astype(np.dtype(ids_dtype).newbyteorder("=")).astype(np.int64).reshape(-1)
    expected: dict[int, Array] = {}
    for number, row in zip(as_signed.tolist(), numbers.reshape(-1, dim).astype(np.float32), strict=True):
        expected[number] = expected.get(number, np.zeros(dim, np.float32)) + row
    assert held.keys() == expected.keys()
    assert all(np.array_equal(held[number], expected[number]) for number in expected)

    exchange, result = made.exchange(None, Wanted(ids))
    pull = exchange.pull
    assert pull is not None
    assert result is not None
    target = pull.target
    assert isinstance(target, RowTarget)
    for cargo in cargoes(pull):
        answer = [held[number] for number in cargo.wanted.tolist()]
        target.land([cargo], answer, [1])
    got = result(None)
    assert got.shape == (*shape, dim)
    flat = [expected[number] for number in as_signed.tolist()]
    assert np.array_equal(got.reshape(-1, dim), np.array(flat, np.float32).reshape(-1, dim))
