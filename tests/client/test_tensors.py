"""Tables of pulled values, whose memory is used again, never while somebody may look at it; views beyond all memory."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.tables import for_each
from zmqps.client.tensors import MEMORY_NBYTES, Tables, describe
from zmqps.errors import ConfigurationError
from zmqps.gpu.handover import Handover

F4, F8, F2 = (np.dtype(name) for name in ("f4", "f8", "f2"))
SHAPES = ((Tables.SMALL_NBYTES // 4, F4), (Tables.SMALL_NBYTES // 8 + 10, F8))


@pytest.fixture(autouse=True)
def without_the_collector() -> Iterator[None]:
    """Memory comes back because the last reference goes, not because a collection happens to run."""
    gc.disable()
    yield
    gc.enable()


def addresses(tables: list[np.ndarray[Any, Any]]) -> list[int]:
    return [table.ctypes.data for table in tables]


def test_the_next_pull_gets_the_memory_of_one_that_was_dropped() -> None:
    pool = Tables()
    tables = pool.take(SHAPES)
    assert [(table.size, table.dtype) for table in tables] == list(SHAPES)
    assert all(table.flags.writeable and table.flags.c_contiguous for table in tables)
    before = addresses(tables)
    del tables
    assert addresses(pool.take(SHAPES)) == before


@for_each(
    "view",
    [
        lambda table: table[3:],
        lambda table: table[5:9].reshape(2, 2),
        lambda table: table.view(np.uint8)[::7],
        lambda table: memoryview(table[2:]),
        lambda table: np.asarray(memoryview(table)),
        lambda table: np.from_dlpack(table),
        lambda table: iter(table),
    ],
)
def test_whatever_looks_at_a_table_keeps_its_memory(view) -> None:
    pool = Tables()
    (table,) = pool.take(SHAPES[:1])
    (before,) = addresses([table])
    kept = view(table)
    del table
    assert addresses(pool.take(SHAPES[:1])) != [before]
    del kept
    assert before in addresses([*pool.take(SHAPES[:1]), *pool.take(SHAPES[:1])])


def test_tables_of_one_pull_come_back_one_by_one() -> None:
    pool = Tables()
    first, second = pool.take(SHAPES)
    before = addresses([first, second])
    del second
    again = addresses(pool.take(SHAPES))
    assert (again[0] == before[0], again[1] == before[1]) == (False, True)
    assert first.size == SHAPES[0][0]


def test_a_loop_that_holds_two_pulls_needs_no_third_memory_and_more_is_forgotten() -> None:
    pool = Tables()
    held = [pool.take(SHAPES) for _ in range(5)]
    assert len({address for tables in held for address in addresses(tables)}) == 10
    held.clear()
    assert [len(free) for free in pool._free.values()] == [Tables.KEPT, Tables.KEPT]
    last = pool.take(SHAPES)
    seen = set()
    for _ in range(10):
        now = pool.take(SHAPES)
        seen.add(addresses(now)[0])
        last = now
    assert len(seen) == 2
    assert last is now


@for_each("size", [0, 5, Tables.SMALL_NBYTES])
def test_tables_have_any_size_and_dtype(size: int) -> None:
    (table,) = Tables().take(((size, F2),))
    table[:] = 1.5
    assert (table.dtype, table.tolist()) == (F2, [1.5] * size)


def test_small_tables_are_left_to_the_allocator() -> None:
    pool = Tables()
    first, second = pool.take(((10, F4),)), pool.take(((10, F4),))
    assert addresses(first) != addresses(second)
    assert not pool._free


def test_tables_come_back_from_another_thread_and_after_their_pool() -> None:
    pool = Tables()
    tables = pool.take(SHAPES)
    before = addresses(tables)
    held = [tables]
    del tables
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    tables = pool.take(SHAPES)
    assert addresses(tables) == before
    del pool
    tables[0][:] = 1
    assert tables[0].sum() == SHAPES[0][0]


@for_each("buffers", [False, True])
def test_a_view_that_is_larger_than_all_memory_is_refused_before_it_is_copied(buffers: bool) -> None:
    value = np.broadcast_to(np.float32(0), (1 << 18, MEMORY_NBYTES >> 18))
    with pytest.raises(ConfigurationError, match=r"the array 'w' of shape \(262144, .* check its shape, or keep rows"):
        describe({"w": value}, Handover(), buffers=buffers)
