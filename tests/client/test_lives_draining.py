"""Workers that are asked to go by a signal: they are asked only where the program says so, and go in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow
from zmqps.client import lives
from zmqps.core.protocol import exits
from zmqps.errors import ClosedError, ConfigurationError

HERE = signal.SIGUSR1


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = signal.getsignal(HERE)
    yield
    signal.signal(HERE, before)
    lives._asked.clear()
    lives._before.clear()


def test_a_signal_asks_once_and_then_does_what_it_did_before() -> None:
    heard: list[int] = []
    signal.signal(HERE, lambda number, frame: heard.append(number))
    zmqps.drain_on(HERE)
    zmqps.drain_on(HERE)
    assert not lives.is_draining()
    signal.raise_signal(HERE)
    assert lives.is_draining()
    assert heard == []
    signal.raise_signal(HERE)
    assert heard == [HERE]


def test_nothing_is_caught_that_nobody_has_named() -> None:
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:
        assert not worker.draining
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_what_cannot_be_caught_is_refused() -> None:
    for number in (signal.SIGKILL, 12345, "TERM"):
        with pytest.raises(ConfigurationError, match="cannot be caught"):
            zmqps.drain_on(number)  # type: ignore[arg-type]
    errors: list[Exception] = []

    def call() -> None:
        try:
            zmqps.drain_on()
        except ConfigurationError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "only the main thread" in str(errors[0])


def test_a_worker_that_drains_has_gone_in_order_and_its_job_waits_for_others() -> None:
    zmqps.drain_on(HERE)
    with InProcessCluster() as cluster, zmqps.connect(cluster.address, name="a") as worker:
        worker.init({"w": np.zeros(2, np.float32)}, optimizer=zmqps.optim.sgd(1.0), mode="async")
        pushed = worker.push_async({"w": np.ones(2, np.float32)})
        signal.raise_signal(HERE)
        assert worker.draining
        with pytest.raises(SystemExit) as ended:
            worker.drain()
        assert ended.value.code == exits.DRAINED == 75
        pushed.result(0)
        with pytest.raises(ClosedError):
            worker.pull()
        with zmqps.connect(cluster.address, name="b") as other:
            status = other.status()
            assert [(gone["name"], gone["how"]) for gone in status["gone"]] == [("a", "drained")]
            assert status["jobs"]["default"]["lost"] == ""
            assert other.pull()["w"].tolist() == [-1, -1]


PROGRAM = """
import os, signal, zmqps
zmqps.drain_on()
os.kill(os.getpid(), signal.SIGTERM)
print("asked", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
print("still there", flush=True)
"""


@pytest.mark.processes
def test_a_second_sigterm_ends_the_program() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=allow(60),
        check=False,
        env={**os.environ},
    )
    assert (result.returncode, result.stdout) == (-signal.SIGTERM, "asked\n")
