"""Columns that grow by chunks: what is written is read, and nothing moves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.devices import NewDevice, on_device, on_every_device, on_host
from tests.gpu.test_rows import PIECE_NBYTES, memory_of
from tests.simulator.host_device import HostDevice
from zmqps.errors import DeviceMemoryError
from zmqps.gpu import rows
from zmqps.gpu.rows import Chunks

DIM = 3


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chunk have 16 rows of two long columns and a short one."""
    monkeypatch.setattr(rows, "CHUNK_NBYTES", 20 * 4 * (2 * DIM + 1))


@on_every_device
def test_columns_are_read_as_they_were_written_in_whatever_order(new_device: NewDevice) -> None:
    device, rng = new_device(), np.random.default_rng(0)
    some = Chunks(memory_of(device), DIM, 2, 1, 1000)
    assert some.shift == 4
    expected = [np.zeros((400, DIM), np.float32), np.zeros((400, DIM), np.float32), np.zeros(400, np.float32)]
    addresses: list[int] = []
    for most in (10, 17, 100, 400):
        some.have_room(most)
        here = on_host(device, some.addresses)[: -(-most // 16)].tolist()
        assert here[: len(addresses)] == addresses, "a chunk has moved"
        assert len(set(here)) == len(here)
        addresses = here
        assert some.nbytes == len(addresses) * 16 * 4 * (2 * DIM + 1)
        every = np.arange(most)
        for column, numbers in zip(some.columns, expected, strict=True):
            rows = rng.permutation(most).astype(np.int64)
            column[every] = 0.5
            numbers[:most] = 0.5
            fresh = rng.standard_normal(numbers[rows].shape).astype(np.float32)
            column.write(rows[: most // 2], fresh[: most // 2])
            there = on_device(device, fresh.reshape(-1)).reshape(fresh.shape)
            column[rows[most // 2 :]] = there[most // 2 :]
            numbers[rows] = fresh
        for column, numbers in zip(some.columns, expected, strict=True):
            rows = rng.permutation(most).astype(np.int64)
            got = column[rows]
            assert got.shape == numbers[rows].shape
            np.testing.assert_array_equal(on_host(device, got.reshape(-1)), numbers[rows].reshape(-1))


@on_every_device
def test_what_is_uploaded_may_be_larger_than_a_slot_and_one_line_holds_for_all_rows(new_device: NewDevice) -> None:
    device = new_device()
    some = Chunks(memory_of(device), DIM, 1, 0, 1000)
    array = np.arange(3 * PIECE_NBYTES, dtype=np.float32).reshape(-1, DIM)
    np.testing.assert_array_equal(on_host(device, some.uploaded(array).reshape(-1)), array.reshape(-1))
    some.have_room(20)
    some.columns[0][np.arange(20)] = some.uploaded(array[:1])
    np.testing.assert_array_equal(on_host(device, some.columns[0][np.arange(20)].reshape(-1)), np.tile(array[0], 20))


def test_a_device_that_is_full_keeps_the_chunks_there_are() -> None:
    device = HostDevice()
    some = Chunks(memory_of(device), DIM, 1, 0, 1000)
    some.have_room(30)
    device._total_nbytes = device._used_nbytes + some.nbytes // 2
    with pytest.raises(DeviceMemoryError):
        some.have_room(1000)
    taken = some.nbytes
    some.have_room(30)
    assert some.nbytes == taken
