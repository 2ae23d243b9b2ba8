"""On one host ordinary arrays are copied once, or not at all: the same values, and the same promises."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.modes import MODES
from tests.net.cluster import PATIENCE, Cluster
from tests.pace import stretch
from tests.tables import for_each, one_in
from zmqps.client import inplace
from zmqps.client.inplace import CopiesOnWrite, Staging
from zmqps.client.tensors import copy_finite
from zmqps.core.protocol.arrays import GATHER_NBYTES, lender_of, received

#: Elements: together more than `STAGED_NBYTES`, and around the ends of slices and of blocks that are copied.
SIZES = (1, 0, 7919, GATHER_NBYTES // 4 + 1, 262_144 + 3, 63)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(servers=2, slice_nbytes=GATHER_NBYTES) as it:
        yield it


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each push that could be staged whether it was."""
    noted: list[bool] = []
    original = Staging.take

    def take(self: Staging, plain: Any) -> Any:
        found = original(self, plain)
        noted.append(found is not None)
        return found

    monkeypatch.setattr(Staging, "take", take)
    return noted


def values(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return whole numbers: sums of them are exact."""
    rng = np.random.default_rng(seed)
    return {f"p{i}": rng.integers(-99, 99, n).astype(("f4", "f8")[i % 2]) * 2 for i, n in enumerate(SIZES)}


def less(params: dict[str, Any], *seeds: int) -> dict[str, Any]:
    return {name: value - sum(values(seed)[name] for seed in seeds) for name, value in params.items()}


def same(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    return got.keys() == expected.keys() and all(np.array_equal(got[name], expected[name]) for name in expected)


def start(worker: zmqps.Worker, **options: Any) -> None:
    worker.init(values(0), optimizer=zmqps.optim.sgd(1.0), **{"mode": "async", **options})
    worker.pull()  # from here on it knows the servers' memory


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["async", "sync", "bounded"])
def test_what_is_pushed_is_what_the_arrays_held_when_the_call_began(
    cluster: Cluster, staged: list[bool], mode: str
) -> None:
    expected, out = values(0), {name: np.empty_like(value) for name, value in values(0).items()}
    with zmqps.connect(cluster.address) as worker:
        start(worker, **MODES[mode])
        grads = values(0)
        for seed in range(1, 7):
            for name, value in values(seed).items():
                grads[name][...] = value
            expected = less(expected, seed)
            if seed % 3 == 0:
                worker.push(grads)
                got = worker.pull()
            else:
                got = worker.push_pull(grads, out=out if seed % 3 == 1 else None)
            for grad in grads.values():
                grad[...] = np.nan
            assert same(got, expected)
        assert staged == [True] * 6
        assert 0 < worker.statistics().shared_bytes
    assert worker.statistics().shared_bytes == 0


@pytest.mark.processes
def test_what_is_not_finite_is_refused_and_changes_nothing(cluster: Cluster, staged: list[bool]) -> None:
    with zmqps.connect(cluster.address) as worker:
        start(worker)
        for position in (0, 262_144, -1):
            grads = values(1)
            grads["p4"][position] = np.inf
            with pytest.raises(zmqps.errors.NonFiniteGradientError, match="'p4'"):
                worker.push_pull(grads)
        assert same(worker.pull(), values(0))
        assert same(worker.push_pull(values(1)), less(values(0), 1))
    assert staged == [False] * 3 + [True]


@pytest.mark.processes
def test_what_cannot_be_staged_goes_as_it_did(cluster: Cluster, staged: list[bool]) -> None:
    with zmqps.connect(cluster.address) as worker:
        start(worker)
        some = {name: value for name, value in values(1).items() if name != "p2"}
        strided = {name: np.repeat(value, 2)[::2] for name, value in values(2).items()}
        other = {name: value.astype(np.float64) for name, value in values(3).items()}
        expected = less(values(0), 1, 2, 3, 4, 5)
        expected["p2"] += values(1)["p2"]
        for grads in (some, strided, other):
            worker.push(grads)
        worker.push(values(4), codec="raw")
        worker.push_async(values(5)).result(PATIENCE)
        assert same(worker.pull(), expected)
    assert staged == [False] * 2 + [True]


@pytest.mark.processes
def test_a_blocking_call_begins_behind_what_was_asked_for_before(cluster: Cluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        start(worker)
        for _ in range(50):
            worker.pull(["p0"])  # from here on the background thread rests
            pushed = worker.push_async({"p0": np.ones(1, np.float32)})
            assert worker.pull(["p0"])["p0"] == values(0)["p0"] - worker.pull(["p0"]).version
            pushed.result(PATIENCE)


@pytest.mark.processes
def test_of_pushes_that_fail_a_few_give_up_their_memory(cluster: Cluster, staged: list[bool]) -> None:
    with zmqps.connect(cluster.address) as one, zmqps.connect(cluster.address) as other:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda worker: start(worker, mode="sync"), (one, other)))
        with pytest.raises(zmqps.errors.ConfigurationError):
            one.push(values(1), examples=0)  # of which nothing was sent
        nbytes = one.statistics().shared_bytes
        assert nbytes > 0
        for number in range(inplace.MOST_PARTED + 2):
            with pytest.raises(zmqps.errors.DeadlineError):
                one.push_pull(values(number), timeout=0.3, step=not number)
            assert one.statistics().shared_bytes == 0
    assert staged == [True] * (inplace.MOST_PARTED + 1) + [False]


@pytest.mark.parametrize(
    "options", one_in(2, [{}, {"steps": zmqps.Steps(aggregate=2)}]), ids=["parts of a step", "more than workers"]
)
def test_what_a_lost_leader_had_of_a_step_is_brought_as_it_was_pushed(options: dict[str, Any]) -> None:
    size = 1 << 18
    with (
        zmqps.LocalCluster(
            zmqps.Servers(2, kernels="numpy"), replicas=1, limits=zmqps.Limits(heartbeat_timeout=stretch(2.0))
        ) as local,
        zmqps.connect(local.address) as worker,
    ):
        worker.init({"w": np.zeros(size, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="sync", **options)
        worker.pull()
        worker.push_pull({"w": np.full(size, -1, np.float32)}, **({} if options else {"step": False}))
        if not options:
            worker.push_pull({"w": np.full(size, -4, np.float32)}, step=False)
        os.kill(next(pid for name, pid in local.pids.items() if name.startswith("server")), signal.SIGKILL)
        if options:
            got = worker.push_pull({"w": np.full(size, -4, np.float32)})
        else:
            worker.advance()
            got = worker.pull()
        assert np.unique(got["w"]).tolist() == [2.5]


@pytest.mark.processes
def test_two_threads_push_at_once(cluster: Cluster, staged: list[bool]) -> None:
    with zmqps.connect(cluster.address) as worker, ThreadPoolExecutor(4) as pool:
        start(worker)
        list(pool.map(lambda seed: worker.push(values(seed)), range(1, 13)))
        assert same(worker.pull(), less(values(0), *range(1, 13)))
    assert len(staged) == 12


@pytest.mark.processes
def test_gradients_of_a_step_that_is_not_over_in_time_count_as_they_were(cluster: Cluster, staged: list[bool]) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(zmqps.connect(cluster.address)) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        list(pool.map(lambda worker: start(worker, mode="sync"), (one, other)))
        expected, halves = values(0), {seed: values(seed) for seed in range(1, 7)}

        def step(worker: zmqps.Worker, seed: int, **options: Any) -> dict[str, Any]:
            return worker.push_pull(halves[seed], **options)

        list(pool.map(step, (one, other), (1, 2)))
        with pytest.raises(zmqps.errors.DeadlineError):
            step(one, 3, timeout=1.0)  # its gradients are there, and those of the other are not
        stages = [shard.steps.stage for shard in cluster.shards() if shard.steps is not None]
        lent = [b.lent for stage in stages for push in stage._steps[1].values() for b in push.values()]
        assert any(lent), "servers are to read some of them later"
        assert one.statistics().shared_bytes == 0  # nothing is written there any more
        one.push_async(halves[5])  # of the next step, from memory of its own
        for seed in (1, 2, 3, 4):
            expected = {name: value - halves[seed][name] / 2 for name, value in expected.items()}
        assert same(step(other, 4), expected)
    assert staged == [True] * 4


@pytest.mark.processes
def test_without_memory_for_it_all_is_the_same(
    cluster: Cluster, staged: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: Any) -> Any:
        raise MemoryError

    with zmqps.connect(cluster.address) as worker:
        start(worker)
        monkeypatch.setattr(inplace, "GradientBuffers", none)
        assert same(worker.push_pull(values(1)), less(values(0), 1))
    assert staged == [False]


@pytest.mark.processes
def test_with_little_memory_left_none_is_taken(
    cluster: Cluster, staged: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inplace, "available_nbytes", lambda: 2 << 20)
    with zmqps.connect(cluster.address) as worker:
        start(worker)
        for _ in range(2):
            worker.push(values(1))
        assert same(worker.pull(), less(values(0), 1, 1))
        assert worker.statistics().shared_bytes == 0
    assert staged == [False], "it is asked once"


# --- values ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_worker_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inplace, "FEWEST_WORKERS", 1)


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each memory of a server that values lie in whether they were handed out there."""
    noted: list[bool] = []
    original = CopiesOnWrite.take

    def take(self: CopiesOnWrite, memory: Any, hold: Any) -> Any:
        found = original(self, memory, hold)
        noted.append(found is not None)
        return found

    monkeypatch.setattr(CopiesOnWrite, "take", take)
    return noted


def in_servers_memory(params: dict[str, Any]) -> bool:
    return any(lender_of(array) is not None for array in params.values())


@pytest.mark.processes
def test_values_lie_in_the_servers_memory_and_belong_to_the_caller(cluster: Cluster, lent: list[bool]) -> None:
    expected = values(0)
    with zmqps.connect(cluster.address) as worker:
        start(worker, mode="sync")
        for seed in range(1, 13):
            expected = less(expected, seed)
            if seed % 3:
                got = worker.push_pull(values(seed))
            else:
                worker.push(values(seed))
                got = worker.pull()
            assert same(got, expected)
            assert all(array.flags.writeable for array in got.values())
            got["p4"][seed::9973] = np.nan  # here and there: it is this program's own array
            some = worker.pull(["p2", "p4"])
            assert same(some, {name: expected[name] for name in ("p2", "p4")})
            assert not in_servers_memory(some), "few are copied faster than their memory is mapped"
        assert in_servers_memory(got)
        assert worker.statistics().borrowed_bytes > 0
        del got
        assert worker.statistics().borrowed_bytes == 0
    assert all(lent)


@pytest.mark.processes
def test_values_that_are_kept_become_the_worker_s_own(cluster: Cluster, lent: list[bool]) -> None:
    expected, kept = [values(0)], []
    with zmqps.connect(cluster.address) as worker:
        start(worker, mode="sync")
        for seed in range(1, 16):
            expected.append(less(expected[-1], seed))
            kept.append(worker.push_pull(values(seed)))
        assert all(map(same, kept, expected[1:]))
        assert not in_servers_memory(kept[-1]), "a program that keeps them is served with copies"
        for _ in range(inplace.MOST_CALLS):
            worker.pull()
        assert worker.statistics().borrowed_bytes == 0
    assert all(map(same, kept, expected[1:])), "also once it is closed"
    assert lent.count(True) < len(lent) or len(lent) < 30


@pytest.mark.processes
def test_values_that_are_written_to_are_copied_soon(cluster: Cluster, lent: list[bool]) -> None:
    expected = values(0)
    with zmqps.connect(cluster.address) as worker:
        start(worker, mode="sync")
        for seed in range(1, 9):
            expected = less(expected, seed)
            got = worker.push_pull(values(seed))
            assert same(got, expected)
            for array in got.values():
                array[...] = 0
        assert not in_servers_memory(got)
    assert lent


@pytest.mark.processes
def test_values_stay_what_they_are_when_the_worker_and_its_servers_are_gone() -> None:
    with Cluster(servers=1, slice_nbytes=GATHER_NBYTES) as cluster, zmqps.connect(cluster.address) as worker:
        start(worker, mode="sync")
        worker.push_pull(values(1))
        got = worker.push_pull(values(2))
        assert in_servers_memory(got)
    assert same(got, less(values(0), 1, 2))
    got["p4"] += 1


@pytest.mark.processes
def test_others_that_train_asynchronously_do_not_wait_for_memory_that_is_lent(
    cluster: Cluster, lent: list[bool]
) -> None:
    with zmqps.connect(cluster.address) as one, zmqps.connect(cluster.address) as other:
        start(one)
        start(other)
        lent.clear()
        for seed in range(1, 5):
            one.push_pull(values(seed))
            got = other.pull()
            assert same(got, less(values(0), *range(1, seed + 1)))
            assert not in_servers_memory(got)
    assert not lent


@pytest.mark.processes
def test_an_observer_keeps_no_memory_of_servers(cluster: Cluster, lent: list[bool]) -> None:
    with zmqps.connect(cluster.address) as worker, zmqps.connect(cluster.address, observer=True) as observer:
        start(worker, mode="sync")
        for seed in range(1, 4):
            worker.push_pull(values(seed))
            lent.clear()
            got = observer.pull()
            assert same(got, less(values(0), *range(1, seed + 1)))
            assert not lent


@pytest.mark.processes
def test_a_child_process_keeps_the_values_that_it_had(cluster: Cluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        start(worker, mode="sync")
        for seed in range(1, 7):
            got = worker.push_pull(values(seed))
        assert in_servers_memory(got)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.read(reading, 1)
            os._exit(0 if same(got, less(values(0), *range(1, 7))) else 1)
        del got
        for seed in (7, 8, 9):
            worker.push_pull(values(seed))
        os.write(writing, b"x")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        os.close(reading), os.close(writing)


@pytest.mark.processes
def test_over_tcp_an_array_that_fills_its_message_is_not_copied(cluster: Cluster) -> None:
    size = GATHER_NBYTES // 4
    grads = {name: np.full(size, i, np.float32) for i, name in enumerate("abcdef")}
    with zmqps.connect(cluster.address, transport="tcp") as worker:
        worker.init(grads, optimizer=zmqps.optim.sgd(1.0), mode="async")
        for turn in range(3):
            got = worker.push_pull(grads)
            for i, array in enumerate(got.values()):
                assert (array == -i * turn).all()
                assert received(array) is not None
                array[...] = 7


# --- what copies and looks ------------------------------------------------------------------------


@for_each("dtype", [np.float32, np.float64])
@for_each("size", [0, 1, 63, 64, 65, 1000, 300_001])
def test_a_copy_tells_what_is_not_finite_wherever_it_is(dtype: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    source = [rng.standard_normal(n).astype(dtype) for n in (size, 5)]
    target = [np.zeros_like(array) for array in source]
    assert copy_finite(list(zip(target, source, strict=True)))
    assert all(np.array_equal(*pair) for pair in zip(target, source, strict=True))
    for position in {0, size // 2, size - 1} if size else ():
        for bad in (np.nan, np.inf, -np.inf):
            before, source[0][position] = source[0][position], bad
            assert not copy_finite(list(zip(target, source, strict=True)))
            source[0][position] = before
    source[1][4] = np.nan
    assert not copy_finite(list(zip(target, source, strict=True)))
