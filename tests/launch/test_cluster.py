"""`zmqps.LocalCluster`: real processes, from a Python program."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow
from zmqps import keys
from zmqps.client.futures import begins
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, ShutdownError
from zmqps.launch.handout import FOR_WORKERS, key_files, write_files
from zmqps.launch.nodes import Nodes
from zmqps.net.routes import MIN_DESCRIPTORS
from zmqps.nodes.inquiry import ask_status
from zmqps.settings.server import ServerSettings

pytestmark = pytest.mark.processes


def all_gone(pids) -> bool:
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_a_worker_trains_on_it() -> None:
    with zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy")) as cluster:
        pids = list(cluster.pids.values())
        assert len(pids) == 3
        with zmqps.connect(cluster.address) as worker:
            worker.init({"w": np.ones((3, 2), np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=0.5), mode="async")
            worker.push({"w": np.ones((3, 2), np.float32)})
            np.testing.assert_array_equal(worker.pull()["w"], np.full((3, 2), 0.5, np.float32))
            status = cluster.status()
        assert status["jobs"]["default"]["state"] == "training"
        assert (cluster.directory / "server-1.log").read_text()
        directory = cluster.directory
    assert all_gone(pids)
    assert not directory.exists()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_DESCRIPTORS - 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
def test_with_few_descriptors_its_servers_are_reached_over_tcp_alone() -> None:
    with zmqps.LocalCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init({"w": np.ones(3, np.float32)}, optimizer=zmqps.optim.sgd(learning_rate=0.5), mode="async")
        worker.push({"w": np.ones(3, np.float32)})
        assert np.array_equal(worker.pull()["w"], np.full(3, 0.5, np.float32))


def test_in_a_launched_worker_it_is_the_cluster_that_was_launched_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with InProcessCluster() as theirs:
        monkeypatch.setenv("ZMQPS_COORDINATOR", theirs.address)
        monkeypatch.setenv("ZMQPS_WORKER_INDEX", "2")
        with zmqps.LocalCluster(servers=2, workers=1) as cluster:
            assert (cluster.address, cluster.pids) == (theirs.address, {})
            assert cluster.directory.is_dir()
            assert cluster.status()["servers"] == 1
            assert theirs.address in repr(cluster)
        assert theirs.status()["state"] == "ready", "whoever has launched it ends it"
    assert f"launched as worker 2 of the cluster at {theirs.address}: LocalCluster joins that one" in caplog.text


@pytest.mark.parametrize("by", ["ZMQPS_KEYS", "ZMQPS_TOKEN"])
def test_in_a_launched_worker_it_shows_the_keys_that_the_worker_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    for folder in (theirs, mine):
        keys.create(folder)
    write_files(tmp_path / "host", key_files(theirs, has_nodes=False))
    shown = {"ZMQPS_KEYS": str(tmp_path / "host" / FOR_WORKERS), "ZMQPS_TOKEN": keys.token(theirs)}[by]
    with InProcessCluster(keys=theirs) as launched:
        monkeypatch.setenv("ZMQPS_COORDINATOR", launched.address)
        monkeypatch.setenv("ZMQPS_WORKER_INDEX", "2")
        monkeypatch.setenv(by, shown)
        for told in (None, mine):  # those would be for the cluster that it does not start
            with zmqps.LocalCluster(security=zmqps.Security(keys=told)) as cluster:
                assert cluster.status()["servers"] == 1


@pytest.mark.processes
def test_two_at_once_do_not_meet(tmp_path) -> None:
    with (
        zmqps.LocalCluster(directory=tmp_path / "a", workers=3) as a,
        zmqps.LocalCluster(directory=tmp_path / "b") as b,
    ):
        assert a.address != b.address
        assert (a.status()["workers"], b.status()["workers"]) == (3, 0)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["coordinator.log", "server-0.log"]


def test_it_can_be_used_where_a_loop_runs_already() -> None:
    async def notebook() -> str:
        with zmqps.LocalCluster() as cluster:
            return str(cluster.status()["state"])

    assert asyncio.run(notebook()) == "ready"


def test_stopping_ends_waiting_workers_and_may_be_repeated() -> None:
    cluster = zmqps.LocalCluster(workers=2).start()
    with zmqps.connect(cluster.address) as worker:
        future = begins(zmqps.Worker.barrier)(worker, "never", timeout=allow(30.0))
        cluster.stop()
        with pytest.raises(ShutdownError):
            future.result(timeout=allow(10.0))
    cluster.stop()
    with pytest.raises(ClosedError, match="stopped"):
        cluster.address  # noqa: B018
    with pytest.raises(ClosedError, match="make another"):
        cluster.start()


def test_whoever_stops_it_waits_until_it_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    there, go_on = threading.Event(), threading.Event()
    close = Nodes.close

    def slowly(self: Nodes) -> None:
        there.set()
        assert go_on.wait(allow(20.0))
        close(self)

    monkeypatch.setattr(Nodes, "close", slowly)
    cluster = zmqps.LocalCluster().start()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cluster.stop)
        assert there.wait(allow(20.0))
        second = pool.submit(cluster.stop)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.1)
        go_on.set()
        first.result(timeout=allow(20.0))
        second.result(timeout=allow(20.0))


def test_before_its_start_there_is_no_address() -> None:
    with pytest.raises(ClosedError, match="with statement"):
        zmqps.LocalCluster().address  # noqa: B018


def test_a_killed_server_does_not_keep_it_from_stopping() -> None:
    with zmqps.LocalCluster(servers=2, limits=zmqps.Limits(heartbeat_interval=0.1, heartbeat_timeout=0.5)) as cluster:
        os.kill(cluster.pids["server-0"], signal.SIGKILL)
    assert all_gone(cluster.pids.values())


def test_a_start_that_takes_too_long_says_what_is_missing() -> None:
    cluster = zmqps.LocalCluster(timeout=0.001)
    with pytest.raises(DeadlineError, match="waiting for the coordinator to start"), cluster:
        pass
    assert all_gone(cluster.pids.values())


def test_what_keeps_a_node_from_starting_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="must exceed the interval"):
        zmqps.LocalCluster(limits=zmqps.Limits(heartbeat_timeout=0.1)).start()
    with pytest.raises(ConfigurationError, match="kernels must be one of"):
        zmqps.LocalCluster(zmqps.Servers(kernels="fortran"))
    document = ServerSettings.document
    monkeypatch.setattr(ServerSettings, "document", lambda self: document(self) | {"kernels": "fortran"})
    with pytest.raises(ConfigurationError, match="kernels must be one of numba, numpy, not 'fortran'"):
        zmqps.LocalCluster().start()  # it is the process that refuses


def test_a_node_has_its_name_and_nothing_secret_in_the_list_of_processes(tmp_path: Path) -> None:
    (tmp_path / "hush").write_bytes(b"s" * 32)
    with zmqps.LocalCluster(
        zmqps.Servers(kernels="numpy"), security=zmqps.Security(job_secret=tmp_path / "hush")
    ) as cluster:
        for name, pid in cluster.pids.items():
            command = psutil.Process(pid).cmdline()
            assert command[3:6] == ["zmqps", name.partition("-")[0], f"--name={name}"]
            assert command[6] == "--parent-fd"
            assert len(command) == 8


def test_a_status_needs_a_coordinator() -> None:
    with pytest.raises(DeadlineError, match=r"waiting for the coordinator at tcp://127\.0\.0\.1:1 to answer"):
        ask_status("tcp://127.0.0.1:1", timeout=0.1)
    with pytest.raises(ConfigurationError):
        ask_status("nowhere")


FORKING = """if True:
    import json, os, sys, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 does not like forks of threads
    import zmqps
    with zmqps.LocalCluster(zmqps.Servers(kernels="numpy")) as cluster:
        logs = cluster.directory
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for use in (cluster.stop, cluster.status):
                try:
                    use()
                except zmqps.errors.ForkedError:
                    os.write(writer, b"refused ")
            sys.exit(0)
        os.waitpid(child, 0)
        facts = {"said": os.read(reader, 100).decode(), "members": len(cluster.status()["members"])}
        print(json.dumps({**facts, "logs": sorted(path.name for path in logs.iterdir())}))
"""


def test_a_forked_child_neither_ends_the_cluster_nor_removes_its_logs() -> None:
    ended = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=allow(60))
    assert ended.returncode == 0, ended.stderr
    facts = json.loads(ended.stdout)
    assert facts == {"said": "refused refused ", "members": 1, "logs": ["coordinator.log", "server-0.log"]}
