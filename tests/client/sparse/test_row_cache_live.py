"""Caches of rows with real servers: every gradient is applied once, and no read is older than its mode allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.modes import MODES
from tests.team import PATIENCE, Team
from zmqps import optim, row_cache
from zmqps.client.sparse.tables import table
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.errors import ClosedError, ConfigurationError

pytestmark = pytest.mark.processes

SGD = optim.sgd(1.0)
DIM = 3
TABLES = {"t": table(DIM, optimizer=SGD)}
IDS = np.arange(100)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with InProcessCluster(servers=2) as cluster:
        yield cluster.address


def whole(rng: np.random.Generator, number: int) -> tuple[Array, Array]:
    """Return ids by Zipf's law, and gradients of small whole numbers, whose sums have no rounding."""
    return rng.zipf(1.3, number) % len(IDS), rng.integers(-3, 4, (number, DIM)).astype(np.float32)


def train(worker: zmqps.Worker, **options: Any) -> Array:
    """Push for some steps; return the sum of all gradients."""
    items, rng = worker.table("t", cache=row_cache(20, **options)), np.random.default_rng(worker.rank)
    total = np.zeros((len(IDS), DIM))
    following = whole(rng, 30)
    for step in range(80):
        (ids, grads), following = following, whole(rng, 30)
        np.add.at(total, ids, grads)
        if step % 3 == 0:
            items.push_pull(ids, grads, following[0], timeout=PATIENCE)
            continue
        coming = items.pull_async(following[0], timeout=PATIENCE)
        items.push(ids, grads, timeout=PATIENCE)
        coming.result(PATIENCE)
    return total


@pytest.mark.parametrize("defer", [True, False])
@pytest.mark.parametrize("read_own", [True, False])
def test_all_gradients_of_several_workers_are_applied_once(read_own: bool, defer: bool) -> None:
    with InProcessCluster(servers=2) as cluster, Team(cluster.address, 3, {}, tables=TABLES, mode="async") as team:
        totals = team.all(lambda worker: train(worker, staleness=3, defer=defer, read_own=read_own))
        statistics = [worker.table("t").cache_statistics() for worker in team.workers]
        assert all(bool(figures.deferred) == defer for figures in statistics)
        assert all(figures.hits > 0 and figures.evicted > 0 for figures in statistics)
        team.all(lambda worker: worker.table("t").flush(timeout=PATIENCE))
        assert np.array_equal(team.workers[0].table("t").rows(IDS, timeout=PATIENCE), -sum(totals))


def test_a_worker_reads_its_own_pushes_all_the_while(address: str) -> None:
    with zmqps.connect(address, job="own", timeout=PATIENCE) as worker:
        worker.init({}, tables=TABLES, mode="async", timeout=PATIENCE)
        items = worker.table("t", cache=row_cache(20, staleness=3, defer=True))
        rng, expected = np.random.default_rng(0), np.zeros((len(IDS), DIM), np.float32)
        for step in range(100):
            ids, grads = whole(rng, 20)
            coming = items.pull_async(ids, timeout=PATIENCE)
            before = expected[ids].copy()
            np.subtract.at(expected, ids, grads)
            following, _ = whole(rng, 20)
            pushed = items.push_pull_async(ids, grads, following, timeout=PATIENCE)
            assert np.array_equal(coming.result(PATIENCE), before), step
            assert np.array_equal(pushed.result(PATIENCE), expected[following]), step
        assert np.array_equal(items.rows(IDS, timeout=PATIENCE), expected)


@pytest.mark.parametrize("staleness", [1, 4])
def test_no_read_of_a_bounded_worker_is_older_than_the_job_allows(staleness: int) -> None:
    """Each worker adds one to a row of its own in each step, and reads those of all: they tell its clock."""
    steps, workers = 60, 3
    options = {"tables": {"t": table(DIM, optimizer=SGD)}, "mode": "bounded", "staleness": staleness}
    with InProcessCluster(servers=2, workers=workers) as cluster, Team(cluster.address, workers, {}, **options) as team:

        def work(worker: zmqps.Worker) -> tuple[list[Array], int]:
            items, reads = worker.table("t", cache=row_cache(50)), []
            for step in range(steps):
                reads.append(items.pull(np.arange(workers), timeout=PATIENCE)[:, 0])
                assert reads[-1][worker.rank] == step  # its own are all there
                items.push([worker.rank], -np.ones((1, DIM)), timeout=PATIENCE)  # which ends the step
            hits = items.cache_statistics().hits
            worker.finish(timeout=PATIENCE)
            return reads, hits

        for reads, hits in team.all(work):
            assert hits > 0
            for step, row in enumerate(reads):
                assert row.min() >= step - staleness


def test_what_was_read_while_another_worker_was_far_behind_is_soon_asked_for_again() -> None:
    options = {"tables": TABLES, "mode": "bounded", "staleness": 2}
    with InProcessCluster(servers=1, workers=2) as cluster, Team(cluster.address, 2, {}, **options) as team:
        ahead, behind = [worker.table("t") for worker in team.workers]
        ahead = team.workers[0].table("t", cache=row_cache(50))
        nothing = np.zeros((1, DIM))
        for _ in range(2):
            ahead.push([0], nothing, timeout=PATIENCE)
        assert ahead.pull([7], timeout=PATIENCE)[0, 0] == 0.0  # at clock 2; the other one is at clock 0
        for _ in range(3):
            behind.push([7], -np.ones((1, DIM)), timeout=PATIENCE)
        assert ahead.pull([7], timeout=PATIENCE)[0, 0] == 0.0
        ahead.push([0], nothing, timeout=PATIENCE)
        assert ahead.pull([7], timeout=PATIENCE)[0, 0] == 3.0  # at clock 3, where the one of clock 1 must be there
        asked = ahead.cache_statistics().misses
        for _ in range(2):  # now it knows that the other one is at clock 3
            ahead.push([0], nothing, timeout=PATIENCE)
            ahead.pull([7], timeout=PATIENCE)
        assert ahead.cache_statistics().misses == asked


def test_held_steps_count_for_what_may_be_read(address: str) -> None:
    """A step that is submitted and not over yet is one that a read comes after: alone, a worker is never held back."""
    with zmqps.connect(address, job="held", timeout=PATIENCE) as worker:
        worker.init({}, tables=TABLES, mode="bounded", staleness=2, timeout=PATIENCE)
        items = worker.table("t", cache=row_cache(50))
        items.pull([1], timeout=PATIENCE)
        pushes = [items.push_async([2], np.zeros((1, DIM)), timeout=PATIENCE) for _ in range(5)]
        asked = items.cache_statistics().misses
        items.pull([1], timeout=PATIENCE)
        assert items.cache_statistics().misses == asked + 1  # five steps later, of which two are allowed
        for push in pushes:
            push.result(PATIENCE)


@pytest.mark.parametrize(
    ("mode", "options", "says"),
    [
        ({"mode": "sync"}, {}, "synchronous training has no cache"),
        ({"mode": "bounded", "staleness": 2}, {"staleness": 3}, "at most 2 clocks old"),
        ({"mode": "bounded", "staleness": 2}, {"defer": True}, "not deferred"),
    ],
)
def test_what_does_not_go_with_the_mode_is_refused(
    address: str, mode: dict[str, int], options: dict[str, Any], says: str
) -> None:
    with zmqps.connect(address, job=says.replace(" ", "-"), timeout=PATIENCE) as worker:
        worker.init({}, tables=TABLES, workers=1, timeout=PATIENCE, **mode)
        with pytest.raises(ConfigurationError, match=says):
            worker.table("t", cache=row_cache(10, **options))
        with pytest.raises(ConfigurationError, match=r"zmqps\.row_cache"):
            worker.table("t", cache=100)  # type: ignore[arg-type]
        assert worker.table("t").pull([1], timeout=PATIENCE).shape == (1, DIM)


def keep_something(worker: zmqps.Worker) -> None:
    """Push a one that is not sent."""
    items = worker.table("t", cache=row_cache(10, staleness=100, defer=True))
    for _ in range(2):
        items.pull([7], timeout=PATIENCE)
    items.push([7], -np.ones((1, DIM)), timeout=PATIENCE)
    assert items.cache_statistics().sent == 0


def checkpoint(worker: zmqps.Worker) -> None:
    """Ask for a checkpoint, for which this cluster has no place: what it is to have is sent before."""
    with pytest.raises(ConfigurationError):
        worker.checkpoint(timeout=PATIENCE)


ENDS: dict[str, Callable[[zmqps.Worker], Any]] = {
    "flush": lambda worker: worker.table("t").flush(timeout=PATIENCE),
    "advance": lambda worker: worker.advance(timeout=PATIENCE),
    "skip": lambda worker: worker.skip(timeout=PATIENCE),
    "checkpoint": checkpoint,
    "finish": lambda worker: worker.finish(timeout=PATIENCE),
    "finish by a future": lambda worker: worker._exchanges.finish(DepartureCause.FINISHED, PATIENCE).result(PATIENCE),
    "drain": lambda worker: worker._exchanges.finish(DepartureCause.DRAINED, PATIENCE).result(PATIENCE),
    "close": lambda worker: worker.close(timeout=PATIENCE),
    "no cache": lambda worker: worker.table("t", cache=row_cache(0)),
    "another cache": lambda worker: worker.table("t", cache=row_cache(5)),
    "rows": lambda worker: worker.table("t").rows([1], timeout=PATIENCE),
    "iteration": lambda worker: list(worker.table("t")),
}


@pytest.mark.parametrize("how", ENDS)
def test_what_is_kept_is_sent_at_the_end(address: str, how: str) -> None:
    job = f"end-{how.replace(' ', '-')}"
    with zmqps.connect(address, job=job, timeout=PATIENCE) as other:
        with zmqps.connect(address, job=job, timeout=PATIENCE) as worker:
            for one in (other, worker):
                one.init({}, tables=TABLES, mode="async", timeout=PATIENCE)
            keep_something(worker)
            assert other.table("t").rows([7], timeout=PATIENCE)[0, 0] == 0.0
            ENDS[how](worker)
            if how in ("advance", "skip"):  # which begin it
                worker.table("t").rows([7], timeout=PATIENCE)
            assert other.table("t").rows([7], timeout=PATIENCE)[0, 0] == 1.0


def test_a_worker_that_begins_a_new_life_has_lost_what_it_kept(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        zmqps.connect(address, job="again", timeout=PATIENCE) as other,
        zmqps.connect(address, job="again", timeout=PATIENCE) as worker,
    ):
        for one in (other, worker):
            one.init({}, tables=TABLES, mode="async", timeout=PATIENCE)
        keep_something(worker)
        worker.rejoin(timeout=PATIENCE)
        assert "gradients of 1 rows of 't'" in caplog.text
        items = worker.table("t")
        assert items.pull([7], timeout=PATIENCE)[0, 0] == 0.0  # not what it had in its copy
        items.pull([7], timeout=PATIENCE)
        assert items.cache_statistics().hits == 2  # it goes on


def test_a_closed_worker_answers_nothing(address: str) -> None:
    with zmqps.connect(address, job="closed", timeout=PATIENCE) as worker:
        worker.init({}, tables=TABLES, mode="async", timeout=PATIENCE)
        items = worker.table("t", cache=row_cache(10))
        items.pull([7], timeout=PATIENCE)
        worker.close()
        for _ in range(2):
            with pytest.raises(ClosedError):
                items.pull([7])
        assert items.cache_statistics().rows == 1


def test_copies_are_read_no_more_once_the_job_has_gone_back(address: str) -> None:
    with (
        zmqps.connect(address, job="back", timeout=PATIENCE) as other,
        zmqps.connect(address, job="back", timeout=PATIENCE) as worker,
    ):
        for one in (other, worker):
            one.init({}, tables=TABLES, mode="async", timeout=PATIENCE)
        keep_something(worker)
        other.table("t").push([7], np.full((1, DIM), -10.0), timeout=PATIENCE)
        items = worker.table("t")
        assert items.pull([7], timeout=PATIENCE)[0, 0] == 1.0
        gone = Rollback(version=0, shards=(0,), lost=1, state={}, path="somewhere")
        for listener in worker._member.connection.listeners:
            listener(gone)
        assert items.pull([7], timeout=PATIENCE)[0, 0] == 11.0  # with what was kept all the while


def test_an_observer_reads_again_for_so_many_pulls(address: str) -> None:
    with (
        zmqps.connect(address, job="seen", timeout=PATIENCE) as worker,
        zmqps.connect(address, job="seen", observer=True, timeout=PATIENCE) as observer,
    ):
        worker.init({}, tables=TABLES, mode="bounded", staleness=3, timeout=PATIENCE)
        items = observer.table("t", cache=row_cache(10, staleness=2))
        assert items.pull([7], timeout=PATIENCE)[0, 0] == 0.0
        worker.table("t").push([7], -np.ones((1, DIM)), timeout=PATIENCE)
        assert [items.pull([7], timeout=PATIENCE)[0, 0] for _ in range(3)] == [0.0, 0.0, 1.0]


def test_a_worker_that_has_not_called_init_has_no_steps_until_it_does(address: str) -> None:
    with (
        zmqps.connect(address, job="unnamed", timeout=PATIENCE) as worker,
        zmqps.connect(address, job="unnamed", timeout=PATIENCE) as reader,
    ):
        worker.init({}, tables=TABLES, mode="bounded", staleness=2, timeout=PATIENCE)
        items = reader.table("t", cache=row_cache(10), timeout=PATIENCE)
        assert items.pull([7], timeout=PATIENCE)[0, 0] == 0.0
        worker.table("t").push([7], -np.ones((1, DIM)), timeout=PATIENCE)
        assert [items.pull([7], timeout=PATIENCE)[0, 0] for _ in range(3)] == [0.0, 0.0, 1.0]
        worker.table("t").push([7], -np.ones((1, DIM)), timeout=PATIENCE)
        reader.init({}, tables=TABLES, mode="bounded", staleness=2, timeout=PATIENCE)
        assert [items.pull([7], timeout=PATIENCE)[0, 0] for _ in range(5)] == [2.0] * 5
        assert items.cache_statistics().misses == 3


@pytest.mark.parametrize("mode", ["async", "bounded"])
def test_futures_go_on_in_callbacks(address: str, mode: str) -> None:
    with zmqps.connect(address, job=f"callback-{mode}", timeout=PATIENCE) as worker:
        worker.init({}, tables=TABLES, **MODES[mode], timeout=PATIENCE)
        items, told = worker.table("t", cache=row_cache(10)), Future[list[Future[Any]]]()
        items.pull([7], timeout=PATIENCE)

        def go_on(_: Future[Any]) -> None:
            push = items.push_async([7], -np.ones((1, DIM)), timeout=PATIENCE)
            told.set_result([push, items.pull_async([7], timeout=PATIENCE)])

        items.pull_async([8], timeout=PATIENCE).add_done_callback(go_on)
        pushed, pulled = told.result(PATIENCE)
        pushed.result(PATIENCE)
        assert pulled.result(PATIENCE)[0, 0] == 1.0
