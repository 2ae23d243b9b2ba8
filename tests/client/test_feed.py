"""A copy that follows a table equals it, whatever happens to the table between polls, and in the midst of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from zmqps import initial, optim
from zmqps.client.feed import Changes, Feed
from zmqps.client.requests import Requests
from zmqps.client.tables import table
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages import PushRows, ScanRows
from zmqps.core.server import feed as server_feed
from zmqps.core.server.gone import FOLLOWED_S, GoneLog
from zmqps.core.server.rows import Rows, make_rows
from zmqps.core.worker.operations import Attached, Exchange
from zmqps.core.worker.rows import RowCargo, RowSource, ScanTarget
from zmqps.core.worker.transfer import Pull, Push
from zmqps.errors import ConfigurationError, PeerLostError
from zmqps.gpu.handover import Handover
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.kept import rebased

DIM = 2
SHARDS = 2
#: Of what kind tables are: rows that stay, make way for others, expire by updates, by seconds, by both.
KINDS: dict[str, dict[str, Any]] = {
    "stay": {},
    "make way": {"capacity_nbytes": 1200, "when_full": "evict"},
    "expire by updates": {"expire_steps": 4},
    "expire by seconds": {"expire_seconds": 6},
    "all": {"capacity_nbytes": 1200, "when_full": "evict", "expire_steps": 9, "expire_seconds": 6},
}
NUMBERS = st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True).map(lambda some: np.array(some, np.int64))


class Servers:
    """A table on its shards, and the way there; answers are given at once."""

    def __init__(self, most_gone: int = 1 << 10, staleness: int | None = None, **options: Any) -> None:
        spec = table(DIM, optimizer=optim.sgd(1.0), initial=initial.constant(1.0), **options).named("items")
        self.job = JobSpec(parameters=(), optimizer=optim.sgd(1.0).to_wire(), tables=(spec,), staleness=staleness)
        self.placement = Placement.balance(KeySpace.of(self.job), SHARDS)
        self.requests = Requests(Attached(self.job, self.placement), Handover())
        self.now = 0.0
        self.asked = 0  # scans
        self.fails = 0  # so many of the next ones
        self.epoch = 0
        self.most_gone = most_gone
        self.shards: list[tuple[int, Rows]] = []
        for shard in range(SHARDS):
            self.shards.append(self.build(shard))

    def build(self, shard: int) -> tuple[int, Rows]:
        """Return a new copy of a shard, which is empty."""
        kernel = lambda spec: kernel_of_table(spec.optimizer, spec.name, spec.dim, "numpy")  # noqa: E731
        rows = make_rows(self.job, self.placement, shard, kernel, available_nbytes=1 << 16)
        assert rows is not None
        rows.tables[0].gone = GoneLog(self.most_gone)
        self.epoch += 1
        return self.epoch, rows

    def go_back(self, shard: int) -> None:
        """Lose a shard; a new copy has some of its rows, as they were once, and has had fewer updates."""
        items = self.shards[shard][1].tables[0]
        kept = items.kept(np.flatnonzero(items.store.live[: items.store.end])[::2])
        self.shards[shard] = self.build(shard)
        again = self.shards[shard][1].tables[0]
        again.steps, again.version = items.steps // 2, items.version
        stamps = rebased(kept.stamps, again.steps, items.steps)
        again.restore(kept._replace(values=kept.values + 100, stamps=stamps))

    def feed(self, since: Any = (), most: int = 3) -> Feed:
        return Feed(lambda timeout: self.requests.table("items"), self.exchange, since=since, most=most)

    def exchange(self, exchange: Exchange, timeout: float | None) -> Future[Any]:
        assert isinstance(exchange.pull, Pull)
        done = Future[Any]()
        if self.fails:
            self.fails -= 1
            done.set_exception(PeerLostError(role="server", name="server-0", silent_s=1.0, advice=""))
            return done
        [cargo], target = cargoes_of(exchange.pull), exchange.pull.target
        assert isinstance(target, ScanTarget)
        epoch, rows = self.shards[cargo.slice.shard]
        self.asked += 1
        rows.tick(self.now)
        message = ScanRows(1, epoch, cargo.slice.index, target.start, target.most, target.since)
        [pieces], versions, _ = rows.scan(message, self.now)
        target.land([cargo], pieces, versions)
        done.set_result(None)
        return done

    def push(self, ids: Array, by: float) -> None:
        """Push the same gradient for some ids."""
        self._write(self.requests.table("items").push(ids, np.full((ids.size, DIM), by), 1, None, None))

    def load(self, ids: Array, value: float) -> None:
        """Set rows."""
        self._write(self.requests.table("items").load(ids, np.full((ids.size, DIM), value), False))

    def _write(self, push: Push) -> None:
        assert isinstance(push.source, RowSource)
        for cargo in cargoes_of(push):
            rows = self.shards[cargo.slice.shard][1]
            rows.tick(self.now)
            [items] = rows.tables
            values = push.source.rows[cargo.first : cargo.first + cargo.pushed.size]
            if push.terms:
                items.put(cargo.pushed, values)
            else:
                items.update(cargo.pushed, values)
            items.version += 1

    def rows(self) -> dict[int, list[float]]:
        """Return what a copy is to be."""
        found = {}
        for _, rows in self.shards:
            rows.tick(self.now)
            [items] = rows.tables
            items.validate()
            places = np.arange(items.store.end)
            places = places[items.is_there(places)]
            found.update(zip(items.store.ids[places].tolist(), items.store.values[places].tolist(), strict=True))
        return found


def cargoes_of(transfer: Pull | Push) -> list[RowCargo]:
    return [cargo for row in transfer.cargoes for cargo in row if isinstance(cargo, RowCargo)]


def apply(copy: dict[int, list[float]], found: Changes) -> None:
    """Let a copy have a part of a poll."""
    if found.reset:
        copy.clear()
    for number in found.gone.tolist():
        copy.pop(number, None)
    assert np.unique(found.ids).size == found.ids.size
    copy.update(zip(found.ids.tolist(), found.rows.tolist(), strict=True))


def followed(feed: Feed, copy: dict[int, list[float]]) -> list[Changes]:
    """Go through a poll, and let a copy have it; return its parts."""
    parts = list(feed.poll())
    for part in parts:
        apply(copy, part)
    return parts


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


Followed.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestFollowed = Followed.TestCase


@pytest.fixture(autouse=True)
def _few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_feed, "LOOKED_AT", 16)


def some(*numbers: int) -> Array:
    return np.array(numbers, np.int64)


def test_the_first_poll_has_all_rows_and_later_ones_what_has_changed() -> None:
    servers, copy = Servers(), dict[int, list[float]]()
    feed = servers.feed(most=1000)
    servers.push(some(1, 2, 3), 1.0)
    parts = followed(feed, copy)
    assert [part.reset for part in parts] == [True] + [False] * (len(parts) - 1)
    assert copy == {1: [0.0] * DIM, 2: [0.0] * DIM, 3: [0.0] * DIM}
    assert all(part.rows.dtype == np.float32 and part.ids.dtype == np.int64 for part in parts)
    for _ in range(3):
        servers.push(some(2), 1.0)
    assert {*followed(feed, copy)[0].ids.tolist()} <= {1, 2, 3}  # those of the last update that was told come twice
    servers.push(some(2), 1.0)
    [part] = followed(feed, copy)
    assert (part.reset, part.gone.tolist(), part.ids.tolist(), part.rows.tolist()) == (False, [], [2], [[-4.0] * DIM])


def test_where_nothing_has_changed_each_shard_is_asked_once_and_tells_nothing() -> None:
    servers = Servers()
    feed = servers.feed()
    servers.push(np.arange(100), 1.0)
    assert sum(part.ids.size for part in feed) == 100
    before = servers.asked
    assert list(feed) == []
    assert servers.asked - before == SHARDS


def test_what_is_there_can_be_left_out() -> None:
    servers = Servers()
    servers.push(np.arange(100), 1.0)
    servers.push(np.arange(10), 1.0)
    feed = servers.feed()
    feed.skip()
    assert list(feed) == []
    servers.push(some(100, 2), 1.0)
    parts = list(feed)
    assert not any(part.reset for part in parts)
    assert {2, 100} <= {number for part in parts for number in part.ids.tolist()} <= {*range(10), 100}


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


@pytest.mark.parametrize(("away", "reset"), [(FOLLOWED_S - 1, False), (FOLLOWED_S + 1, True)])
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


def test_a_poll_that_was_not_gone_through_comes_again_as_a_whole() -> None:
    servers, copy = Servers(), dict[int, list[float]]()
    feed = servers.feed()
    servers.push(np.arange(50), 1.0)
    followed(feed, copy)
    cursor = feed.cursor
    servers.push(np.arange(50), 1.0)
    poll = feed.poll()
    next(poll)
    del poll
    servers.fails = 1
    with pytest.raises(PeerLostError):
        next(feed.poll())
    assert feed.cursor == cursor
    assert sum(part.ids.size for part in followed(feed, copy)) == 50
    assert copy == servers.rows()


def test_while_all_rows_come_there_is_no_cursor() -> None:
    servers = Servers()
    servers.push(np.arange(50), 1.0)
    feed = servers.feed()
    assert (feed.cursor, feed.version) == ([], 0)
    poll = feed.poll()
    for _ in range(3):
        next(poll)
    assert (feed.cursor, feed.version) == ([], 0)
    list(poll)
    assert feed.version == 1
    assert [row[:2] for row in feed.cursor] == [[s.start, s.stop] for s in servers.requests.table("items").parts.slices]


def test_a_job_that_lies_in_other_shards_is_read_anew() -> None:
    servers = Servers()
    feed = servers.feed()
    servers.push(np.arange(50), 1.0)
    list(feed)
    other = servers.feed([[0, 7, *feed.cursor[0][2:]], *feed.cursor[1:]])
    assert next(other.poll()).reset
    poll = feed.poll()
    servers.push(np.arange(50), 1.0)
    next(poll)
    servers.requests.lie(servers.placement)  # in the midst of a poll
    assert any(part.reset for part in poll)


@pytest.mark.parametrize("since", [[[1, 2]], [[0, 512, 1, 2, 3, 4, -5]], [[0, 512, 1, 2, 3, 4, "x"]], [7], 7])
def test_what_is_no_cursor_is_said(since: Any) -> None:
    with pytest.raises(ConfigurationError, match="since is what the cursor of an earlier feed was"):
        Servers().feed(since)


def test_nothing_is_kept_for_nobody() -> None:
    servers = Servers(**KINDS["make way"])
    tables = [rows.tables[0] for _, rows in servers.shards]
    for first in range(0, 120, 20):
        servers.push(np.arange(first, first + 20), 1.0)
    assert all(items.gone.end and items.gone.since(0) is None and not items.watchers for items in tables)
    list(servers.feed())
    servers.push(np.arange(20), 1.0)
    assert all(items.gone._ids is not None for items in tables)
    servers.now += FOLLOWED_S + 1
    servers.push(np.arange(20), 1.0)
    assert all(items.gone._ids is None for items in tables)


def test_a_poll_has_whole_steps_of_a_shard() -> None:
    """Synchronous: what waits for the commit of its step is in no poll, and after it all is."""
    servers, copy = Servers(staleness=0), dict[int, list[float]]()
    feed = servers.feed(most=1000)
    ids, who = np.arange(20), (b"a" * 16, b"b" * 16)
    followed(feed, copy)
    for step in range(3):
        for number, worker in enumerate(who):
            push = servers.requests.table("items").push(ids, np.full((20, DIM), 2.0 * number), 1, None, None)
            assert isinstance(push.source, RowSource)
            for cargo in cargoes_of(push):
                _, rows = servers.shards[cargo.slice.shard]
                grads = push.source.rows[cargo.first : cargo.first + cargo.pushed.size]
                message = PushRows(
                    1, 1, 1, step, 1, 1, 1, 0, 1, "raw", "raw", (), cargo.slice.index, 0, cargo.pushed.size, 0,
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
