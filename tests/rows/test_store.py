"""Rows of a table, found by their ids."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zmqps.rows import loops
from zmqps.rows import store as store_module
from zmqps.rows.hashing import mixed
from zmqps.rows.initial import Initial, filler
from zmqps.rows.store import RowStore

FILLER = filler(Initial("normal", 0.0, 1.0, 3), "items")


def make(dim: int = 2, reserve_rows: int = 1 << 16, **options) -> RowStore:
    return RowStore(dim, FILLER, slots=(0.5,), row_slots=(0.1,), counts=True, reserve_rows=reserve_rows, **options)


def initial(ids: np.ndarray, dim: int = 2) -> np.ndarray:
    out = np.empty((ids.size, dim), np.float32)
    FILLER.fill(ids, out)
    return out


def unmixed(x: int, seed: int) -> int:
    """Return the id that has a hash."""
    x ^= x >> 33
    x = x * pow(0xC4CEB9FE1A85EC53, -1, 1 << 64) % (1 << 64)
    x ^= x >> 33
    x = x * pow(0xFF51AFD7ED558CCD, -1, 1 << 64) % (1 << 64)
    x = (x ^ x >> 33) ^ seed
    return x - (1 << 64) * (x >> 63)


ids_of = st.lists(st.integers(-40, 40) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=30, unique=True).map(
    lambda some: np.array(some, np.int64)
)


class Against(RuleBasedStateMachine):
    """A store beside a dict of what each row is to be."""

    def __init__(self) -> None:
        super().__init__()
        self.store = make()
        self.known: dict[int, tuple[float, int]] = {}  # the first element, and the stamp
        self.now = 0

    @rule(ids=ids_of, value=st.integers(-9, 9))
    def update(self, ids, value):
        self.now += 1
        rows = self.store.insert(ids, self.now)
        assert np.array_equal(self.store.ids[rows], ids)
        for number, row in zip(ids.tolist(), rows.tolist(), strict=True):
            if number not in self.known:
                assert np.array_equal(self.store.values[row], initial(np.array([number]))[0])
                assert self.store.slots[0][row].tolist() == [0.5, 0.5]
                assert self.store.row_slots[0][row] == np.float32(0.1)
                assert self.store.counts[row] == 0
                assert self.store.stamps[row] == self.now
        self.store.values[rows] = value
        self.store.slots[0][rows] = self.store.row_slots[0][rows] = value
        self.store.counts[rows] += 1
        self.store.stamps[rows] = self.now
        self.known |= {number: (float(value), self.now) for number in ids.tolist()}

    @rule(ids=ids_of)
    def remove(self, ids):
        rows = self.store.find(ids)
        assert [row >= 0 for row in rows.tolist()] == [number in self.known for number in ids.tolist()]
        assert self.store.count_absent(ids) == int((rows < 0).sum())
        self.store.remove(rows[rows >= 0])
        for number in ids.tolist():
            self.known.pop(number, None)

    @rule(ids=ids_of, oldest=st.none() | st.integers(0, 5))
    def gather(self, ids, oldest):
        ids = np.concatenate([ids, ids[::-1]])
        out = np.full((ids.size, 2), np.nan, np.float32)
        found = self.store.gather(ids, out, oldest, self.now)
        begin, hits = initial(ids), 0
        for i, number in enumerate(ids.tolist()):
            value, stamp = self.known.get(number, (0.0, 0))
            there = number in self.known and (oldest is None or self.now - stamp <= oldest)
            assert out[i].tolist() == ([value, value] if there else begin[i].tolist())
            hits += there
        assert found == hits

    @rule(since=st.integers(0, 8), most=st.integers(1, 7))
    def changed(self, since, most):
        since, start, found = min(since, self.now), 0, list[int]()
        while start < self.store.end:
            rows, start = self.store.changed(since, self.now, start, most)
            assert rows.size <= most
            found += self.store.ids[rows].tolist()
        assert sorted(found) == sorted(number for number, (_, stamp) in self.known.items() if stamp > since)

    @invariant()
    def holds(self):
        self.store.validate()
        assert self.store.num_rows == len(self.known)


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)


def test_an_index_grows_little_by_little_and_loses_nothing():
    store, rng = make(1, 1 << 17), np.random.default_rng(1)
    known: dict[int, int] = {}
    moving = 0
    for step in range(120):
        ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 500))
        for number, row in zip(ids.tolist(), store.insert(ids).tolist(), strict=True):
            assert known.setdefault(number, row) == row
        moving += store._old is not None
        if step % 10 == 9:
            gone = rng.choice(np.array(list(known)), 300, replace=False)
            store.remove(store.find(gone))
            for number in gone.tolist():
                del known[number]
            store.validate()
    assert moving
    assert store.find(np.array(list(known))).tolist() == list(known.values())


def test_an_index_doubles_and_has_its_memory_before_it_is_needed():
    store, sizes = make(1, 1 << 17), list[int]()
    for start in range(0, 60_000, 50):
        coming, prepared = store._next, store._prepared
        store.insert(np.arange(start, start + 50))
        if not sizes or store._index.size != sizes[-1]:
            sizes.append(store._index.size)
            if len(sizes) > 1:
                assert store._index is coming
                assert prepared == coming.size
    assert sizes == [1 << power for power in range(10, 18)]


def test_an_index_full_of_what_is_gone_is_replaced_by_one_of_its_size():
    store = make(1, 1 << 12)
    for start in range(0, 6000, 100):
        store.remove(store.insert(np.arange(start, start + 100)))
        store.validate()
    assert store._index.size == 1 << 10


def test_a_call_that_inserts_moves_a_bounded_part_of_an_old_index(monkeypatch):
    monkeypatch.setattr(store_module, "MOVED_PLACES", 64)
    store = make(1)
    store.insert(np.arange(700))
    store.insert(np.arange(700, 730))
    assert store._old is not None
    before = store._moved
    store.insert(np.arange(730, 740))
    assert store._moved - before == 64
    store.validate()
    while store._old is not None:
        store.insert(np.arange(10))
    store.validate()


def test_rows_that_come_and_go_do_not_make_the_index_grow():
    store = make(1)
    for start in range(0, 60_000, 300):
        rows = store.insert(np.arange(start, start + 300))
        store.remove(rows)
        store.validate()
    assert store.end == 300
    assert store._index.size == store_module.SMALLEST_INDEX


def test_ids_that_were_chosen_to_lie_together_are_not_looked_for_one_by_one():
    """Ids whose hashes agree in the lower bits would make a chain of them all."""
    bad = np.array([unmixed(number << 32 | 5, 11) for number in range(4 * loops.MOST_PROBES)], np.int64)
    assert (mixed(bad, 11) & np.uint64(0xFFFFFFFF)).tolist() == [5] * bad.size
    store = make(1, seed=11)
    store.insert(bad)
    store.validate()
    assert store._seed != 11
    assert (store.find(bad) >= 0).all()


def test_what_there_is_no_room_for_changes_nothing():
    store = make(reserve_rows=10)
    store.insert(np.arange(8))
    with pytest.raises(MemoryError, match="10 rows"):
        store.insert(np.arange(6, 12))
    store.validate()
    assert store.num_rows == 8
    store.remove(store.find(np.array([0, 1])))
    store.insert(np.arange(8, 12))
    assert store.num_rows == store.end == 10


def test_rows_begin_again():
    store = make()
    ids = np.array([4, 5])
    rows = store.insert(ids, 3)
    store.values[rows] = store.slots[0][rows] = 7.0
    store.counts[rows] = 9
    store.renew(rows[:1], 8)
    assert np.array_equal(store.values[rows[0]], initial(ids)[0])
    assert (store.slots[0][rows[0]] == 0.5).all()
    assert store.counts[rows].tolist() == [0, 9]
    assert store.stamps[rows].tolist() == [8, 3]


def test_rows_come_as_they_are_elsewhere():
    one, other = make(), make()
    ids = np.array([4, -5, 6])
    rows = one.insert(ids, 9)
    one.values[rows] += 1.0
    one.counts[rows] = [1, 2, 3]
    state = [slot[rows] for slot in one.slots], [slot[rows] for slot in one.row_slots]
    other.upsert(one.ids[rows], one.values[rows], *state, one.counts[rows], one.stamps[rows])
    there = other.find(ids)
    assert np.array_equal(other.values[there], one.values[rows])
    assert other.counts[there].tolist() == [1, 2, 3]
    assert other.stamps[there].tolist() == [9, 9, 9]


def test_rows_are_found_by_their_buckets():
    store = make(1)
    store.insert(np.arange(5000))
    found, start = [], 0
    for lo, hi in ((0, 300), (300, 1024)):
        start = 0
        while start < store.end:
            rows, start = store.in_buckets(lo, hi, 3, start, 700)
            found.append(store.ids[rows])
    assert sorted(np.concatenate(found).tolist()) == list(range(5000))


def test_ages_go_on_where_stamps_begin_again():
    store = make()
    rows = store.insert(np.array([1]), 2**32 - 2)
    assert store.ages(rows, 2**32 + 3).tolist() == [5]
    out = np.empty((1, 2), np.float32)
    assert store.gather(np.array([1]), out, 5, 2**32 + 3) == 1
    assert store.gather(np.array([1]), out, 4, 2**32 + 3) == 0


def test_fifty_million_rows_of_16_with_an_accumulator_fit_in_eight_gigabytes():
    store = RowStore(16, FILLER, row_slots=(0.0,), reserve_rows=16)
    rows, index = 50_000_000, 1024
    while rows > store_module.MOST_TAKEN * index:
        index *= 2
    nbytes = rows * store.row_nbytes + 4 * (index + index // 2)  # while the last index is still moved
    assert nbytes <= 1.9 * rows * 64
    assert nbytes <= 8e9
