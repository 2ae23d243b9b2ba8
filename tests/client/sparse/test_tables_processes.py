"""Sparse tables on a cluster of processes: exact although a worker dies, beside all else, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.modes import MODES
from tests.pace import stretch
from tests.team import PATIENCE, Team
from zmqps import optim
from zmqps.core.job.tables import NUM_BUCKETS
from zmqps.core.protocol.arrays import Array
from zmqps.errors import (
    ConfigurationError,
    DeadlineError,
    DtypeError,
    IdentityError,
    JobMismatchError,
    NonFiniteGradientError,
    ShapeError,
    TableFullError,
    UnknownParameterError,
)
from zmqps.initial import constant, normal
from zmqps.nodes.inquiry import inquire, run_blocking
from zmqps.rows.hashing import buckets_of, seed_of
from zmqps.worker import JOB_VARIABLE

pytestmark = pytest.mark.processes

#: A wait that is not to succeed is given up after so many seconds.
SHORTLY = 0.3
SGD = optim.sgd(1.0)
ONE_TABLE = {"items": zmqps.table(2, optimizer=SGD)}


@pytest.fixture(scope="module")
def pair() -> Iterator[zmqps.LocalCluster]:
    """Two servers for all tests; the first message about rows makes a server compile, which it may take seconds for."""
    limits = zmqps.Limits(heartbeat_interval=0.1, heartbeat_timeout=stretch(6.0), slice_size=4096)
    with zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy"), limits=limits) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let each test have a job of its own on the cluster; return its name."""
    name = f"job {zlib.crc32(request.node.name.encode()):x}"
    monkeypatch.setenv(JOB_VARIABLE, name)
    return name


def rows(number: int, value: float = 1.0, dim: int = 2) -> Array:
    return np.full((number, dim), value, np.float32)


def wait_until(cluster: zmqps.LocalCluster, good: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
    return run_blocking(inquire(cluster.address, timeout=PATIENCE, until=good))


# --- exact sums ---------------------------------------------------------------------------------

PUSHES, SHARED = 300, 30
#: Pushes to both shards, eight at a time, from where its last life has come to on each of them. It says how many are
#: done; the one that is told to stops with some under way, to be killed.
VICTIM = """
import sys, json
from collections import deque
import numpy as np, zmqps
address, pushes, stops_after, ids, grads = sys.argv[1], *map(json.loads, sys.argv[2:])
with zmqps.connect(address, name="victim", timeout=20) as worker:
    worker.init({}, tables={"items": zmqps.table(2, optimizer=zmqps.optim.sgd(1.0))}, mode="async", timeout=20)
    table = worker.table("items")
    counts = table.pull([own[0] for own in ids])[:, 0].astype(int).tolist()
    print(json.dumps(counts), flush=True)
    under_way = deque()
    while min(counts) < pushes:
        some, theirs = [], []
        for shard, count in enumerate(counts):
            if count < pushes:
                some += ids[shard]
                theirs += grads[shard][count]
                counts[shard] += 1
        under_way.append((list(counts), table.push_async(some, np.repeat(np.float32(theirs), 2).reshape(-1, 2))))
        if max(counts) == stops_after:
            print(json.dumps("stopped"), flush=True)
            sys.stdin.read()
        while len(under_way) == 8 or (under_way and min(counts) == pushes):
            done, future = under_way.popleft()
            future.result()
            print(json.dumps(done), flush=True)
"""


def victim(cluster: zmqps.LocalCluster, stops_after: int, ids: list[list[int]], grads: Array) -> subprocess.Popen[str]:
    arguments = [cluster.address, *map(json.dumps, (PUSHES, stops_after, ids, grads.tolist()))]
    command = [sys.executable, "-c", VICTIM, *arguments]
    return subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def told(process: subprocess.Popen[str]) -> Any:
    """Return how many pushes to each shard a victim knows of, or that it has stopped."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def test_sums_are_exact_although_a_worker_is_killed_in_the_middle_of_its_pushes(pair: zmqps.LocalCluster) -> None:
    candidates = np.arange(10_000, 20_000)
    shards = (buckets_of(candidates, seed_of("buckets", "items")) >= NUM_BUCKETS // 2).astype(int)
    own = [candidates[shards == shard][:SHARED].tolist() for shard in range(2)]
    rng = np.random.default_rng(0)
    grads = rng.integers(-3, 4, (2, PUSHES, SHARED)).astype(np.float32)
    grads[:, :, 0] = -1.0  # the first row of each shard counts its pushes: a message is applied as a whole
    shared = np.array([*own[0][1:], *own[1][1:]])
    others = rng.integers(-3, 4, (2, 100, shared.size, 2)).astype(np.float32)

    def train(worker: zmqps.Worker) -> None:
        for mine in others[worker.rank]:
            worker.table("items").push(shared, mine, timeout=PATIENCE)

    with Team(pair.address, 2, {}, tables=ONE_TABLE, mode="async") as team:
        items, first = team.workers[0].table("items"), victim(pair, PUSHES // 2, own, grads)
        known = told(first)
        assert known == [0, 0]
        try:
            while (said := told(first)) != "stopped":
                known = said
        finally:
            first.kill()  # with pushes under way
            first.communicate()
        wait_until(pair, lambda status: any(gone["pid"] == first.pid for gone in status["gone"]))
        applied = items.pull([own[0][0], own[1][0]], timeout=PATIENCE)[:, 0].astype(int).tolist()
        assert all(count <= there <= PUSHES // 2 for count, there in zip(known, applied, strict=True))
        for shard, there in enumerate(applied):
            expected = -grads[shard, :there].sum(axis=0)
            np.testing.assert_array_equal(items.pull(own[shard], timeout=PATIENCE)[:, 1], expected)
        second = victim(pair, 10**9, own, grads)
        try:
            assert told(second) == applied
            team.all(train)
            said, _ = second.communicate(timeout=PATIENCE)
        finally:
            second.kill()
            second.wait()
        assert second.returncode == 0
        assert json.loads(said.splitlines()[-1]) == [PUSHES, PUSHES]
        sums = {number: -grads[shard, :, at].sum() for shard in range(2) for at, number in enumerate(own[shard])}
        expected = np.repeat([sums[number] for number in shared.tolist()], 2).reshape(-1, 2) - others.sum(axis=(0, 1))
        for worker in team.workers:
            np.testing.assert_array_equal(worker.table("items").pull(shared, timeout=PATIENCE), expected)
        assert len(items) == 2 * SHARED


# --- what there is in a job ---------------------------------------------------------------------


def test_tables_and_parameters_are_trained_in_one_step(pair: zmqps.LocalCluster) -> None:
    tables = {"items": zmqps.table(2, optimizer=SGD), "users": zmqps.table(3, optimizer=optim.sgd(0.5))}
    start = {"w": np.zeros(3000, np.float32), "b": np.zeros(3)}
    options: dict[str, Any] = {"optimizer": SGD, "tables": tables, "mode": "sync", "workers": 2}
    with Team(pair.address, 2, start, **options) as team:

        def step(worker: zmqps.Worker) -> tuple[Any, ...]:
            items, users = worker.table("items"), worker.table("users")
            items.push([1, 2 + worker.rank], rows(2), examples=1 + 2 * worker.rank, timeout=PATIENCE)
            users.push([-1, -1], rows(2, dim=3), timeout=PATIENCE)
            version = worker.push_pull({name: np.ones_like(value) for name, value in start.items()}).version
            return version, worker.pull()["w"][0], items.pull([1, 2, 3])[:, 0].tolist(), users.pull(-1).tolist()

        for number in (1, 2):
            found = [number, -number, [-number, -0.25 * number, -0.75 * number], [-number] * 3]
            assert [list(told) for told in team.all(step)] == [found] * 2


def test_a_step_may_leave_out_tables_parameters_and_workers(pair: zmqps.LocalCluster) -> None:
    options: dict[str, Any] = {"optimizer": SGD, "tables": ONE_TABLE, "mode": "sync", "workers": 2}
    with Team(pair.address, 2, {"w": np.zeros(3)}, **options) as team:
        one, other = team.workers
        one.table("items").push([7], rows(1), step=True, timeout=PATIENCE)
        other.push({"w": np.ones(3)}, timeout=PATIENCE)
        assert one.pull(timeout=PATIENCE)["w"].tolist() == [-1.0] * 3
        assert other.table("items").pull([7], timeout=PATIENCE).tolist() == [[-1.0, -1.0]]
        one.table("items").push([7], rows(1, 4.0), timeout=PATIENCE)
        team.all(lambda worker: worker.skip(timeout=PATIENCE))
        assert [worker.table("items").pull(7, timeout=PATIENCE).tolist() for worker in team.workers] == [[-1.0] * 2] * 2
        one.table("items").push([7], rows(1, 4.0), timeout=PATIENCE)
        other.table("items").push([], rows(0), examples=3, timeout=PATIENCE)
        team.all(lambda worker: worker.advance(timeout=PATIENCE))
        assert other.table("items").pull(7, timeout=PATIENCE).tolist() == [-2.0, -2.0], "a quarter of the examples"


def test_a_job_may_have_one_table_and_nothing_else(pair: zmqps.LocalCluster) -> None:
    with Team(pair.address, 2, {}, tables=ONE_TABLE, mode="sync", workers=2) as team:

        def step(worker: zmqps.Worker) -> Array:
            found: Array = worker.table("items").push_pull([1 + worker.rank], rows(1), [1, 2, 3], timeout=PATIENCE)
            return found

        for number in (1, 2, 3):
            for found in team.all(step):
                assert found[:, 0].tolist() == [-0.5 * number, -0.5 * number, 0.0]
        assert team.workers[0].statistics().clock == 3


def test_the_last_push_of_several_tables_ends_the_step_where_it_says_so(pair: zmqps.LocalCluster) -> None:
    tables = {name: zmqps.table(2, optimizer=SGD) for name in "abc"}
    with Team(pair.address, 2, {}, tables=tables, mode="sync", workers=2) as team:

        def step(worker: zmqps.Worker) -> list[float]:
            for name in "abc":
                worker.table(name).push([5], rows(1, ord(name)), step=name == "c", timeout=PATIENCE)
            return [float(worker.table(name).pull(5, timeout=PATIENCE)[0]) for name in "abc"]

        assert team.all(step) == [[-97.0, -98.0, -99.0]] * 2


def test_a_push_pull_is_one_request_to_each_server(pair: zmqps.LocalCluster, job: str) -> None:
    def counted(status: Mapping[str, Any], name: str) -> int:
        return sum(int(counters.get(name, 0)) for counters in status["jobs"][job]["servers"].values())

    with zmqps.connect(pair.address) as worker:
        worker.init({}, tables=ONE_TABLE, mode="async", timeout=PATIENCE)
        items, ids = worker.table("items"), np.arange(200)
        found = items.push_pull(ids, rows(200), ids + 100, timeout=PATIENCE)
        assert found[:, 0].tolist() == [-1.0] * 100 + [0.0] * 100
        assert (worker.statistics().pushes, worker.statistics().pulls) == (1, 1)
        status = wait_until(pair, lambda status: counted(status, "pushes") >= 2)
        assert (counted(status, "pushes"), counted(status, "pulls")) == (2, 0)
        items.pull(ids, timeout=PATIENCE)
        status = wait_until(pair, lambda status: counted(status, "pulls") >= 2)
        assert (counted(status, "pushes"), counted(status, "pulls")) == (2, 2)
        sent = worker.statistics()
        assert sent.bytes_sent == 200 * 8 + 200 * 8 + 200 * (8 + 8), "ids pushed, wanted and pulled, and gradients"
        assert sent.bytes_received == 2 * 200 * 8


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_rows_go_into_arrays_of_any_floating_dtype(dtype: str, mode: str, pair: zmqps.LocalCluster) -> None:
    with zmqps.connect(pair.address) as worker:
        worker.init({}, tables=ONE_TABLE, **MODES[mode], workers=1, timeout=PATIENCE)
        items = worker.table("items")
        out = np.full((2, 2, 2), 9.0, dtype)
        assert items.push_pull([3, 4], rows(2, -1.5), [[3, 4], [4, 5]], out=out, timeout=PATIENCE) is out
        assert out[..., 0].tolist() == [[1.5, 1.5], [1.5, 0.0]]
        apart = np.full((3, 4), 9.0, dtype)[:, ::2]
        assert items.pull([5, 3, 4], out=apart, timeout=PATIENCE) is apart
        assert apart.tolist() == [[0.0, 0.0], [1.5, 1.5], [1.5, 1.5]]


def test_rows_are_loaded_past_the_optimizer(pair: zmqps.LocalCluster) -> None:
    tables = {"items": zmqps.table(2, optimizer=optim.adagrad(1.0), initial=constant(5.0))}
    ids = np.arange(3000) * -7_777_777_777
    values = np.random.default_rng(2).standard_normal((3000, 2)).astype(np.float32)
    with zmqps.connect(pair.address) as worker:
        worker.init({}, tables=tables, mode="async", timeout=PATIENCE)
        items = worker.table("items")
        items.load(ids, values, timeout=PATIENCE)
        assert np.array_equal(items.rows(ids), values)
        assert items.pull(1).tolist() == [5.0, 5.0]
        assert len(items) == 3000
        found = {number: row for some, chunk in items.chunks(700) for number, row in zip(some, chunk, strict=True)}
        assert np.array_equal([found[number] for number in ids], values)
        items.push(ids[:1], rows(1, 3.0))
        assert np.allclose(items.pull(ids[0]), values[0] - 1.0), "the first step of a rule that had seen nothing"


def test_of_workers_that_load_a_row_in_a_step_the_first_has_its_way(pair: zmqps.LocalCluster) -> None:
    with Team(pair.address, 2, {}, tables=ONE_TABLE, mode="sync", workers=2) as team:

        def step(worker: zmqps.Worker) -> Array:
            items = worker.table("items")
            items.load([1, 2 + worker.rank], rows(2, 10.0 + worker.rank), timeout=PATIENCE)
            assert not items.pull([1, 2, 3], timeout=PATIENCE).any(), "the step is not over"
            items.push([4], rows(1), timeout=PATIENCE)
            found: Array = items.pull([1, 2, 3, 4], timeout=PATIENCE)
            return found

        for found in team.all(step):
            assert found[:, 0].tolist() == [10.0, 10.0, 11.0, -1.0]


def test_statistics_are_those_of_all_servers_and_reading_makes_no_rows(pair: zmqps.LocalCluster) -> None:
    with zmqps.connect(pair.address) as worker:
        worker.init({}, tables=ONE_TABLE, mode="async", timeout=PATIENCE)
        items = worker.table("items")
        assert items.statistics() == zmqps.TableStatistics(bytes=items.statistics().bytes)
        items.push(np.arange(1000), rows(1000))
        items.pull(np.arange(900, 1500))
        found = items.statistics()
        assert (found.rows, found.new, found.hits, found.misses) == (1000, 1000, 100, 500)
        assert found.refused == found.expired == found.evicted == found.waiting == 0
        assert found.bytes >= 1000 * (8 + 8)
        assert len(items) == sum(len(ids) for ids, _ in items) == 1000


def test_observers_may_pull_and_not_push(pair: zmqps.LocalCluster, job: str) -> None:
    with (
        zmqps.connect(pair.address) as worker,
        zmqps.connect(pair.address, observer=True) as observer,
    ):
        worker.init({}, tables=ONE_TABLE, mode="sync", workers=1, timeout=PATIENCE)
        worker.table("items").push_pull([8], rows(1), [8], timeout=PATIENCE)
        seen = observer.table("items", timeout=PATIENCE)
        assert seen.pull([8, 9], timeout=PATIENCE)[:, 0].tolist() == [-1.0, 0.0]
        assert [ids.tolist() for ids, _ in seen] == [[8]]
        assert len(seen) == 1
        both: list[Callable[[], None]] = [lambda: seen.push([8], rows(1)), lambda: seen.load([8], rows(1))]
        for refused in both:
            with pytest.raises(IdentityError, match="an observer may not push"):
                refused()
        assert seen.pull(8).tolist() == [-1.0, -1.0]


def test_nobody_is_further_ahead_of_the_slowest_than_allowed(pair: zmqps.LocalCluster) -> None:
    bound, steps = 1, 15
    with Team(pair.address, 2, {}, tables=ONE_TABLE, mode="bounded", staleness=bound, workers=2) as team:
        fast, slow = team.workers
        for _ in range(bound + 1):
            fast.table("items").push([1, 2], rows(2), timeout=PATIENCE)
        with pytest.raises(DeadlineError, match="the slowest worker is at clock 0, at most 1 behind is allowed"):
            fast.table("items").pull([1], timeout=SHORTLY)
        slow.table("items").push([1], rows(1), timeout=PATIENCE)
        assert fast.table("items").pull([1, 2], timeout=PATIENCE)[:, 0].tolist() == [-3.0, -2.0], "applied on arrival"
        pushed = [bound + 1, 1]

        def train(worker: zmqps.Worker) -> float:
            items = worker.table("items")
            for clock in range(pushed[worker.rank], steps):
                read = items.pull([1], timeout=PATIENCE)
                assert -read[0, 0] >= 2 * (clock - bound)
                items.push([1], rows(1), timeout=PATIENCE)
            worker.barrier("all have pushed", timeout=PATIENCE)
            return float(items.pull(1, timeout=PATIENCE)[0])

        assert team.all(train) == [-2.0 * steps] * 2
        assert fast.statistics().mode == "bounded"


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_a_row_that_is_not_finite_is_named_with_its_worker_and_nothing_changes(
    mode: str, pair: zmqps.LocalCluster
) -> None:
    with zmqps.connect(pair.address, name="culprit") as worker:
        worker.init({}, tables=ONE_TABLE, **MODES[mode], workers=1, timeout=PATIENCE)
        items, ids = worker.table("items"), np.arange(500)
        items.push(ids, rows(500), timeout=PATIENCE)
        before = items.pull(ids, timeout=PATIENCE)
        grads = rows(600)
        grads[123, 1], grads[550, 0] = np.nan, np.inf
        with pytest.raises(NonFiniteGradientError) as caught:
            items.push(np.arange(600), grads, timeout=PATIENCE)
        assert "'items[123]'" in str(caught.value)
        assert "'items[550]'" in str(caught.value)
        assert "culprit" in str(caught.value)
        with pytest.raises(ConfigurationError, match=r"items\[7\] contains NaN or infinity"):
            items.load([6, 7], [[1.0, 1.0], [np.nan, 1.0]], timeout=PATIENCE)
        assert np.array_equal(items.pull(ids, timeout=PATIENCE), before)
        assert len(items) == 500
        assert worker.statistics().nonfinite == 1
        items.push(ids, rows(500), timeout=PATIENCE)
        assert np.array_equal(items.pull(ids, timeout=PATIENCE), before - 1.0)


def test_infinity_is_applied_where_it_is_allowed(pair: zmqps.LocalCluster) -> None:
    with zmqps.connect(pair.address) as worker:
        worker.init({}, tables=ONE_TABLE, mode="async", gradients=zmqps.Gradients(nonfinite="allow"), timeout=PATIENCE)
        found = worker.table("items").push_pull([1, 2], [[np.inf, 1.0], [np.nan, 1.0]], [1, 2], timeout=PATIENCE)
        assert found[:, 1].tolist() == [-1.0, -1.0]
        assert found[0, 0] == -np.inf
        assert np.isnan(found[1, 0])


def test_what_is_wrong_with_ids_and_gradients_is_said_and_nothing_is_sent(pair: zmqps.LocalCluster) -> None:
    with zmqps.connect(pair.address) as worker:
        worker.init({}, tables=ONE_TABLE, mode="async", push_codec="topk:fraction=0.1", timeout=PATIENCE)
        items = worker.table("items")
        with pytest.raises(ShapeError, match=r"gradients for items.*\(3, 2\), expected \(2, 2\)"):
            items.push([1, 2], rows(3))
        with pytest.raises(ShapeError, match=r"expected \(1, 2\)"):
            items.pull([1], out=np.zeros((2, 2)))
        for wrong in ([1.0, 2.0], np.array([1.0, 2.0], np.float32), [True, False], None):
            with pytest.raises(DtypeError, match="ids for items"):
                items.push(wrong, rows(2))
        for codec in ("topk:fraction=0.1", zmqps.codecs.onebit(), "twobit"):
            with pytest.raises(ConfigurationError, match=f"rows travel in {zmqps.codecs.for_values()}"):
                items.push([1, 2], rows(2), codec=codec)
        with pytest.raises(UnknownParameterError, match="did you mean 'items'"):
            worker.table("itens")
        sent = worker.statistics()
        assert (sent.pushes, sent.pulls, sent.bytes_sent) == (0, 0, 0)
        items.push(range(2000), rows(2000))  # the job's codec is not for rows: they go as they are
        assert (items.pull(range(2000)) == -1.0).all()


def test_who_has_other_tables_does_not_join_the_job(pair: zmqps.LocalCluster) -> None:
    tables = {"items": zmqps.table(2, optimizer=SGD, admit=1), "users": zmqps.table(3, optimizer=SGD)}
    different: list[tuple[dict[str, Any], str]] = [
        ({"items": tables["items"]}, "table 'users'.*no such table"),
        ({**tables, "more": tables["users"]}, "table 'more'.*has no such table"),
        ({**tables, "items": zmqps.table(4, optimizer=SGD)}, "table 'items'.*has dim 2.*has dim 4"),
        ({**tables, "users": zmqps.table(3, optimizer=optim.sgd(2.0))}, "table 'users'.*optimizer"),
        ({**tables, "items": zmqps.table(2, optimizer=SGD, initial=normal(1.0))}, "table 'items'.*initial"),
    ]
    with zmqps.connect(pair.address) as worker, zmqps.connect(pair.address) as other:
        worker.init({}, tables=tables, mode="async", timeout=PATIENCE)
        for mine, said in different:
            with pytest.raises(JobMismatchError, match=said):
                other.init({}, tables=mine, mode="async", timeout=PATIENCE)
        other.init({}, tables=dict(reversed(tables.items())), mode="async", timeout=PATIENCE)
        worker.table("users").push([1], rows(1, dim=3), timeout=PATIENCE)
        assert other.table("users").pull(1, timeout=PATIENCE).tolist() == [-1.0] * 3, "their order does not matter"


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_table_without_room_says_so_and_its_servers_go_on(mode: str, pair: zmqps.LocalCluster, job: str) -> None:
    tables = {"tiny": zmqps.table(2, optimizer=SGD, capacity_nbytes=1), "items": ONE_TABLE["items"]}
    options: dict[str, Any] = {"optimizer": SGD, "tables": tables, **MODES[mode], "workers": 1}
    before = pair.pids
    with zmqps.connect(pair.address) as worker:
        worker.init({"w": np.zeros(3)}, timeout=PATIENCE, **options)
        tiny, ids = worker.table("tiny"), np.arange(50)
        for _ in range(3):
            with pytest.raises(TableFullError, match=r"table 'tiny' has no room for \d+ new rows on this server"):
                tiny.push(ids, rows(50), timeout=PATIENCE)
        with pytest.raises(TableFullError):
            tiny.load(ids, rows(50), timeout=PATIENCE)
        worker.table("items").push(ids, rows(50), timeout=PATIENCE)
        worker.push({"w": np.ones(3)}, timeout=PATIENCE)
        assert worker.pull(timeout=PATIENCE)["w"].tolist() == [-1.0] * 3
        assert (worker.table("items").pull(ids, timeout=PATIENCE) == -1.0).all()
        assert not tiny.pull(ids, timeout=PATIENCE).any()
        found = tiny.statistics()
        assert (found.rows, found.new, found.refused) == (0, 0, 4 * 50)
        assert pair.pids == before
        for pid in before.values():
            os.kill(pid, 0)
