"""Recording that begins and ends while nodes run: on a live cluster, and nothing of it afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import zmqps
from tests.modes import MODES
from zmqps.cli.main import cli
from zmqps.core.worker.session import SessionKernel
from zmqps.errors import IdentityError, JobError
from zmqps.nodes.tracing import begin, fetch, record
from zmqps.trace.bounds import bound
from zmqps.trace.doors import DOORS
from zmqps.trace.merge import Trace
from zmqps.trace.pushes import PushTrace, pushes


@contextmanager
def training(cluster: zmqps.LocalCluster, mode: str = "async") -> Iterator[zmqps.Worker]:
    """Have a worker that pushes and pulls all the time."""
    gradients = {"w": np.ones(50_000, np.float32)}
    over = threading.Event()
    with zmqps.connect(cluster.address) as worker:
        worker.init(gradients, optimizer=zmqps.optim.sgd(0.1), **MODES[mode], push_codec="bf16")
        worker.push_pull(gradients)

        def train() -> None:
            while not over.is_set():
                worker.push_pull(gradients)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            yield worker
        finally:
            over.set()
            thread.join()


@pytest.fixture(scope="module")
def cluster() -> Iterator[zmqps.LocalCluster]:
    with zmqps.LocalCluster(zmqps.Servers(2, kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=60.0)) as found:
        yield found


def recorded_by_all(trace: Trace) -> list[PushTrace]:
    """Return the pushes while all nodes recorded: each begins and ends when it is told to."""
    of_nodes = [process.spans for process in trace.processes if process.label != "coordinator 0"]
    begun_us = max(min(span.begin_us for span in spans) for spans in of_nodes)
    ended_us = min(max(span.end_us for span in spans) for spans in of_nodes)
    return [p for p in pushes(trace) if begun_us <= p.operation.begin_us and p.operation.end_us <= ended_us]


@pytest.mark.processes
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_running_job_is_recorded_and_goes_on_as_before(cluster: zmqps.LocalCluster, mode: str) -> None:
    said: list[str] = []
    with training(cluster, mode) as worker:
        check = worker._member.connection.thread.machine.transfers.all_finite
        trace = record(cluster.address, seconds=30.0, steps=20, progress=said.append)
        driver = worker._member.connection.thread._driver
        assert driver is not None
        assert isinstance(driver.machine, SessionKernel)  # nothing stands in its place any more
        assert worker._member.connection.thread.machine.transfers.all_finite is check
        before = worker.statistics().pushes
        record(cluster.address, seconds=30.0, steps=3)
        assert worker.statistics().pushes > before
    assert [process.label for process in trace.processes] == ["coordinator 0", "server 0", "server 1", "worker 0"]
    assert trace.notes == []
    assert trace.clocks == {}  # one host has one clock
    assert abs(trace.epoch_us / 1e6 + time.monotonic() - time.time()) < 60.0
    found = recorded_by_all(trace)
    assert len(found) >= 5
    for push in found:
        names = {name for name, _, _ in push.longest.stages()}
        assert names >= {"submit", "send", "wire", "server", "acknowledge", "wire back", "land"}
        assert ("commit" in names) == (mode == "sync")
        assert push.longest.applied
    assert all(push.seen is not None for push in found[:-1])
    bounded = bound(trace)
    assert bounded is not None
    assert bounded.text.startswith("A step of")
    roles = {(span.role, span.name) for process in trace.processes for span in process.spans}
    assert roles >= {("worker", "check"), ("codec", "encode"), ("codec", "decode"), ("server", "apply")}
    assert {name for role, name in roles if role == "worker"} >= {"submit", "queue", "send", "receive", "land"}
    assert {name for role, name in roles if role == "server"} >= {"receive", "serve", "reply"}
    assert DOORS._sinks == []
    assert said


@pytest.mark.processes
def test_it_is_begun_and_ended_by_commands(cluster: zmqps.LocalCluster, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["trace", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    at = ("--coordinator", cluster.address)
    path = tmp_path / "trace.json"
    with training(cluster) as worker:
        assert "recording on" in run("start", *at, "--seconds", "60")
        pushed = worker.statistics().pushes
        while worker.statistics().pushes < pushed + 20:
            worker.status()
        shown = run("stop", *at, "--output", str(path))
        again = run("stop", *at)  # it is kept for a while
    assert "push_pull of worker 0" in shown
    assert "A step of" in shown
    assert "A step of" in again
    assert "A step of" in run("show", str(path))
    assert "push 3: push_pull" in run(str(path), "--push", "3")
    missing = CliRunner().invoke(cli, ["trace", "show", str(path), "--push", "100000"])
    assert missing.exit_code != 0


@pytest.mark.processes
def test_only_who_may_end_jobs_may_trace_and_only_what_is_there(
    cluster: zmqps.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobError, match="no job 'other'"):
        begin(cluster.address, job="other")
    with zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=60.0)) as another:
        with pytest.raises(JobError, match="no trace"):
            fetch(another.address)
        monkeypatch.setattr("zmqps.nodes.tracing.find_end_key", lambda address: b"")
        with pytest.raises(IdentityError):
            begin(another.address)
