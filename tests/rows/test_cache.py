"""Rows that are kept for a while: beside a plain model with clocks, and which of them make way."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.tables import for_each
from zmqps.rows import cache as cache_module
from zmqps.rows.cache import MOST_USES, Cache, Reservation

DIM, ROOM = 2, 8

some_ids = st.lists(st.integers(-12, 12), max_size=12, unique=True).map(lambda some: np.array(some, np.int64))


def rows_of(ids: np.ndarray, value: float = 0.0) -> np.ndarray:
    return np.stack([ids + value, -ids + value], axis=1).astype(np.float32)


def fetch(cache: Cache, ids: np.ndarray | range | list[int], until: int = 0, value: float = 0.0) -> None:
    """Let a cache have rows of its own asking, as far as it has room."""
    ids = np.array(ids, np.int64)
    reservation, _ = cache.reserve(ids, cache.places(ids))
    cache.fill(reservation, rows_of(ids, value), until)


def there(cache: Cache, ids: range | list[int], clock: int = 0) -> set[int]:
    """Return the ids whose rows may be read, without counting that as a use."""
    ids_ = np.array(ids, np.int64)
    places = cache.places(ids_)
    return {id_ for id_, place in zip(ids_.tolist(), places.tolist(), strict=True) if place >= 0}


class Against(RuleBasedStateMachine):
    """A cache beside what may be read, and what is kept, by id. The model does not say what makes way: it looks."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(ROOM, DIM, keeps=True)
        self.clock = 0
        self.values: dict[int, tuple[np.ndarray, int]] = {}  # and the last clock
        self.kept: dict[int, tuple[np.ndarray, int]] = {}  # and the last clock for which it is
        self.asked: list[tuple[np.ndarray, Reservation]] = []
        self.awaited: dict[int, int] = {}  # by id the number of the reservation

    def look(self) -> set[int]:
        """Return which ids have a place."""
        ids = np.arange(-12, 13)
        return set(ids[self.cache.places(ids) >= 0].tolist())

    def leave(self, kept) -> None:
        """What was returned of rows that made way is what was kept of them."""
        here = self.look()
        gone = {id_ for id_ in {*self.values, *self.kept, *self.awaited} if id_ not in here}
        assert set(kept.ids.tolist()) == {id_ for id_ in gone if id_ in self.kept}
        for id_, sums in zip(kept.ids.tolist(), kept.sums, strict=True):
            assert np.array_equal(sums, self.kept.pop(id_)[0])
        for id_ in gone:
            self.values.pop(id_, None)
            self.awaited.pop(id_, None)

    @rule(steps=st.integers(1, 3))
    def go_on(self, steps):
        self.clock += steps

    @rule(ids=some_ids)
    def read(self, ids):
        out = np.full((ids.size, DIM), np.nan, np.float32)
        lacking, places = self.cache.read(ids, self.clock, out)
        assert np.array_equal(places, self.cache.places(ids[lacking]))
        good = {id_ for id_, (_, until) in self.values.items() if until >= self.clock}
        assert set(ids[lacking].tolist()) == set(ids.tolist()) - good
        for number in set(range(ids.size)) - set(lacking.tolist()):
            assert np.array_equal(out[number], self.values[int(ids[number])][0])
        assert np.isnan(out[lacking]).all()

    @rule(ids=some_ids)
    def reserve(self, ids):
        before = self.look()
        reservation, left = self.cache.reserve(ids, self.cache.places(ids))
        self.leave(left)
        got = {id_ for id_, place in zip(ids.tolist(), reservation.places.tolist(), strict=True) if place >= 0}
        assert got <= self.look()
        if len(before | set(ids.tolist())) <= ROOM:
            assert got == set(ids.tolist())  # with room for all nothing makes way
            assert not left.ids.size
        self.awaited |= dict.fromkeys(got, reservation.number)
        self.asked.append((ids, reservation))

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), value=st.integers(-50, 50), ahead=st.integers(0, 4))
    def fill(self, data, value, ahead):
        """Answers come in any order."""
        ids, reservation = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        rows = rows_of(ids, value)
        self.cache.fill(reservation, rows, self.clock + ahead)
        for id_, row in zip(ids.tolist(), rows, strict=True):
            if self.awaited.get(id_) == reservation.number:
                del self.awaited[id_]
                self.values[id_] = row.copy(), self.clock + ahead

    @rule(ids=some_ids)
    def drop(self, ids):
        places = self.cache.places(ids)
        self.cache.drop(places[places >= 0])
        for id_ in ids.tolist():
            self.values.pop(id_, None)
            self.awaited.pop(id_, None)

    @rule()
    def drop_all(self):
        self.cache.drop_all()
        self.values.clear()
        self.awaited.clear()

    @rule(ids=some_ids, value=st.integers(-9, 9))
    def add(self, ids, value):
        places = self.cache.places(ids)
        ids, places = ids[places >= 0], places[places >= 0]
        has = self.cache.has_value(places)
        assert set(ids[has].tolist()) == {id_ for id_ in ids.tolist() if id_ in self.values and id_ not in self.awaited}
        self.cache.add(places[has], np.flatnonzero(has), rows_of(ids, value) / 2, 2.0)
        for id_, change in zip(ids[has].tolist(), rows_of(ids[has], value), strict=True):
            self.values[id_] = self.values[id_][0] + change, self.values[id_][1]

    @rule(ids=some_ids, value=st.integers(-9, 9), most=st.integers(1, 4))
    def keep(self, ids, value, most):
        places = self.cache.places(ids)
        ids, places = ids[places >= 0], places[places >= 0]
        self.cache.keep(places, np.arange(ids.size), rows_of(ids, value), self.clock, most)
        for id_, change in zip(ids.tolist(), rows_of(ids, value), strict=True):
            until = self.values[id_][1] if id_ in self.values else -1
            last = until if until >= self.clock else self.clock + most - 1
            sums, last = self.kept.get(id_, (np.zeros(DIM, np.float32), last))
            self.kept[id_] = sums + change, last

    @rule()
    def send_what_is_due(self):
        self.taken(self.cache.take_due(self.clock), self.clock)

    @rule()
    def send_all(self):
        assert self.cache.num_kept == len(self.kept)
        self.taken(self.cache.take_all(), 1 << 60)

    def taken(self, kept, clock):
        expected = {id_: sums for id_, (sums, last) in self.kept.items() if last < clock}
        assert set(kept.ids.tolist()) == set(expected)
        for id_, sums in zip(kept.ids.tolist(), kept.sums, strict=True):
            assert np.array_equal(sums, expected[id_])
            del self.kept[id_]

    @invariant()
    def keeps_its_invariants(self):
        self.cache.validate()
        assert self.cache._num_due <= cache_module.MOST_DUE * ROOM


TestAgainst = Against.TestCase
TestAgainst.settings = settings(max_examples=20, stateful_step_count=40)


def test_what_was_read_again_stays_and_what_was_read_once_makes_way() -> None:
    cache = Cache(4, DIM)
    fetch(cache, [1, 2, 3, 4])
    cache.read(np.array([2, 3]), 0, np.empty((2, DIM), np.float32))
    fetch(cache, [5])
    fetch(cache, [6])
    assert there(cache, range(10)) == {2, 3, 5, 6}
    assert cache.evicted == 2
    for number in range(100, 120):  # rows that come once do not push out what is read all the while
        cache.read(np.array([2]), 0, np.empty((1, DIM), np.float32))
        fetch(cache, [number])
        assert there(cache, [2, number]) == {2, number}


def test_what_was_hot_once_goes_in_the_end() -> None:
    cache = Cache(2, DIM)
    fetch(cache, [1, 2])
    for _ in range(100):
        cache.read(np.array([1, 2]), 0, np.empty((2, DIM), np.float32))
    for number in range(2 * MOST_USES):
        fetch(cache, [10 + number])
    assert not {1, 2} & there(cache, [1, 2])


def test_a_call_as_large_as_the_cache_takes_what_is_free_and_a_part_more() -> None:
    cache = Cache(16, DIM, keeps=True)
    fetch(cache, range(1, 13))
    cache.keep(cache.places(np.array([1])), np.array([0]), np.ones((1, DIM), np.float32), 0, 8)
    reservation, left = cache.reserve(np.arange(20, 60), np.full(40, -1))
    assert (reservation.places >= 0).sum() == 4 + 2
    assert (len(cache), cache.evicted) == (16, 2)
    assert left.ids.tolist() == [1]
    cache.fill(reservation, rows_of(np.arange(20, 60)), 0)
    out = np.zeros((40, DIM), np.float32)
    lacking, _ = cache.read(np.arange(20, 60), 0, out)
    have = np.setdiff1d(np.arange(40), lacking)
    assert have.size == 6
    assert np.array_equal(out[have], rows_of(have + 20))
    assert there(cache, range(1, 13)) == set(range(3, 13))


@for_each("between", ["drop", "again", "evicted"])
def test_what_was_asked_for_before_a_change_does_not_come_to_be_read(between: str) -> None:
    cache = Cache(2, DIM)
    ids = np.array([7])
    first, _ = cache.reserve(ids, cache.places(ids))
    if between == "drop":
        cache.drop(cache.places(ids))
    elif between == "again":
        second, _ = cache.reserve(ids, cache.places(ids))
    else:
        fetch(cache, [8], 5)
        fetch(cache, [9], 5)
        second, _ = cache.reserve(ids, cache.places(ids))
    cache.fill(first, rows_of(ids, 100.0), 5)
    out = np.zeros((1, DIM), np.float32)
    assert cache.read(ids, 0, out)[0].tolist() == [0]
    if between != "drop":
        cache.fill(second, rows_of(ids, 1.0), 5)
        assert cache.read(ids, 0, out)[0].size == 0
        assert np.array_equal(out, rows_of(ids, 1.0))


def test_what_is_kept_again_after_it_was_taken_is_taken_once() -> None:
    cache = Cache(4, DIM, keeps=True)
    fetch(cache, [1], until=9)
    for clock in range(3):  # each time it is due with the row
        cache.keep(cache.places(np.array([1])), np.array([0]), np.ones((1, DIM), np.float32), clock, 20)
        if clock < 2:
            cache.take_all()
    ids, sums = cache.take_due(10)
    assert (ids.tolist(), sums.tolist()) == ([1], [[1.0, 1.0]])


def test_when_something_was_due_is_forgotten_with_it() -> None:
    cache = Cache(4, DIM, keeps=True)
    fetch(cache, [1, 2, 3, 4])
    places = cache.places(np.arange(1, 5))
    for clock in range(1000):  # each time all is kept, and taken before it is due
        cache.keep(places, np.arange(4), np.ones((4, DIM), np.float32), clock, 8)
        assert cache.take_all().ids.size == 4
    assert cache._num_due <= cache_module.MOST_DUE * 4
    assert cache.take_due(2000).ids.size == 0


def test_it_takes_no_more_memory_than_its_rows() -> None:
    cache = Cache(1000, 16)
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = np.unique(rng.integers(0, 1 << 40, 300))
        cache.fill(cache.reserve(ids, cache.places(ids))[0], np.ones((ids.size, 16), np.float32), 0)
    cache.validate()
    assert len(cache) == 1000
    assert cache.nbytes < 1000 * (16 * 4 + 60)
