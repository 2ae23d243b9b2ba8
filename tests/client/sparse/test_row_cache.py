"""A worker's copies of rows: what it reads from them is what it may read, and what it keeps is applied once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.client.sparse.test_tables import SHARDS, Member
from tests.inprocess import InProcessCluster
from tests.tables import for_each
from tests.team import PATIENCE
from zmqps import optim, row_cache
from zmqps.client.futures import begins
from zmqps.client.requests import Requests
from zmqps.client.sparse.row_cache import Call, RowCache, RowCaches
from zmqps.client.sparse.tables import Table, table
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.worker.operations import Attached, Exchange, Operation
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, NonFiniteGradientError, PSError
from zmqps.gpu.handover import Handover

SGD = optim.sgd(1.0)


class Slow(Member):
    """A worker whose answers come when the test lets them; servers do at once what they are told."""

    def __init__(self, optimizer: optim.OptimizerSpec = SGD, **options: Any) -> None:
        super().__init__()
        tables = (table(2, optimizer=optimizer).named("items"),)
        job = JobSpec(parameters=(), optimizer=SGD.to_wire(), tables=tables, mode="async")
        self.spec = replace(job, **options)
        self.requests = Requests(Attached(self.spec, Placement.balance(KeySpace.of(self.spec), SHARDS)), Handover())
        self.waiting: list[tuple[Future[Any], Callable[[Any], Any] | None]] = []
        self.is_slow = False
        self.error: PSError | None = None  # of the next exchange

    def submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None
    ) -> Future[Any]:
        assert isinstance(operation, Exchange)
        future = Future[Any]()
        if self.error is not None:
            self.exchanges.append(operation)
            error, self.error = self.error, None
            future.set_exception(error)
            return future
        super().submit(operation, timeout)
        self.waiting.append((future, result))
        if not self.is_slow:
            self.answer(0)
        return future

    def answer(self, number: int) -> None:
        future, result = self.waiting.pop(number)
        future.set_result(None if result is None else result(None))

    def items(self, rows: int = 100, **options: Any) -> Table:
        """Return the table, with a cache of this worker's."""
        cache = RowCache(row_cache(rows, **options), self.spec, self.spec.tables[0])
        self.caches["items"] = cache
        return Table(self, "items")

    def moved(self) -> tuple[int, int]:
        """Return how many rows were pushed and asked for since the last call."""
        pushed = wanted = 0
        for exchange in self.exchanges:
            for transfer, name in ((exchange.push, "pushed"), (exchange.pull, "wanted")):
                if transfer is not None:
                    sizes = sum(getattr(cargo, name).size for row in transfer.cargoes for cargo in row)
                    pushed, wanted = (pushed + sizes, wanted) if name == "pushed" else (pushed, wanted + sizes)
        self.exchanges.clear()
        return pushed, wanted


def ones(number: int) -> Array:
    return np.ones((number, 2), np.float32)


# --- reads ----------------------------------------------------------------------------------------


def test_a_row_is_read_again_for_so_many_clocks_and_then_asked_for() -> None:
    member = Slow()
    items = member.items(staleness=2)
    member.rows[5] = np.array([7.0, 8.0], np.float32)
    for clock in range(6):  # a clock is a push
        assert items.pull([[5, 6], [5, 5]]).tolist() == [[[7, 8], [0, 0]], [[7, 8], [7, 8]]]
        assert member.moved() == (0, 2 if clock % 3 == 0 else 0)
        items.push([1], ones(1))
        member.moved()
    assert (items.cache_statistics().hits, items.cache_statistics().misses) == (8, 4)


def test_pulls_without_a_push_between_them_are_clocks_too() -> None:
    member = Slow()
    items = member.items(staleness=3)
    asked = []
    for _ in range(9):
        items.pull([5])
        asked.append(member.moved()[1])
    assert asked == [1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_rows_of_another_worker_are_seen_within_the_bound() -> None:
    member = Slow()
    items = member.items(staleness=2)
    items.pull([5])
    member.rows[5] = np.array([1.0, 1.0], np.float32)
    assert [items.pull([5])[0, 0] for _ in range(3)] == [0.0, 0.0, 1.0]


def test_out_and_any_shape_of_ids_work_where_nothing_is_asked_for() -> None:
    member = Slow()
    items = member.items()
    member.rows[5] = np.array([7.0, 8.0], np.float32)
    items.pull([5])
    for dtype in (np.float32, np.float64, np.float16):
        out = np.zeros((2, 2), dtype)
        assert items.pull([5, 5], out=out) is out
        assert out.tolist() == [[7, 8], [7, 8]]
    assert items.pull(5).tolist() == [7, 8]
    assert items.pull([]).shape == (0, 2)
    rows = items.pull([5])
    rows[:] = 0.0  # it is the caller's
    assert items.pull([5]).tolist() == [[7, 8]]
    with pytest.raises(zmqps.errors.ShapeError):
        items.pull([5], out=np.zeros((3, 2)))


def test_rows_and_pulls_with_a_codec_come_from_the_servers() -> None:
    member = Slow()
    items = member.items(defer=True)
    items.pull([5])
    items.pull([5])
    items.push([5], ones(1))
    member.moved()
    assert items.rows([5]).tolist() == [[-1, -1]]  # with what was kept
    assert member.moved() == (1, 1)
    items.pull([5], codec="bf16")
    items.push_pull([6], ones(1), [5], pull_codec="raw")
    assert member.moved() == (1, 2)


def test_a_pull_that_failed_leaves_rows_to_be_asked_for() -> None:
    member = Slow()
    items = member.items()
    member.error = DeadlineError(operation="pull", seconds=1.0, waiting_for="nobody")
    with pytest.raises(DeadlineError):
        items.pull([5])
    member.moved()
    assert items.pull([5]).tolist() == [[0, 0]]
    assert member.moved() == (0, 1)


def test_what_has_gone_back_is_not_read_again_also_if_it_is_on_its_way() -> None:
    member = Slow()
    items = member.items()
    items.pull([5])
    member.is_slow = True
    coming = items.pull_async([6])
    caches = RowCaches(member.caches)
    caches.outdate()
    member.answer(0)
    assert coming.result().tolist() == [[0, 0]]
    member.is_slow = False
    member.moved()
    items.pull([5, 6])
    assert member.moved() == (0, 2)


# --- own pushes -----------------------------------------------------------------------------------


def test_own_pushes_are_read_at_once_with_plain_sgd_and_nothing_is_asked_for() -> None:
    member = Slow()
    items = member.items()
    items.pull([5])
    member.moved()
    items.push([5, 5, 6], ones(3))
    assert items.pull([5]).tolist() == [[-2, -2]]
    assert member.moved() == (2, 0)
    assert items.push_pull([5], ones(1), [5]).tolist() == [[-3, -3]]
    assert member.moved() == (1, 0)


@for_each(
    "how",
    [
        {"optimizer": optim.adagrad(1.0)},
        {"optimizer": optim.sgd(1.0, weight_decay=0.1)},
        {"optimizer": optim.sgd(1.0, clip_norm=1.0)},
        {"optimizer": optim.sgd(1.0, clip_value=1.0)},
        {"optimizer": optim.sgd(optim.exponential_decay(1.0, decay_rate=0.9, transition_steps=5))},
        {"push_codec": "bf16"},
    ],
)
def test_what_only_servers_can_compute_is_asked_for_after_a_push(how: dict[str, Any]) -> None:
    member = Slow(**how)
    items = member.items()
    items.pull([5, 6])
    member.moved()
    items.push([5], ones(1))
    items.pull([5, 6])
    assert member.moved() == (1, 1)
    with pytest.raises(ConfigurationError, match="read_own=False"):
        member.items(defer=True)


def test_a_push_in_a_codec_of_its_own_is_asked_for() -> None:
    member = Slow()
    items = member.items(defer=True)
    items.pull([5])
    items.pull([5])
    member.moved()
    items.push([5], ones(1), codec="int8")
    items.pull([5])
    assert member.moved() == (1, 1)


def test_a_worker_that_need_not_read_its_own_pushes_goes_on_with_what_it_has() -> None:
    member = Slow(optim.adagrad(1.0))
    items = member.items(staleness=2, read_own=False)
    reads, asked = [], []
    for _ in range(6):
        reads.append(float(items.pull([5])[0, 0]))
        asked.append(member.moved()[1])
        items.push([5], ones(1))
        assert member.moved() == (1, 0)
    assert reads == [0, 0, 0, -3, -3, -3]
    assert asked == [1, 0, 0, 1, 0, 0]


def test_a_row_that_is_pushed_while_it_is_asked_for_is_asked_for_again() -> None:
    member = Slow()
    items = member.items()
    member.is_slow = True
    before = items.pull_async([5])
    pushed = items.push_async([5], ones(1))
    member.answer(0)
    member.answer(0)
    pushed.result()
    assert before.result().tolist() == [[0, 0]]
    member.is_slow = False
    assert items.pull([5]).tolist() == [[-1, -1]]


@for_each("defer", [False, True])
def test_a_push_that_failed_is_not_read(defer: bool) -> None:
    member = Slow()
    items = member.items(defer=defer)
    items.pull([5])
    member.error = DeadlineError(operation="push", seconds=1.0, waiting_for="nobody")
    with pytest.raises(DeadlineError):
        items.push([5], ones(1))
    assert items.pull([5]).tolist() == [[0, 0]]


def test_a_push_that_was_withdrawn_is_not_read() -> None:
    member = Slow()
    items = member.items()
    items.pull([5])
    member.is_slow = True
    future = items.push_async([5], ones(1))
    del member.rows[5]  # nothing of it has left
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    member.is_slow = False
    member.waiting.clear()
    assert items.pull([5]).tolist() == [[0, 0]]


@for_each("defer", [False, True])
def test_rows_that_are_loaded_are_read(defer: bool) -> None:
    member = Slow()
    items = member.items(defer=defer)
    items.pull([5])
    items.pull([5])
    items.push([5], ones(1))  # before the load, also where it is kept
    items.load([5], 9 * ones(1))
    assert items.pull([5]).tolist() == [[9, 9]]


def test_a_push_that_is_refused_changes_nothing_here() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
        worker.init({}, tables={"t": table(2, optimizer=SGD)}, mode="async", timeout=PATIENCE)
        items = worker.table("t", cache=row_cache(10, defer=True))
        items.pull([5], timeout=PATIENCE)
        items.pull([5], timeout=PATIENCE)
        with pytest.raises(NonFiniteGradientError, match=r"t\[5\]"):
            items.push([5], np.full((1, 2), np.nan), timeout=PATIENCE)
        assert items.pull([5], timeout=PATIENCE).tolist() == [[0, 0]]
        assert items.cache_statistics().deferred == 0


# --- gradients that are deferred ------------------------------------------------------------------


def test_gradients_of_rows_that_are_read_again_are_sent_as_one_after_so_many_clocks() -> None:
    member = Slow()
    items = member.items(staleness=3, defer=True)
    sent = []
    for step in range(9):
        assert items.pull([5]).tolist() == [[-step, -step]]
        member.moved()
        items.push([5], ones(1))
        sent.append(member.moved()[0])
    # the first is sent at once, for the row was read once; then as one when the row is to be asked for anew
    assert sent == [1, 0, 0, 1, 0, 0, 0, 1, 0]
    assert member.rows[5][0] == -8
    statistics = items.cache_statistics()
    assert (statistics.deferred, statistics.sent) == (8, 2)
    assert statistics.bytes_saved == (statistics.hits + 5) * 16  # one is kept yet


def test_what_is_kept_of_rows_that_make_way_is_sent() -> None:
    member = Slow()
    items = member.items(2, defer=True)
    items.pull([5])
    items.pull([5])
    items.push([5], ones(1))
    assert 5 not in member.rows
    for number in range(10, 40):  # rows that come once; in the end what was hot makes way, too
        items.pull([number, number + 100])
        if 5 in member.rows:
            break
    assert member.rows[5].tolist() == [-1, -1]
    assert items.cache_statistics().evicted >= 1


def test_what_is_kept_is_sent_by_a_flush_and_once() -> None:
    member = Slow()
    items = member.items(defer=True)
    items.flush()
    items.pull([5, 6])
    items.pull([5, 6])
    items.push([5, 6], ones(2))
    member.moved()
    items.flush()
    items.flush()
    assert member.moved() == (2, 0)
    assert member.rows[5].tolist() == [-1, -1]
    assert items.pull([5]).tolist() == [[-1, -1]]
    assert member.moved() == (0, 0)
    items.push([5], ones(1))
    assert len(items) == 2  # what asks of all rows counts those that are kept
    assert member.rows[5].tolist() == [-2, -2]


def test_a_flush_tells_of_what_was_not_applied(caplog: pytest.LogCaptureFixture) -> None:
    member = Slow()
    items = member.items(2, staleness=1, defer=True)
    items.pull([5])
    items.pull([5])
    items.push([5], ones(1))
    member.error = DeadlineError(operation="push", seconds=1.0, waiting_for="nobody")
    with caplog.at_level(logging.WARNING):
        items.pull([5])
        items.pull([5])  # it was due: sent by a pull, that is right
    assert "were not applied" in caplog.text
    assert items.pull([5]).tolist() == [[0, 0]]
    with pytest.raises(DeadlineError):
        items.flush()
    items.flush()


def test_a_push_of_which_something_is_kept_cannot_be_withdrawn() -> None:
    member = Slow()
    items = member.items(defer=True)
    items.pull([5])
    items.pull([5])
    member.is_slow = True
    future = items.push_async([5, 6], ones(2))
    assert not future.cancel()
    member.answer(0)
    assert future.result() is None
    begins(zmqps.Table.flush)(items)
    assert {number: row.tolist() for number, row in member.rows.items()} == {5: [-1, -1], 6: [-1, -1]}


def test_a_close_does_not_wait_for_a_call_that_it_has_interrupted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("zmqps.client.sparse.row_cache.FAREWELL_S", 0.01)
    member = Slow()
    items = member.items(defer=True)
    cache = member.caches["items"]
    with cache._lock:  # as a signal handler would find it
        cache.leave(Call(member, member.requests.table("items"), None))
    assert "in use" in caplog.text
    items.pull([5])
    items.pull([5])
    items.push([5], ones(1))
    member.is_slow = True
    cache.leave(Call(member, member.requests.table("items"), None))
    assert "were not applied in time" in caplog.text
    with pytest.raises(ClosedError):
        items.pull([5])
