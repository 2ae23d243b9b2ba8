"""A snapshot has the shard as it was, whatever is updated meanwhile, and costs no more than that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.server.dense.test_part_memory import ALL, SLICES, gradient, new_shard
from tests.core.server.scarcity import Scarcity, held_nbytes
from tests.tables import for_each
from zmqps.core.server.dense.buffers import ROUNDS
from zmqps.core.server.dense.slices import MAX_DONE_READERS
from zmqps.core.server.dense.snapshot import Snapshot, SnapshotSlice
from zmqps.core.server.shard import Shard

WORKER = b"w" * 16
MODES = ["async", "sync", "retained"]


def complete(snapshot: Snapshot) -> bool:
    """Whether every slice is done."""
    return not snapshot._rows and snapshot.failed is None


class Saved:
    """A shard, what it was when its snapshot was taken, and what the snapshot has given so far."""

    def __init__(self, mode: str, where: str) -> None:
        self.scarcity = Scarcity()
        self.shard = new_shard(mode, where, self.scarcity)
        self.mode = mode
        self.attempt = 0
        for seed in range(2):  # so that nothing is as it begins
            self.update(list(ALL), seed)
        self.snapshot: Snapshot | None = None
        self.expected: list[Any] = []
        self.in_hand: dict[int, SnapshotSlice] = {}
        self.checked: set[int] = set()

    def update(self, indices: list[int], seed: int) -> None:
        parts, payload = [(i, 0, ()) for i in indices], [gradient(i, seed) for i in indices]
        if self.mode == "async":
            self.shard.dense.push(parts, payload, "w")
            return
        self.attempt += 1
        step = self.shard.version
        self.shard.dense.collect(parts, payload, (WORKER, self.attempt), step, 1, "w")
        self.shard.commit(step, ((WORKER, (self.attempt,)),))

    def begin(self) -> Snapshot:
        self.expected = [contents(self.shard, i) for i in ALL]
        self.in_hand, self.checked = {}, set()
        self.snapshot = Snapshot(self.shard.slices, self.shard.memory)
        return self.snapshot

    def take(self) -> bool:
        assert self.snapshot is not None
        piece = self.snapshot.next()
        if piece is None:
            return False
        self.in_hand[piece.number] = piece
        return True

    def finish(self, number: int) -> None:
        """Look at a piece as late as it may be looked at."""
        assert self.snapshot is not None
        piece = self.in_hand.pop(number)
        got = piece.version, piece.steps.tolist(), piece.value.tobytes(), [slot.tobytes() for slot in piece.slots]
        assert got == self.expected[number]
        self.checked.add(number)
        self.snapshot.done(number)

    def drain(self) -> None:
        assert self.snapshot is not None
        while self.take() or self.in_hand:
            for number in list(self.in_hand):
                self.finish(number)
        assert self.checked == set(ALL)
        assert complete(self.snapshot)
        assert not self.snapshot.nbytes


class Read:
    """A reader that is through."""

    done = True


def contents(shard: Shard, index: int) -> Any:
    state, copied = shard.slices[index], shard.memory.copied
    slots = [copied(slot).tobytes() for slot in state.slots]
    return state.version, state.steps.tolist(), copied(state.value).tobytes(), slots


def kept_nbytes() -> int:
    """Return what every slice takes twice: a value and a velocity."""
    return sum(2 * gradient(i, 0).nbytes for i in ALL)


STEP = st.one_of(
    st.tuples(st.just("update"), st.lists(st.sampled_from(ALL), min_size=1, unique=True)),
    st.tuples(st.sampled_from(["take", "finish", "begin"]), st.just([])),
)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("mode", MODES)
@given(steps=st.lists(STEP, max_size=30))
def test_whatever_happens_meanwhile_its_pieces_are_the_shard_as_it_was(mode: str, where: str, steps: Any) -> None:
    saved = Saved(mode, where)
    snapshot = saved.begin()
    for number, (what, indices) in enumerate(steps):
        if what == "update":
            saved.update(sorted(indices), number)
        elif what == "take":
            saved.take()
        elif what == "finish" and saved.in_hand:
            saved.finish(next(iter(saved.in_hand)))
        elif what == "begin":  # as after one that was given up
            snapshot.release()
            snapshot = saved.begin()
        snapshot.validate()
        saved.shard.validate()
        assert snapshot.nbytes <= kept_nbytes()
    saved.drain()


@for_each("mode", MODES)
def test_nothing_is_copied_as_long_as_nothing_is_updated(mode: str) -> None:
    saved = Saved(mode, "host")
    saved.scarcity.fail_after(0)  # there is no memory at all
    snapshot = Snapshot(saved.shard.slices, saved.shard.memory)
    assert snapshot.nbytes == 0
    snapshot.release()


def test_slots_are_copied_once_however_often_their_slice_is_updated() -> None:
    saved = Saved("async", "host")
    snapshot = saved.begin()
    saved.update([0], 5)
    once = snapshot.nbytes
    assert once == 2 * gradient(0, 0).nbytes
    for seed in range(20):
        saved.update([0], seed)
    assert snapshot.nbytes == once
    saved.drain()


@for_each("where", ["host", "device"])
def test_an_update_without_memory_for_the_copy_is_done_and_the_snapshot_is_given_up(where: str) -> None:
    expected = Saved("async", where)
    expected.update(list(ALL), 7)
    failures = 0
    for requests in range(40):
        saved = Saved("async", where)
        snapshot = saved.begin()
        saved.scarcity.fail_after(requests)
        try:
            saved.update(list(ALL), 7)
        except MemoryError:  # of the update's own: it has changed nothing
            saved.scarcity.fail_after(None)
            assert [contents(saved.shard, i) for i in ALL] == saved.expected
            saved.update(list(ALL), 7)
        saved.scarcity.fail_after(None)
        assert [contents(saved.shard, i) for i in ALL] == [contents(expected.shard, i) for i in ALL]
        snapshot.validate()
        if snapshot.failed is not None:
            failures += 1
            assert snapshot.next() is None
            assert not complete(snapshot)
            assert not snapshot.nbytes
        else:
            saved.drain()
    assert failures or where == "device"


def test_a_slice_whose_turn_finds_no_memory_gives_the_snapshot_up() -> None:
    saved = Saved("async", "host")
    snapshot = saved.begin()
    saved.scarcity.fail_after(1)  # enough for the first slice
    assert saved.take()
    with pytest.raises(MemoryError):
        snapshot.next()
    assert snapshot.failed is not None
    saved.scarcity.fail_after(None)
    saved.update(list(ALL), 3)
    assert all(state.snapshot is None for state in saved.shard.slices)
    snapshot.validate()


@for_each("how", ["drained", "released"])
@for_each("mode", ["async", "sync"])
def test_what_was_kept_meanwhile_is_given_back(mode: str, how: str) -> None:
    saved = Saved(mode, "host")
    snapshot = saved.begin()
    saved.update(list(ALL), 1)
    assert saved.shard.counters["spare_nbytes"] == held_nbytes(saved.shard) > 0
    if how == "drained":
        saved.drain()
    else:
        snapshot.release()
    for seed in range(3 * ROUNDS):
        for state in saved.shard.slices:
            state.readers.append(Read())  # as of a pull that has left
        saved.update(list(ALL), seed)
    assert saved.shard.counters["spare_nbytes"] == held_nbytes(saved.shard) == 0


def test_a_piece_that_is_being_written_stays_as_it_is_although_others_are_done() -> None:
    saved = Saved("async", "host")
    saved.begin()
    assert saved.take()
    assert saved.take()
    first, second = list(saved.in_hand)
    saved.finish(first)
    for seed in range(5):
        saved.update(list(ALL), seed)
    saved.finish(second)


def test_the_update_after_a_failed_one_copies_nothing_that_was_written_to() -> None:
    """A kernel that fails half way is undone; what the snapshot has copied was copied before."""
    for requests in range(60):
        saved = Saved("async", "host")
        saved.begin()
        saved.scarcity.fail_after(requests)
        try:
            saved.update([0, 1], 9)
        except MemoryError:
            pass
        saved.scarcity.fail_after(None)
        saved.update([0, 1], 10)
        assert saved.snapshot is not None
        if saved.snapshot.failed is None:
            saved.drain()


@for_each("mode", MODES)
def test_what_snapshots_have_read_is_forgotten_where_nobody_pushes_or_pulls(mode: str) -> None:
    saved = Saved(mode, "arena")
    for _ in range(3 * MAX_DONE_READERS):
        saved.begin()
        while saved.take():
            for number in list(saved.in_hand):
                saved.snapshot.done(number)  # type: ignore[union-attr]
            saved.in_hand.clear()
    assert max(len(state.readers) for state in saved.shard.slices) <= MAX_DONE_READERS


def test_a_shard_without_slices_is_complete_at_once() -> None:
    snapshot = Snapshot([], new_shard("async", "host", Scarcity()).memory)
    assert snapshot.next() is None
    assert complete(snapshot)


def test_done_is_heard_once() -> None:
    saved = Saved("async", "host")
    snapshot = saved.begin()
    assert saved.take()
    number = next(iter(saved.in_hand))
    saved.finish(number)
    snapshot.done(number)
    snapshot.done(999)
    assert len(SLICES) == len(ALL)
    saved.drain()
    assert np.array_equal(sorted(saved.checked), ALL)
