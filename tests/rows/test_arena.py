"""Arrays that grow without moving."""

import numpy as np
import pytest
from psutil import Process

from zmqps.rows import arena


def test_memory_comes_when_it_is_written_to_and_goes_when_it_is_released():
    many = arena.reserve(1 << 30, 16)  # 64 GiB, more than there is
    many[1 << 29] = 5.0
    assert many[1 << 29].tolist() == [5.0] * 16
    assert not many[0].any()
    flat = many.reshape(-1)
    arena.release(flat, 1 << 33, (1 << 33) + 4096)
    assert not many[1 << 29].any()


def test_a_little_takes_little_where_much_is_reserved():
    before = Process().memory_info().rss
    arrays = [arena.reserve(1 << 24, 16) for _ in range(32)]
    for array in arrays:
        array[0] = 1.0
    assert Process().memory_info().rss - before < len(arrays) * arena.HUGE_FROM_NBYTES // 64


def test_parts_of_pages_are_kept():
    array = arena.reserve(4096, dtype=np.uint8)
    array[:] = 1
    arena.release(array, 1, 4095)
    assert array.all()


def test_there_may_be_no_rows():
    assert arena.reserve(0, 4).shape == (0, 4)
    assert arena.reserve(4, 0).shape == (4, 0)


def test_more_than_there_are_addresses_is_refused():
    with pytest.raises(MemoryError, match="address space"):
        arena.reserve(1 << 60, 64)
