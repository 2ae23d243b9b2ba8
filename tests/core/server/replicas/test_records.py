"""What a leader tells its backups: what stays as it is, and ledgers there and back."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.protocol.arrays import borrow
from zmqps.core.server.ledger import Ledger
from zmqps.core.server.replicas.records import LEDGER_PUSHES, ledgers_of, owned, remember
from zmqps.errors import ProtocolError

WHO = b"w" * 16
RESULTS = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(0, 99)), max_size=3)


def test_a_frame_that_came_is_not_copied() -> None:
    frame = memoryview(bytes(64))
    assert owned([frame])[0] is frame


def test_what_lies_in_arrays_of_the_worker_is_copied() -> None:
    memory = np.zeros(64, np.uint8)
    [copy] = owned([borrow(memory, 0, 8, None).cast("B")])
    [other] = owned([memory[8:16]])
    memory[:] = 1
    assert bytes(copy) == bytes(other) == bytes(8)


@given(st.dictionaries(st.integers(1, 4000), RESULTS, max_size=600 // 20), st.integers(0, 5))
def test_a_ledger_is_the_same_there(pushes: dict[int, list[tuple[int, int]]], floor: int) -> None:
    ledger, other = Ledger(), Ledger()
    ledger.floor = floor
    for seq, parts in pushes.items():
        if seq > floor:
            ledger.look_up(seq)
            ledger.record(seq, (tuple(v for v, _ in parts), tuple(s for _, s in parts)))
    ledger.look_up(4090)  # one that was refused: nothing is remembered of it
    for record in ledgers_of({WHO: ledger}):
        assert record.message.origin == WHO
        remember(other, record.message.payload)
    assert other.floor == ledger.floor
    assert other.results == {seq: result for seq, result in ledger.results.items() if result is not None}


def test_a_long_ledger_goes_in_parts() -> None:
    ledger = Ledger()
    for seq in range(1, 2 * LEDGER_PUSHES + 2):
        ledger.look_up(seq)
        ledger.record(seq, ((seq,), (0,)))
    records = list(ledgers_of({WHO: ledger}))
    assert len(records) == 3
    other = Ledger()
    for record in records:
        remember(other, record.message.payload)
    assert other.results == ledger.results
    assert all(a < b for a, b in pairwise(other.results))


@for_each("numbers", [[], [0, 1], [0, 1, 2, 3, 4], [0, 1, 1 << 60]])
def test_a_part_that_is_none_is_refused(numbers: list[int]) -> None:
    with pytest.raises(ProtocolError):
        remember(Ledger(), [np.array(numbers, "<u8")])


def test_bytes_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ProtocolError):
        remember(Ledger(), [b"1234567"])
