"""`zmqps.run`: a function in worker processes, its results and its errors, and that nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import zmqps
from tests.imports import ROOT
from tests.pace import allow, stretch
from tests.tables import one_in
from zmqps.errors import ConfigurationError, DeadlineError, NodeFailedError, UnknownParameterError

PATIENCE = allow(30.0)


class LabelError(Exception):
    """One that no other process can make again."""

    def __init__(self, label: str, number: int) -> None:
        super().__init__(label)


def train(worker: zmqps.Worker, steps: int, how: str = "") -> Any:
    worker.init({"w": np.zeros(4, np.float32)}, optimizer=zmqps.optim.sgd(1.0))
    for _ in range(steps):
        worker.push({"w": np.full(4, worker.rank, np.float32)})
    if how == "finish":
        worker.finish()
        return worker.rank
    if worker.rank == 1:
        if how == "raise":
            worker.push({"v": 1.0})
        if how == "label":
            raise LabelError("seven", 7)
        if how == "exit":
            os._exit(3)
        if how == "lambda":
            return lambda: 0
    if how:
        subprocess.Popen(["sleep", "1000"])  # which is ended with its worker
        threading.Event().wait()  # until this process is ended
    return worker.rank, worker.pull()["w"]


def test_results_are_in_the_order_of_ranks() -> None:
    results = zmqps.run(train, 3, servers=zmqps.Servers(kernels="numpy"), workers=2, timeout=PATIENCE)
    assert [rank for rank, _ in results] == [0, 1]
    for _, w in results:
        np.testing.assert_array_equal(w, np.full(4, -1.5))


@pytest.mark.processes
def test_a_function_may_finish_its_worker_itself() -> None:
    assert zmqps.run(train, 1, "finish", workers=2, servers=zmqps.Servers(2, kernels="numpy"), timeout=PATIENCE) == [
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("how", "error", "said"),
    one_in(
        4,
        [
            ("raise", UnknownParameterError, "'v'"),
            ("label", RuntimeError, "LabelError: seven"),
            ("lambda", Exception, "<lambda>"),
            ("exit", NodeFailedError, "worker 1 ended with exit code 3 before train had returned"),
        ],
    ),
)
def test_the_error_of_a_worker_is_raised_here(how: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        zmqps.run(train, 1, how, servers=zmqps.Servers(kernels="numpy"), workers=2, timeout=PATIENCE)
    if how != "exit":
        [note] = [note for note in caught.value.__notes__ if note.startswith("raised in worker 1:\nTraceback")]
        assert ("in train" in note) == (how != "lambda")


@pytest.mark.processes
def test_a_timeout_names_the_workers_that_have_not_returned() -> None:
    with pytest.raises(DeadlineError, match="waiting for worker 0, worker 1"):
        zmqps.run(train, 1, "wait", servers=zmqps.Servers(kernels="numpy"), workers=2, timeout=stretch(4.0))


def test_a_function_that_no_process_can_import_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigurationError, match="not a lambda"):
        zmqps.run(lambda worker: None)
    with pytest.raises(ConfigurationError, match="must be something to call, not 3"):
        zmqps.run(3)  # type: ignore[arg-type]


def test_a_worker_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZMQPS_COORDINATOR", "tcp://127.0.0.1:1")
    monkeypatch.setenv("ZMQPS_WORKER_INDEX", "3")
    with pytest.raises(ConfigurationError, match=r"is worker 3 of a cluster: call train\(zmqps.connect\(\)\)"):
        zmqps.run(train, 1)


SCRIPT = """
import sys, time, zmqps

def train(worker):
    print("here", worker.rank, flush=True)
    time.sleep(1000)

{guard}zmqps.run(train, workers=2)
"""


def start(tmp_path: Path, guard: str) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard))
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, env=env, text=True, process_group=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


@pytest.mark.parametrize("number", one_in(2, [signal.SIGKILL, signal.SIGINT]))
def test_nothing_is_left_after_the_end_of_the_script(number: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path, 'if __name__ == "__main__": ') as script:
        assert script.stdout is not None
        said = {script.stdout.readline() for _ in range(2)}
        assert said == {"here 0\n", "here 1\n"}
        started = psutil.Process(script.pid).children(recursive=True)
        os.killpg(script.pid, number)
        rest = script.stdout.read()
        _, left = psutil.wait_procs(started, timeout=PATIENCE)
    assert not left
    assert script.returncode == -number
    assert rest.count("\n") <= 1, rest


@pytest.mark.processes
def test_a_script_that_calls_it_while_it_is_imported_is_told_where_to(tmp_path: Path) -> None:
    with start(tmp_path, "") as script:
        assert script.stdout is not None
        assert 'call zmqps.run below `if __name__ == "__main__":`' in script.stdout.read()
    assert script.returncode == 1
