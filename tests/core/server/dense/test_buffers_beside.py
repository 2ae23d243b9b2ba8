"""What a shard takes beside its values stays within what was admitted, or granted since."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.machines import job, placement
from tests.core.server.dense.test_buffers import Lent, Reading, pull, push
from tests.simulator.jobs.training import ReferenceRules
from tests.tables import for_each
from zmqps.core.protocol.message import MAX_ALL_BACKLOGS_NBYTES, MAX_BACKLOG_NBYTES
from zmqps.core.server.dense import buffers as beside_module
from zmqps.core.server.dense.buffers import GRANT_NBYTES, Beside, beside_nbytes
from zmqps.core.server.dense.snapshot import Snapshot
from zmqps.core.server.shard import Shard
from zmqps.optim import sgd

SLICE = 32  # bytes of each of the two slices


class Host:
    """Has some memory to grant."""

    def __init__(self, free: int = 0) -> None:
        self.free = free
        self.asked: list[int] = []

    def more(self, nbytes: int) -> bool:
        self.asked.append(nbytes)
        granted = nbytes <= self.free
        self.free -= nbytes * granted
        return granted


@pytest.fixture(autouse=True)
def _no_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_module, "LEAST_NBYTES", 0)


def new_shard(admitted: int, host: Host) -> Shard:
    spec = job("w", size=16)
    shard = Shard(placement(spec), 0, ReferenceRules(sgd(1.0)), beside=Beside(admitted, host.more))
    shard.dense.load([(0, 0, ()), (1, 0, ())], [np.zeros(16, np.float32)])
    return shard


def is_lent(shard: Shard, values: Any, number: int = 0) -> bool:
    return np.shares_memory(values, shard.slices[number].value)


@for_each(
    "values, workers, expected",
    [
        (1_000, 3, 1_000),
        (8 << 30, 1, MAX_BACKLOG_NBYTES),
        (8 << 30, 3, 3 * MAX_BACKLOG_NBYTES),
        (8 << 30, 1_000, MAX_ALL_BACKLOGS_NBYTES),
    ],
)
def test_beside_the_values_room_is_admitted_for_what_waits_to_be_sent(values: int, workers: int, expected: int) -> None:
    assert beside_nbytes(values, workers) == expected


def test_where_others_read_as_much_as_was_admitted_the_next_one_gets_a_copy() -> None:
    host = Host()
    shard = new_shard(SLICE, host)
    first = pull(shard, Lent(), 0)
    second = pull(shard, Lent(), 1)
    assert is_lent(shard, first, 0)
    assert not is_lent(shard, second, 1)
    assert second.tolist() == [0.0] * 8
    assert host.asked == [GRANT_NBYTES]
    assert shard.counters["copied_nbytes"] == SLICE


def test_an_update_of_what_was_copied_goes_where_it_is() -> None:
    shard = new_shard(SLICE, Host())
    pull(shard, Lent(), 0)
    copied = pull(shard, Lent(), 1)
    for _ in range(3):
        push(shard, 0)
        push(shard, 1)
    assert copied.tolist() == [0.0] * 8
    assert shard.slices[1].value[0] == 3
    assert shard.counters["spare_nbytes"] == SLICE


def test_what_is_not_read_any_more_makes_room_for_the_next_reader() -> None:
    shard = new_shard(SLICE, Host())
    for number in (0, 1, 0, 1):
        reading = Reading()
        assert is_lent(shard, pull(shard, reading, number), number)
        reading.done = True
    assert shard.counters["copied_nbytes"] == 0


def test_readers_of_old_values_count_too() -> None:
    shard, reading = new_shard(SLICE, Host()), Reading()
    pull(shard, reading)
    push(shard)
    assert not is_lent(shard, pull(shard, Reading()))
    reading.done = True
    assert is_lent(shard, pull(shard, Reading()))


@for_each("seed", range(20))
def test_whatever_is_read_no_more_is_taken_than_was_admitted_and_nothing_that_is_read_changes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shard, reads = new_shard(2 * SLICE, Host()), list[tuple[Any, Any, float]]()
    for _ in range(200):
        number = int(rng.integers(2))
        match rng.integers(3):
            case 0:
                reader = Lent() if rng.integers(2) else Reading()
                values = pull(shard, reader, number)
                reads.append((reader, values, float(values[0])))
            case 1:
                push(shard, number)
            case _ if reads:
                reader, _, _ = reads.pop(int(rng.integers(len(reads))))
                if isinstance(reader, Lent):
                    reader.over = True
                else:
                    reader.done = True
        assert shard.counters["spare_nbytes"] <= 2 * SLICE
        assert all((values == seen).all() for _, values, seen in reads)


def test_where_there_is_memory_more_is_asked_for_and_counts_as_reserved() -> None:
    host = Host(GRANT_NBYTES)
    shard = new_shard(SLICE, host)
    for number in (0, 1):
        assert is_lent(shard, pull(shard, Lent(), number), number)
    assert host.asked == [GRANT_NBYTES]
    assert shard.dense.beside.granted_nbytes == GRANT_NBYTES


def test_without_the_memory_for_a_second_arena_one_slice_goes_elsewhere() -> None:
    host = Host()
    shard, lent = new_shard(SLICE, host), Lent()
    values = pull(shard, lent)
    push(shard)
    push(shard)
    assert host.asked == [GRANT_NBYTES]  # once, not for each update
    assert values[0] == 0
    assert (shard.counters["spare_nbytes"], shard.counters["spare_buffers"]) == (SLICE, 1)


def test_a_snapshot_that_there_is_no_memory_for_is_given_up_and_training_goes_on() -> None:
    shard = new_shard(SLICE, Host())
    snapshot = Snapshot(shard.slices, shard.memory)
    push(shard, 0)
    assert snapshot.failed is None
    push(shard, 1)
    assert isinstance(snapshot.failed, MemoryError)
    assert snapshot.next() is None
    assert [float(state.value[0]) for state in shard.slices] == [1, 1]
    assert shard.counters["spare_nbytes"] == SLICE


def test_while_there_is_memory_a_snapshot_is_kept() -> None:
    shard = new_shard(SLICE, Host(GRANT_NBYTES))
    snapshot = Snapshot(shard.slices, shard.memory)
    for number in (0, 1):
        push(shard, number)
    assert snapshot.failed is None
    assert [float(piece.value[0]) for piece in iter(snapshot.next, None)] == [0, 0]


def test_who_was_refused_counts_again_only_after_some_more_was_copied() -> None:
    beside, counts = Beside(800, Host().more), list[int]()

    def count() -> int:
        counts.append(1)
        return 800

    def may_lend(nbytes: int) -> bool:
        beside.read_nbytes += nbytes
        return beside.read_nbytes <= beside.lendable_nbytes or beside.may_lend(nbytes, count)

    assert may_lend(800)
    assert [may_lend(50) for _ in range(7)] == [False] * 7
    assert len(counts) == 3
