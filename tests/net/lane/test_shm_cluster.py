"""Workers of a live cluster over every transport: the same numbers, the errors, and what a kill leaves behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.net.cluster import PATIENCE, Cluster
from zmqps.core.protocol.arrays import GATHER_NBYTES, lender_of, received
from zmqps.core.server.dense import buffers
from zmqps.net.lane.segment import DIRECTORY
from zmqps.net.lane.shm import LaneTransport
from zmqps.net.routes import TRANSPORTS, Route, choose, new_local_endpoint
from zmqps.net.zeromq import ZmqTransport

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[3]
SLICE_NBYTES = GATHER_NBYTES  # the smallest that are not copied, so that lanes carry many
SLICE = SLICE_NBYTES // 4
#: Elements: none, one, primes, and around the end of a slice; together several slices on each server.
SIZES = (0, 1, 2, 7919, SLICE - 1, SLICE, SLICE + 1, 419_429, 0, 3)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(servers=2, slice_nbytes=SLICE_NBYTES) as it:
        yield it


def initial() -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    dtypes = ("float32", "float64")
    return {f"p{i}": rng.integers(-99, 99, n).astype(dtypes[i % 2]) for i, n in enumerate(SIZES)}


def gradients(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return whole numbers: sums of them are exact, in whatever order they are applied."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-99, 99, value.size).astype(value.dtype) for name, value in initial().items()}


def same(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    return got.keys() == expected.keys() and all(np.array_equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_two_workers_at_once_get_what_numpy_gets(cluster: Cluster, transport: str) -> None:
    expected = initial()
    with ExitStack() as stack:
        workers = [stack.enter_context(zmqps.connect(cluster.address, transport=transport)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(2))
        list(pool.map(lambda worker: worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async"), workers))
        for worker in workers:
            assert same(worker.pull(), expected)

        def steps(index: int) -> None:
            for step in range(6):
                grads = gradients(10 * step + index)
                if step % 2:
                    workers[index].push_pull(grads)
                else:
                    workers[index].push(grads)

        list(pool.map(steps, range(2)))
        for seed in [10 * step + index for step in range(6) for index in range(2)]:
            for name, gradient in gradients(seed).items():
                expected[name] -= gradient
        zeros = {name: np.zeros_like(value) for name, value in expected.items()}
        for worker in workers:
            assert same(worker.pull(), expected)
            assert same(worker.push_pull(zeros, out={name: value + 1 for name, value in expected.items()}), expected)
            assert worker.statistics().retries == 0
        shared = transport in ("auto", "shm")
        assert cluster.num_lanes() == (4 if shared else 0)
        for lanes in cluster.servers:
            assert bool(lanes.counters["lane_frames"]) == bool(lanes.counters["lane_references"]) == shared
            assert not lanes.counters["lane_overflows"]


def test_all_transports_can_be_mixed(cluster: Cluster) -> None:
    expected = initial()
    with ExitStack() as stack:
        workers = [stack.enter_context(zmqps.connect(cluster.address, transport=t)) for t in TRANSPORTS]
        for worker in workers:
            worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
        for seed, worker in enumerate(workers):
            for name, gradient in gradients(seed).items():
                expected[name] -= gradient
            assert same(worker.push_pull(gradients(seed)), expected)
            assert same(workers[seed - 1].pull(), expected)


def test_an_atomic_push_larger_than_the_ring_goes_both_ways(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # No whole slice fits, however fast the other side takes what lies in the ring; the small ones do.
    monkeypatch.setattr(
        "zmqps.client.connection.LaneTransport", partial(LaneTransport, ring_nbytes=SLICE_NBYTES - 4096)
    )
    with zmqps.connect(cluster.address, transport="shm") as worker:
        worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
        worker.push(gradients(1), atomic=True)
        expected = {name: value - gradients(1)[name] for name, value in initial().items()}
        assert same(worker.pull(), expected)
        # A server copies until the worker has mapped its memory: a whole slice of each is surely among those copies.
        assert all(lanes.counters["lane_overflows"] for lanes in cluster.servers)
        driver = worker._member.connection.thread._driver
        assert driver is not None
        pushed = driver.transport.facts()
        assert pushed["lane_overflows"] > 0
        assert pushed["lane_frames"] > 0


def test_the_status_says_how_a_worker_is_connected(cluster: Cluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
        worker.pull()
        driver = worker._member.connection.thread._driver
        assert driver is not None
        assert driver.transport.facts()["transport"] == "shm"


def test_the_environment_chooses_where_the_program_does_not(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQPS_TRANSPORT", "ipc")
    for choice, expected in ((None, "ipc"), ("tcp", "tcp")):
        with zmqps.connect(cluster.address, transport=choice) as worker:
            worker.init({"w": np.zeros(3)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
            worker.pull()
            driver = worker._member.connection.thread._driver
            assert driver is not None
            assert driver.transport.facts()["transport"] == expected
    monkeypatch.setenv("ZMQPS_TRANSPORT", "pigeon")
    with pytest.raises(
        zmqps.errors.ConfigurationError, match="transport must be one of auto, tcp, ipc, shm, not 'pigeon'"
    ):
        zmqps.connect(cluster.address)


def test_shared_memory_that_must_be_and_cannot_fails_the_first_operation(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("zmqps.net.lane.segment.DIRECTORY", tmp_path / "missing")
    params, why = {"w": np.zeros(3)}, "no lane to server-[01]: cannot make a file in"
    with zmqps.connect(cluster.address, transport="shm") as first:
        with pytest.raises(zmqps.errors.ConfigurationError, match=why):
            first.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async")
    with zmqps.connect(cluster.address, transport="tcp") as worker:
        worker.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async")
        with zmqps.connect(cluster.address, transport="shm") as other:
            other.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async")
            with pytest.raises(zmqps.errors.ConfigurationError, match=why):
                other.pull()
        with zmqps.connect(cluster.address, transport="auto") as other:
            other.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async")
            assert same(other.pull(), params)


# --- in place -----------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("optimizer", [zmqps.optim.sgd(0.1), zmqps.optim.adam(0.1)], ids=["sgd", "adam"])
def test_in_place_and_by_copies_are_the_same_bit_for_bit(
    cluster: Cluster, transport: str, optimizer: zmqps.optim.OptimizerSpec
) -> None:
    with (
        Cluster(servers=2, slice_nbytes=SLICE_NBYTES) as another,
        zmqps.connect(cluster.address, transport=transport) as here,
        zmqps.connect(another.address, transport="tcp") as reference,
    ):
        for worker in (here, reference):
            worker.init(initial(), optimizer=optimizer, mode="async")
        buffers = here.gradient_buffers()
        for step in range(5):
            for name, gradient in gradients(step).items():
                buffers[name][...] = gradient
            expected = reference.push_pull(gradients(step))
            if step % 2:
                got = here.push_pull(buffers, copy=False)
            else:
                here.push(buffers)
                got = here.pull(copy=False)
            assert same(got, expected)
            assert got.version == expected.version == step + 1
            assert not any(array.flags.writeable for array in got.values())
            some = ["p4", "p7", "p1"]
            assert same(here.pull(some, copy=False), {name: expected[name] for name in some})
        shared = transport in ("auto", "shm")
        assert any(lender_of(array) is not None for array in got.values()) == shared
        assert any(received(array) is not None for array in got.values()) == (not shared)  # a message of its own
        assert here.statistics().retries == 0
        assert (here.statistics().borrowed_bytes > 0) == shared
        del got
        assert here.statistics().borrowed_bytes == 0


def test_what_is_looked_at_stays_as_it_is_while_others_train(cluster: Cluster) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(zmqps.connect(cluster.address)) for _ in range(2)]
        for worker in workers:
            worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
            worker.pull()  # from here on they know the servers' memory
        kept, copies, expected = [], [], initial()
        for seed in range(4):
            kept.append(workers[seed % 2].pull(copy=False))
            copies.append({name: value.copy() for name, value in kept[-1].items()})
            assert same(copies[-1], expected)
            workers[1].push(gradients(seed))
            for name, gradient in gradients(seed).items():
                expected[name] -= gradient
        assert all(same(values, copy) for values, copy in zip(kept, copies, strict=True))
        assert any(lender_of(array) is not None for array in kept[0].values())
        assert same(workers[0].pull(), expected)
        nbytes = sum(value.nbytes for value in expected.values())
        spare = [shard.counters["spare_nbytes"] for shard in cluster.shards()]
        assert 0 < sum(spare) <= 2 * nbytes
        kept.clear()
        for seed in range(4, 9):
            workers[0].push_pull(gradients(seed), copy=False)
        assert [shard.counters["spare_nbytes"] for shard in cluster.shards()] == spare  # type: ignore[attr-defined]


def test_one_who_gives_nothing_back_costs_a_server_three_times_its_values_and_no_more() -> None:
    initial = {name: np.zeros(SLICE, np.float32) for name in "ab"}
    with (
        Cluster(servers=1, slice_nbytes=SLICE_NBYTES) as cluster,
        zmqps.connect(cluster.address, transport="shm", timeout=PATIENCE) as worker,
    ):
        worker.init(initial, optimizer=zmqps.optim.sgd(1.0), mode="async")
        held = []
        for _ in range(50):
            held.append(worker.pull(copy=False))
            worker.push({"b": np.ones(SLICE, np.float32)})  # the other one is lent again and again, where it is
        (shard,) = cluster.shards()
        (lane,) = cluster.servers[0]._lanes.values()
        assert lane.segment.lender.num_loans > 40
        assert 0 < shard.counters["spare_nbytes"] <= 2 * shard.dense.arena_nbytes
        assert all((params["b"] == -float(step)).all() for step, params in enumerate(held))


def test_where_a_server_lacks_the_memory_those_who_look_get_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "LEAST_NBYTES", 0)
    tight = buffers.Beside(SLICE_NBYTES, lambda nbytes: False)
    monkeypatch.setattr("zmqps.nodes.server.Beside", lambda admitted, more: tight)
    initial = {name: np.zeros(SLICE, np.float32) for name in "abc"}
    with (
        Cluster(servers=1, slice_nbytes=SLICE_NBYTES) as cluster,
        zmqps.connect(cluster.address, transport="shm", timeout=PATIENCE) as worker,
    ):
        worker.init(initial, optimizer=zmqps.optim.sgd(1.0), mode="async")
        held = []
        for _ in range(20):
            held.append(worker.pull(copy=False))
            worker.push({name: np.ones(SLICE, np.float32) for name in "abc"})
            [shard] = cluster.shards()
            assert shard.counters["spare_nbytes"] <= SLICE_NBYTES
        assert shard.counters["copied_nbytes"] > 0
        assert all((params[name] == -float(step)).all() for step, params in enumerate(held) for name in "abc")


def test_gradient_buffers_are_pushed_whole_in_part_and_by_other_names(cluster: Cluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
        buffers, expected = worker.gradient_buffers(), initial()
        assert worker.gradient_buffers().keys() == buffers.keys() == expected.keys()
        assert all(worker.gradient_buffers()[name] is buffer for name, buffer in buffers.items())
        assert all(not buffer.any() and buffer.shape == expected[name].shape for name, buffer in buffers.items())
        assert worker.statistics().shared_bytes > 0
        whole = gradients(1)
        for name, gradient in whole.items():
            buffers[name][...] = gradient
        for grads in (
            buffers,
            {name: np.frombuffer(buffer, buffer.dtype).reshape(-1) for name, buffer in buffers.items()},
            {name: buffers[name] for name in ("p7", "p3")},
            {**buffers, "p7": whole["p7"]},
        ):
            for name in grads:
                expected[name] -= whole[name]
            assert same(worker.push_pull(grads) | worker.pull(), expected)
        buffers["p7"][5] = np.nan
        with pytest.raises(zmqps.errors.NonFiniteGradientError, match="'p7'"):
            worker.push(buffers)
        assert same(worker.pull(), expected)
        with pytest.raises(zmqps.errors.ConfigurationError, match="out="):
            worker.pull(out=buffers, copy=False)
        views = worker.pull(copy=False)
    assert same(views, expected)  # also after the end
    assert buffers["p7"][6] == whole["p7"][6]


def test_buffers_and_views_outlive_a_life_in_the_cluster(cluster: Cluster) -> None:
    with zmqps.connect(cluster.address) as worker:
        worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
        buffers, expected = worker.gradient_buffers(), initial()
        worker.push(buffers)
        views = worker.pull(copy=False)
        worker.rejoin()
        assert all(worker.gradient_buffers()[name] is buffer for name, buffer in buffers.items())
        for seed in range(3):
            for name, gradient in gradients(seed).items():
                buffers[name][...] = gradient
                expected[name] -= gradient
            worker.push(buffers)
        assert same(worker.pull(), expected)
        assert same(views, initial())


def test_gradients_of_a_step_that_fails_for_its_worker_are_what_they_were_when_it_was_pushed(cluster: Cluster) -> None:
    with ExitStack() as stack:
        one, other = (stack.enter_context(zmqps.connect(cluster.address)) for _ in range(2))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        list(pool.map(lambda w: w.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="sync"), (one, other)))
        mine, theirs = one.gradient_buffers(), other.gradient_buffers()

        def fill(buffers: dict[str, Any], seed: int) -> None:
            for name, gradient in gradients(seed).items():
                buffers[name][...] = 2 * gradient  # of which the mean of two is a whole number

        def step(worker: zmqps.Worker, buffers: dict[str, Any], seed: int) -> Any:
            fill(buffers, seed)
            return worker.push_pull(buffers, copy=False)

        for seed in range(3):  # the first introduce the memory
            list(pool.map(step, (one, other), (mine, theirs), (seed, 10 + seed)))
        assert one.statistics().shared_bytes > 0
        fill(mine, 3)
        with pytest.raises(zmqps.errors.DeadlineError):
            one.push_pull(mine, copy=False, timeout=1.0)  # its gradients are there, and the other one's are not
        stages = [shard.steps.stage for shard in cluster.shards() if shard.steps is not None]
        lent = [b.lent for stage in stages for push in stage._steps[3].values() for b in push.values()]
        assert any(lent), "servers are to read some of them later"
        for buffer in mine.values():
            buffer[...] = np.nan
        assert one.statistics().shared_bytes == 0
        expected = initial()
        for seed in (*range(4), *range(10, 14)):
            for name, gradient in gradients(seed).items():
                expected[name] -= gradient
        assert same(step(other, theirs, 13), expected)
        assert same(one.pull(), expected)
        again = pool.submit(step, one, mine, 4)  # the same arrays go on to work
        assert same(step(other, theirs, 14), again.result(PATIENCE))


def test_synchronous_steps_in_place_keep_every_version_that_is_looked_at(cluster: Cluster) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(zmqps.connect(cluster.address)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(2))

        def train(index: int) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
            worker = workers[index]
            worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="sync")
            buffers, seen = worker.gradient_buffers(), []
            for step in range(6):
                values = worker.pull(copy=False)
                seen.append((values.version, values, {name: value.copy() for name, value in values.items()}))
                for name, gradient in gradients(2 * step + index).items():
                    buffers[name][...] = gradient
                worker.push(buffers)
            return seen

        expected, seen = initial(), list(pool.map(train, range(2)))
        for step in range(6):
            for found in seen:
                version, values, copies = found[step]
                assert version == step
                assert same(copies, expected)
                assert same(values, expected)
            for name in expected:
                expected[name] -= (gradients(2 * step)[name] + gradients(2 * step + 1)[name]) / 2


def test_without_memory_to_share_all_is_the_same_by_copies(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with zmqps.connect(cluster.address, transport="shm") as worker:
        worker.init(initial(), optimizer=zmqps.optim.sgd(1.0), mode="async")
        buffers, expected = worker.gradient_buffers(), initial()
        for seed in range(3):
            for name, gradient in gradients(seed).items():
                buffers[name][...] = gradient
                expected[name] -= gradient
            assert same(worker.push_pull(buffers, copy=False), expected)
        assert worker.statistics().shared_bytes == worker.statistics().borrowed_bytes == 0


# --- who is on this host ------------------------------------------------------------------------


def test_a_local_socket_is_taken_if_somebody_listens_there() -> None:
    tcp, nobody = "tcp://127.0.0.1:1", new_local_endpoint()
    transport = ZmqTransport()
    local = transport.bind(new_local_endpoint())
    both = f"{tcp} {local}"
    assert choose(both, "auto") == choose(both, "shm") == Route(local, True)
    assert choose(both, "ipc") == Route(local, False)
    assert choose(both, "tcp") == Route(tcp, False)
    for elsewhere in (tcp, f"{tcp} {nobody}", f"{tcp} ipc:///no/such/path", f"{tcp} ipc://{'x' * 200} ipc://"):
        assert choose(elsewhere, "auto") == choose(elsewhere, "tcp") == Route(tcp, False)
        assert choose(elsewhere, "shm") == Route(tcp, True)
        with pytest.raises(zmqps.errors.ConfigurationError, match="no socket on this host"):
            choose(elsewhere, "ipc")
    with pytest.raises(zmqps.errors.ConfigurationError, match=r"is reached at .* only"):
        choose(local, "tcp")
    transport.close(0)
    for advertised in ("", nobody):
        with pytest.raises(zmqps.errors.ConfigurationError, match="cannot be reached from this host"):
            choose(advertised, "auto")


# --- kill -9 ------------------------------------------------------------------------------------


def files_of(pid: int) -> list[Path]:
    return list(DIRECTORY.glob(f"zmqps-{pid}-*"))


def test_a_killed_worker_leaves_nothing(cluster: Cluster) -> None:
    program = f"""if True:
        import os, numpy as np, zmqps
        worker = zmqps.connect({cluster.address!r}, transport="shm")
        params = {{"w": np.zeros(100_000, np.float32), "b": np.zeros(90_000, np.float32)}}
        worker.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async")
        worker.push_pull(params)
        buffers = worker.gradient_buffers()
        for _ in range(3):
            views = worker.push_pull(buffers, copy=False)
        assert worker.statistics().borrowed_bytes
        os.kill(os.getpid(), {signal.SIGKILL})"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as process:
        assert process.wait(PATIENCE) == -signal.SIGKILL
    assert files_of(process.pid) == []
    assert cluster.num_lanes() == 2
    shards = cluster.shards()
    assert any(not reader.done for shard in shards for state in shard.slices for reader in state.readers)
    for server in cluster.servers:
        server._reap()
    assert cluster.num_lanes() == 0
    assert all(reader.done for shard in shards for state in shard.slices for reader in state.readers)


def test_a_killed_server_leaves_nothing() -> None:
    with zmqps.LocalCluster(zmqps.Servers(1, kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=300.0)) as local:
        params = {"w": np.zeros(100_000, np.float32)}
        with zmqps.connect(local.address, transport="shm") as worker:
            worker.init(params, optimizer=zmqps.optim.sgd(1.0), mode="async")
            worker.push_pull(params)
            buffers, views = worker.gradient_buffers(), worker.pull(copy=False)
            worker.push(buffers)
            (server,) = [pid for name, pid in local.pids.items() if name.startswith("server")]
            os.kill(server, signal.SIGKILL)
            end = os.pidfd_open(server)  # waiting for the process itself would be to bury it, which is the cluster's
            assert select.select([end], [], [], PATIENCE)[0]
            os.close(end)
            assert files_of(server) == files_of(os.getpid()) == []
            assert same(views, params)
        assert files_of(os.getpid()) == []
