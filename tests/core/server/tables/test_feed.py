"""A copy that follows a table equals it, whatever happens to the table between polls, and in the midst of one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.core.server.followed import DIM, KINDS, SHARDS, Servers, apply, cargoes_of, followed, some
from tests.tables import for_each
from zmqps.client.sparse.feed import Changes
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import PushRows, ScanRows
from zmqps.core.server.tables import feed as server_feed
from zmqps.core.server.tables.gone import FOLLOWED_S
from zmqps.core.worker.rows import RowSource
from zmqps.errors import PeerLostError, ProtocolError

NUMBERS = st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True).map(lambda some: np.array(some, np.int64))


@pytest.fixture(autouse=True)
def _few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_feed, "LOOKED_AT", 16)


class Followed(RuleBasedStateMachine):
    """A table that is trained, and a copy that follows it."""

    @initialize(kind=st.sampled_from(sorted(KINDS)), most_gone=st.sampled_from([4, 1000]), most=st.integers(1, 9))
    def begin(self, kind: str, most_gone: int, most: int) -> None:
        self.servers = Servers(most_gone, **KINDS[kind])
        self.most = most
        self.feed = self.servers.feed(most=most)
        self.copy: dict[int, list[float]] = {}
        self.poll: Iterator[Changes] | None = None

    @rule(ids=NUMBERS, by=st.integers(1, 9))
    def push(self, ids: Array, by: int) -> None:
        self.servers.push(ids, float(by))

    @rule(ids=NUMBERS, value=st.integers(-9, 9))
    def load(self, ids: Array, value: int) -> None:
        self.servers.load(ids, float(value))

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.servers.now += seconds

    @rule()
    def wait_for_so_long_that_nobody_follows(self) -> None:
        self.servers.now += FOLLOWED_S + 1

    @rule(shard=st.integers(0, SHARDS - 1))
    def go_back(self, shard: int) -> None:
        self.servers.go_back(shard)

    @rule(parts=st.integers(1, 3))
    def follow(self, parts: int) -> None:
        if self.poll is None:
            self.poll = self.feed.poll()
        for _ in range(parts):
            found = next(self.poll, None)
            if found is None:
                self.poll = None
                return
            apply(self.copy, found)

    @rule()
    def leave_a_poll(self) -> None:
        self.poll = None

    @rule()
    def fail(self) -> None:
        self.servers.fails = 1
        with pytest.raises(PeerLostError):
            followed(self.feed, self.copy)
        self.poll = None

    @rule()
    def go_on_elsewhere(self) -> None:
        cursor = json.loads(json.dumps(self.feed.cursor))
        self.feed, self.poll = self.servers.feed(cursor, self.most), None

    @rule()
    def be_equal(self) -> None:
        for part in self.poll or ():
            apply(self.copy, part)
        self.poll = None
        followed(self.feed, self.copy)
        assert self.copy == self.servers.rows()
        assert followed(self.feed, self.copy) == []

    def teardown(self) -> None:
        if hasattr(self, "feed"):
            self.be_equal()


Followed.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestFollowed = Followed.TestCase


def test_where_nothing_has_changed_each_shard_is_asked_once_and_tells_nothing() -> None:
    servers = Servers()
    feed = servers.feed()
    servers.push(np.arange(100), 1.0)
    assert sum(part.ids.size for part in feed) == 100
    before = servers.asked
    assert list(feed) == []
    assert servers.asked - before == SHARDS


def test_a_copy_that_was_away_for_long_goes_on_where_no_row_has_gone() -> None:
    servers, copy = Servers(), dict[int, list[float]]()
    feed = servers.feed()
    servers.push(np.arange(20), 1.0)
    followed(feed, copy)
    servers.now += 1000 * FOLLOWED_S
    servers.push(some(3), 1.0)
    later = servers.feed(json.loads(json.dumps(feed.cursor)))
    assert later.version == feed.version > 0
    assert not any(part.reset for part in followed(later, copy))
    assert copy == servers.rows()


@for_each("away, reset", [(FOLLOWED_S - 1, False), (FOLLOWED_S + 1, True)])
def test_a_copy_that_was_away_while_rows_went_reads_all_again_once_their_ids_are_forgotten(
    away: float, reset: bool
) -> None:
    servers, copy = Servers(**KINDS["make way"]), dict[int, list[float]]()
    feed = servers.feed()
    servers.push(np.arange(20), 1.0)
    followed(feed, copy)
    servers.now += away
    servers.push(np.arange(100, 130), 1.0)
    servers.push(np.arange(200, 230), 1.0)
    assert any(part.reset for part in followed(feed, copy)) == reset
    assert copy == servers.rows()


def test_nothing_is_kept_for_nobody() -> None:
    servers = Servers(**KINDS["make way"])
    tables = [rows.tables[0] for _, rows in servers.shards]
    for first in range(0, 120, 20):
        servers.push(np.arange(first, first + 20), 1.0)
    assert all(items.gone.end and items.gone.since(0) is None and not items.watchers.changing for items in tables)
    list(servers.feed())
    servers.push(np.arange(20), 1.0)
    assert all(items.gone._ids is not None for items in tables)
    servers.now += FOLLOWED_S + 1
    servers.push(np.arange(20), 1.0)
    assert all(items.gone._ids is None for items in tables)


def test_a_poll_has_whole_steps_of_a_shard() -> None:
    """Synchronous: what waits for the commit of its step is in no poll, and after it all is."""
    servers, copy = Servers(mode="sync"), dict[int, list[float]]()
    feed = servers.feed(most=1000)
    ids, who = np.arange(20), (b"a" * 16, b"b" * 16)
    followed(feed, copy)
    for step in range(3):
        for number, worker in enumerate(who):
            push = servers.pushing(ids, 2.0 * number)
            assert isinstance(push.source, RowSource)
            for cargo in cargoes_of(push):
                _, rows = servers.shards[cargo.slice.shard]
                grads = push.source.rows[cargo.first : cargo.first + cargo.pushed.size]
                message = PushRows(
                    1, 1, 1, step, 1, 1, 0, 1, "raw", "raw", (), 1, cargo.slice.index, 0, cargo.pushed.size, 0,
                    [cargo.pushed, grads],
                )  # fmt: skip
                rows.collect(message, worker, 0, "worker")
            assert followed(feed, copy) == []
        for _, rows in servers.shards:
            rows.commit(step, [(worker, (1,)) for worker in who])
            rows.close(step)
        assert sum(part.ids.size for part in followed(feed, copy)) == 20
        assert feed.version == step + 1
        assert copy == servers.rows() == {number: [-float(step)] * DIM for number in range(20)}


WHOLE = st.integers(0, (1 << 64) - 1) | st.integers(0, 60)


@given(
    start=WHOLE,
    most=WHOLE,
    since=st.tuples(st.integers(0, 3), WHOLE, WHOLE, WHOLE, WHOLE),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_no_cursor_is_one_that_does_harm(start: int, most: int, since: tuple[int, ...], kind: str) -> None:
    servers = Servers(**KINDS[kind])
    for first in range(0, 80, 20):
        servers.push(np.arange(first, first + 20), 1.0)
        servers.now += 2.0
    epoch, rows = servers.shards[0]
    rows.tick(servers.now)
    [items] = rows.tables
    told = server_feed.changes(items, epoch, start, most, since, servers.now)
    assert told.places.size <= most
    assert items.is_there(told.places).all()
    assert 0 <= told.next < max(1, items.store.end)
    assert told.reset == (since[0] != epoch or (not start and told.reset))
    rows.scan(ScanRows(1, epoch, items.slice.index, start, most, since), servers.now)


@for_each("since", [(1,), (1,) * 4, (1,) * 6])
def test_what_is_no_cursor_is_refused(since: tuple[int, ...]) -> None:
    [items] = Servers().shards[0][1].tables
    with pytest.raises(ProtocolError, match="a cursor has 5 numbers"):
        server_feed.changes(items, 1, 0, 9, since, 0.0)


def test_an_answer_is_short_and_says_where_to_go_on() -> None:
    servers = Servers()
    servers.push(np.arange(200), 1.0)
    epoch, rows = servers.shards[0]
    [items] = rows.tables
    end = items.store.end
    assert end > 2 * server_feed.LOOKED_AT
    first = server_feed.changes(items, epoch, 0, 1000, (0,) * 5, 0.0)
    assert (first.places.tolist(), first.next, first.reset) == (list(range(16)), 16, True)
    assert first.cursor == (epoch, 1, 1, 1 << 32, 0)
    few = server_feed.changes(items, epoch, 16, 5, (epoch, 0, 0, 0, 0), 0.0)
    assert (few.places.tolist(), few.next, few.reset) == (list(range(16, 21)), 21, False)
    last = server_feed.changes(items, epoch, end - 3, 1000, (epoch, 0, 0, 0, 0), 0.0)
    assert (last.places.tolist(), last.next) == (list(range(end - 3, end)), 0)
    nothing = server_feed.changes(items, epoch, 0, 0, (0,) * 5, 0.0)
    assert (nothing.places.size, nothing.next, nothing.cursor) == (0, 0, first.cursor)


def test_a_scan_that_finds_another_copy_in_its_midst_begins_with_all_rows() -> None:
    servers = Servers()
    servers.push(np.arange(200), 1.0)
    epoch, rows = servers.shards[0]
    told = server_feed.changes(rows.tables[0], epoch, 32, 1000, (epoch + 7, 1, 1, 1 << 32, 0), 0.0)
    assert (told.reset, told.places[0], told.next) == (True, 0, 16)


def test_rows_that_expired_are_gone_once_and_those_that_had_before_are_not_told_again() -> None:
    servers = Servers(expire_steps=4)
    servers.push(np.arange(20), 1.0)
    epoch, rows = servers.shards[0]
    [items] = rows.tables
    first = set(items.store.ids[: items.store.end].tolist())
    cursor = server_feed.changes(items, epoch, 0, 0, (0,) * 5, 0.0).cursor
    items._sweep = lambda touched: None  # type: ignore[method-assign]  # their memory is not needed yet
    for _ in range(4):
        servers.push(some(100, 101, 102, 103), 1.0)
    told = server_feed.changes(items, epoch, 0, 1000, cursor, 0.0)
    found = set(items.store.ids[told.places].tolist())
    again = server_feed.changes(items, epoch, told.next, 1000, cursor, 0.0) if told.next else None
    if again is not None:
        found |= set(items.store.ids[again.places].tolist())
    gone = [*told.gone.tolist(), *(again.gone.tolist() if again is not None else ())]
    assert sorted(gone) == sorted(first)
    assert found
    assert found <= {100, 101, 102, 103}
    servers.push(some(100, 101, 102, 103), 1.0)
    assert not server_feed.changes(items, epoch, 0, 1000, told.cursor, 0.0).gone.size


def test_what_was_loaded_before_the_first_update_is_gone_when_it_has_expired() -> None:
    servers = Servers(expire_steps=4)
    servers.load(np.arange(40), 1.0)
    epoch, rows = servers.shards[0]
    [items] = rows.tables
    loaded = items.store.ids[1 : items.store.end].tolist()
    cursor = server_feed.changes(items, epoch, 0, 0, (0,) * 5, 0.0).cursor
    assert cursor[2] == 0
    items._sweep = lambda touched: None  # type: ignore[method-assign]
    for _ in range(5):
        servers.push(np.arange(100, 110), 1.0)
    told, gone = server_feed.changes(items, epoch, 1, 1000, cursor, 0.0), list[int]()
    gone += told.gone.tolist()
    while told.next:
        told = server_feed.changes(items, epoch, told.next, 1000, cursor, 0.0)
        gone += told.gone.tolist()
    assert gone == loaded


def test_a_cursor_from_when_all_rows_had_expired_is_one_like_others() -> None:
    servers = Servers()
    for _ in range(3):
        servers.push(np.arange(10), 1.0)
    servers.push(np.arange(10, 30), 1.0)
    epoch, rows = servers.shards[0]
    [items] = rows.tables
    told = server_feed.changes(items, epoch, 1, 1000, (epoch, 3, 4, 0, 0), 0.0)
    assert set(items.store.ids[told.places].tolist()) <= set(range(10, 30))
    assert told.places.size
