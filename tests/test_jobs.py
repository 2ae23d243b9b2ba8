"""Several jobs on one cluster, of processes where memory and logs matter: at once, in turn, refused, left alone."""

from __future__ import annotations

import gc
import json
import logging
import os
import stat
import tempfile
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import zmqps
from tests.attack.stranger import Stranger
from tests.inprocess import InProcessCluster
from tests.pace import allow
from zmqps.cli.main import run as run_cli
from zmqps.core.protocol import exits
from zmqps.core.protocol.messages import EndJob, Error, JobEnded
from zmqps.core.protocol.security.guard import proved
from zmqps.net.system.memory import TRIM_THRESHOLD
from zmqps.nodes.endkey import find_end_key
from zmqps.nodes.inquiry import end_job

pytestmark = pytest.mark.processes

SGD = zmqps.optim.sgd(1.0)
PATIENCE = allow(30.0)


def ones(size: int, name: str = "w") -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.ones(size, np.float32)}


def wait_for_end(cluster: zmqps.LocalCluster, job: str) -> dict[str, Any]:
    """Wait until a job has ended; return the status."""
    from zmqps.nodes.inquiry import inquire, run_blocking

    return run_blocking(inquire(cluster.address, timeout=PATIENCE, until=lambda status: job not in status["jobs"]))


@pytest.mark.processes
def test_two_jobs_train_at_once_and_a_name_is_used_again_with_another_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy")) as cluster:
        with (
            zmqps.connect(cluster.address, job="one") as one,
            zmqps.connect(cluster.address, job="two") as two,
            zmqps.connect(cluster.address, job="two") as second,
        ):
            assert (one.job, one.rank, two.rank, second.rank) == ("one", 0, 0, 1)
            one.init(ones(5), optimizer=SGD, mode="async")
            two.init(ones(3000, "v"), optimizer=zmqps.optim.sgd(0.1, momentum=0.9), mode="sync")
            second.init(ones(3000, "v"), optimizer=zmqps.optim.sgd(0.1, momentum=0.9), mode="sync")
            one.push(ones(5))
            waiting = second.push_async(ones(3000, "v"))
            two.push(ones(3000, "v"))
            waiting.result(PATIENCE)
            np.testing.assert_array_equal(one.pull()["w"], np.zeros(5))
            np.testing.assert_allclose(two.pull()["v"], np.full(3000, 0.9, np.float32))
            jobs = two.status()["jobs"]
            assert {name: (of["mode"], of["workers"]) for name, of in jobs.items()} == {
                "one": ("async", 1),
                "two": ("sync", 2),
            }
            for worker in (one, two, second):
                worker.finish()
        wait_for_end(cluster, "one")
        wait_for_end(cluster, "two")
        with zmqps.connect(cluster.address, job="one") as one, caplog.at_level(logging.WARNING, "zmqps"):
            one.init({"other": np.full((2, 2), 7.0)}, optimizer=zmqps.optim.adam(0.1), mode="async")
            np.testing.assert_array_equal(one.pull()["other"], np.full((2, 2), 7.0))
            one.finish()
    assert "job 'one' starts again from the initial values given" in caplog.text


@pytest.mark.processes
def test_the_same_model_again_starts_from_its_new_values_and_a_job_left_alone_goes_on_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), workers=1) as cluster,
        caplog.at_level(logging.WARNING, "zmqps"),
    ):
        for start in (3.0, 5.0):
            with zmqps.connect(cluster.address) as worker:
                worker.init({"w": np.full(4, start)}, optimizer=SGD, mode="async")
                assert worker.pull()["w"][0] == start
                worker.push({"w": np.ones(4)})
                worker.finish()
            wait_for_end(cluster, "default")
        with zmqps.connect(cluster.address) as worker:
            worker.init({"w": np.full(4, 8.0)}, optimizer=SGD, mode="async")
            worker.push({"w": np.ones(4)})  # and goes, without having finished
        caplog.clear()
        with zmqps.connect(cluster.address) as worker:
            worker.init({"w": np.full(4, 100.0)}, optimizer=SGD, mode="async")
            assert worker.pull()["w"][0] == 7.0
        assert "continues with what was trained before its workers left" in caplog.text
        with zmqps.connect(cluster.address) as worker:  # another model: nobody wants the old one
            worker.init({"x": np.full(2, 1.0)}, optimizer=SGD, mode="async")
            assert set(worker.pull()) == {"x"}


def test_the_cells_of_a_notebook_can_be_changed_and_run_again_without_a_close() -> None:
    with InProcessCluster() as cluster:
        for size in (3, 5, 8):  # the same name is bound to a new worker, and the old one is nobody's any more
            worker = zmqps.connect(cluster.address)
            worker.init(ones(size), optimizer=SGD, mode="async")
            worker.push(ones(size))
            np.testing.assert_array_equal(worker.pull()["w"], np.zeros(size))
        assert [member["role"] for member in cluster.status()["members"]] == ["server", "worker"]
        worker.close()


def train_and_end(address: str, nbytes: int) -> Callable[[Mapping[str, Any]], bool]:
    """Train one job of so many bytes and end it; return what a status that has nothing of it any more says."""
    with zmqps.connect(address, job="large", transport="tcp") as worker:
        worker.init(ones(nbytes // 4), optimizer=zmqps.optim.sgd(0.1, momentum=0.9), mode="async")
        worker.push_pull(ones(nbytes // 4))
        assert worker.status()["jobs"]["large"]["job"]["nbytes"] == nbytes
        worker.finish()
    return lambda status: not status["jobs"] and not status["members"][0]["counters"].get("jobs")


def test_nothing_of_a_job_that_has_ended_stays_in_memory() -> None:
    nbytes = 4_000_000
    with InProcessCluster() as cluster:
        after = []
        tracemalloc.start()
        for _ in range(8):
            cluster.wait_until(train_and_end(cluster.address, nbytes))
            gc.collect()
            after.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    grown = (after[-1] - after[3]) / 4
    assert grown < 20_000, f"memory grows from job to job: {after}"  # names and ends of some are remembered, no more


@pytest.mark.processes
def test_memory_of_a_job_that_has_ended_is_free_again() -> None:
    nbytes = 80_000_000
    with zmqps.LocalCluster(servers=1) as cluster:
        server = psutil.Process(cluster.pids["server-0"])
        after = []
        for _ in range(4):
            with zmqps.connect(cluster.address, job="large", transport="tcp") as worker:
                worker.init(ones(nbytes // 4), optimizer=zmqps.optim.sgd(0.1, momentum=0.9), mode="async")
                worker.push_pull(ones(nbytes // 4))
                during = server.memory_info().rss
                assert worker.status()["jobs"]["large"]["job"]["nbytes"] == nbytes
                worker.finish()
            status = wait_for_end(cluster, "large")
            while status["members"][0]["counters"].get("jobs"):
                status = cluster.status()
            end_job_is_no_error = end_job(cluster.address, "large")
            assert "had ended" in end_job_is_no_error
            after.append(server.memory_info().rss)
            assert during - after[-1] > nbytes, "values and momentum are twice as many"
        # malloc keeps frames for the next ones, up to its limit; a job's values and momentum are more than that
        assert after[-1] - after[0] < TRIM_THRESHOLD, f"memory grows from job to job: {after}"


def test_a_job_that_does_not_fit_is_refused_with_the_bytes_and_no_other_feels_it() -> None:
    with zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy", memory=1_000_000)) as cluster:
        with zmqps.connect(cluster.address, job="small") as small, zmqps.connect(cluster.address, job="big") as big:
            small.init(ones(100_000), optimizer=SGD, mode="async")
            with pytest.raises(zmqps.JobMemoryError) as caught:
                big.init(ones(400_000), optimizer=zmqps.optim.adam(0.1), mode="async")
            assert caught.value.needed_nbytes == 400_000 * 4 // 2 * 4
            assert caught.value.free_nbytes == 1_000_000 - 100_000 * 4 // 2 * 2
            assert "end another job (zmqps jobs end NAME)" in str(caught.value)
            small.push(ones(100_000))
            assert not small.pull()["w"].any()
            big.init(ones(100_000), optimizer=SGD, mode="async")
            big.push(ones(100_000))
            assert set(small.status()["jobs"]) == {"small", "big"}


@pytest.mark.processes
def test_jobs_are_listed_and_ended_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with InProcessCluster() as cluster:
        where = ["jobs", "--coordinator", cluster.address]
        assert run_cli(where) == exits.OK
        assert "no job has begun yet" in capsys.readouterr().out
        with zmqps.connect(cluster.address, job="mine") as mine, zmqps.connect(cluster.address, job="yours") as yours:
            for worker in (mine, yours):
                worker.init(ones(4), optimizer=SGD, mode="sync")
            waiting = mine.pull_async(at_least=7, timeout=PATIENCE)
            assert run_cli([*where, "--json"]) == exits.OK
            assert set(json.loads(capsys.readouterr().out)["jobs"]) == {"mine", "yours"}
            assert run_cli([*where, "end", "nobodys"]) == exits.FAILED
            assert "running: 'mine', 'yours'" in capsys.readouterr().err
            assert run_cli(["jobs", "end", "mine", "--coordinator", cluster.address]) == exits.OK
            capsys.readouterr()
            with pytest.raises(zmqps.JobEndedError):  # from a server or the coordinator, who is first
                waiting.result(PATIENCE)
            with pytest.raises(zmqps.JobEndedError, match="ended by zmqps jobs end"):
                mine.push(ones(4))
            yours.push(ones(4))
            assert run_cli(where) == exits.OK
            table = capsys.readouterr().out
            assert "yours" in table
            assert "mine" in table
            assert run_cli([*where, "--json"]) == exits.OK
            (ended,) = json.loads(capsys.readouterr().out)["ended"]
            assert (ended["job"], ended["how"]) == ("mine", "ended by zmqps jobs end")
            with zmqps.connect(cluster.address, job="mine") as again:
                again.init(ones(9), optimizer=SGD, mode="async")
                assert again.pull()["w"].size == 9


def test_a_rejoined_worker_does_not_train_another_job_for_its_own() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        worker.init(ones(4), optimizer=SGD, mode="async")
        end_job(cluster.address, "default")
        with pytest.raises(zmqps.JobEndedError):
            worker.pull()
        with pytest.raises(zmqps.JobError, match="no job is running yet"):
            worker.rejoin()
        with zmqps.connect(cluster.address) as other:
            other.init(ones(4), optimizer=zmqps.optim.sgd(0.5), mode="async")
            with pytest.raises(zmqps.JobMismatchError, match="optimizer"):
                worker.rejoin()


def test_a_job_has_a_name_that_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", "x" * 101, "a\nb", 3):
        with pytest.raises(zmqps.ConfigurationError, match="a job's name"):
            zmqps.connect("tcp://127.0.0.1:1", job=name)  # type: ignore[arg-type]


def test_the_environment_may_name_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQPS_JOB", "from-outside")
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        assert worker.job == "from-outside"


def test_a_job_says_how_many_workers_it_expects() -> None:
    with InProcessCluster() as cluster:
        with zmqps.connect(cluster.address) as first:
            first.init(ones(2), optimizer=SGD, mode="sync", workers=2)
            assert first.num_workers == 2
            step = first.push_async(ones(2))
            pulled = first.pull_async(at_least=1)
            assert not pulled.done(), "the first step waits for the second worker"
            with zmqps.connect(cluster.address) as second:
                second.init(ones(2), optimizer=SGD, mode="sync", workers=2)
                second.push(ones(2))
                step.result(PATIENCE)
                assert not pulled.result(PATIENCE)["w"].any()
                with pytest.raises(zmqps.JobMismatchError, match="workers"):
                    second.init(ones(2), optimizer=SGD, mode="sync", workers=3)


@pytest.mark.processes
def test_a_stranger_ends_no_job_and_the_user_of_the_coordinator_does(tmp_path, monkeypatch) -> None:
    with zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), timeout=PATIENCE) as cluster:
        with zmqps.connect(cluster.address) as worker, Stranger(cluster.address) as stranger:
            worker.init(ones(4), optimizer=SGD, mode="async")
            nonce = bytes(16)
            for guard in (b"", nonce, proved(nonce, EndJob(1, "default", nonce)).guard):
                answer = stranger.ask(EndJob(1, "default", nonce, guard), Error, JobEnded)
                assert isinstance(answer, Error)
                assert answer.code == zmqps.IdentityError.code
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(tempfile, "tempdir", str(tmp_path))
                with pytest.raises(zmqps.IdentityError, match="only the coordinator's own user may end jobs"):
                    end_job(cluster.address, "default")
            worker.push(ones(4))
            keys = Path(tempfile.gettempdir(), f"zmqps-{os.geteuid()}")
            assert stat.S_IMODE(keys.stat().st_mode) == 0o700
            files = [path for path in keys.iterdir() if path.is_file()]  # beside sockets of host groups
            assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
            address = cluster.address
            assert end_job(cluster.address, "default") == "job 'default' has ended"
    assert find_end_key(address) == b"", "it is gone with its coordinator"
