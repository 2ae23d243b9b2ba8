"""What a parent has ignored: hangups under ``nohup``, Ctrl-C in the background, the ends of children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PATIENCE, Running, environment
from zmqps.core.protocol import exits

UP = ("up", "--address", "tcp://127.0.0.1:0", "--kernels", "numpy")
#: Ignores a signal, then becomes a command.
IGNORING = """
import os, signal, sys
signal.signal(getattr(signal, sys.argv[1]), signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
FAILS = "raise SystemExit(3)"
WAITS = "import sys; print('here', flush=True); open(sys.argv[1]).read()"


@pytest.fixture
def ignoring(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start ``zmqps`` with a signal ignored, as a parent may."""
    started: list[Running] = []

    def begin(name: str, *arguments: str) -> Running:
        started.append(Running(arguments, tmp_path, "-c", IGNORING, name, "-m", "zmqps"))
        return started[-1]

    yield begin
    for running in started:
        running.end()


@pytest.mark.processes
@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_a_cluster_outlives_a_signal_that_the_parent_ignores(
    name: str, ignoring: Callable[..., Running], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    cluster = ignoring(name, *UP, "--workers", "1", "--", "python", "-c", WAITS, str(gate))
    cluster.wait_for("here")
    cluster.popen.send_signal(getattr(signal, name))
    gate.write_text("go on")
    assert cluster.exit_code() == exits.OK, cluster.output
    assert name not in cluster.output


@pytest.mark.processes
def test_a_hangup_that_nobody_ignores_ends_the_cluster(start: Callable[..., Running]) -> None:
    cluster = start(*UP)
    cluster.wait_for("cluster at")
    cluster.popen.send_signal(signal.SIGHUP)
    assert cluster.exit_code() == exits.TERMINATED
    assert "SIGHUP: ending the cluster" in cluster.output


@pytest.mark.processes
def test_servers_end_in_order_although_ctrl_c_is_ignored(ignoring: Callable[..., Running]) -> None:
    """A shell without job control starts what is in the background so; the supervisor ends its nodes by that signal."""
    cluster = ignoring("SIGINT", *UP)
    cluster.wait_for("cluster at")
    cluster.popen.send_signal(signal.SIGINT)
    cluster.popen.send_signal(signal.SIGTERM)
    assert cluster.exit_code() == exits.TERMINATED
    assert "SIGINT: ending" not in cluster.output
    assert "exit: " in cluster.output


@pytest.mark.processes
def test_a_worker_that_fails_is_seen_although_ends_of_children_are_ignored(ignoring: Callable[..., Running]) -> None:
    cluster = ignoring("SIGCHLD", *UP, "--workers", "1", "--restart-workers", "1", "--", "python", "-c", FAILS)
    assert cluster.exit_code() == exits.WORKERS_FAILED
    assert "worker-0 failed with exit code 3" in cluster.output
    assert "restart 1 of 1" in cluster.output


@pytest.mark.processes
def test_children_do_not_inherit_that_ends_of_children_are_ignored(ignoring: Callable[..., Running]) -> None:
    looks = "import signal; print('it is', signal.getsignal(signal.SIGCHLD).name)"
    cluster = ignoring("SIGCHLD", *UP, "--workers", "1", "--", "python", "-c", looks)
    assert cluster.exit_code() == exits.OK
    assert "it is SIG_DFL" in cluster.output


@pytest.mark.processes
def test_a_start_in_the_background_succeeds_although_ends_of_children_are_ignored(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IGNORING, "SIGCHLD", "-m", "zmqps"]
    refused = subprocess.run(
        [*command, "up", "--detach", "--address", "tcp://192.0.2.1:0", "--insecure"], cwd=tmp_path, env=environment(),
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert refused.returncode not in (exits.OK, -signal.SIGKILL), refused.stderr
    assert "Traceback" not in refused.stderr


TRAINS = """
import numpy as np, zmqps
with zmqps.connect() as worker:
    worker.init({"w": np.zeros(4)}, optimizer=zmqps.optim.sgd(0.1), mode="async")
    print("it trains", flush=True)
    while True:
        worker.push_pull({"w": np.zeros(4)})
"""


@pytest.mark.processes
def test_ctrl_c_is_one_line_of_each_worker(start: Callable[..., Running], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    cluster = start(*UP, "--workers", "2", "--", "python", "train.py")
    cluster.wait_for(r"(?s)worker-\d.*it trains.*worker-\d.*it trains")
    cluster.popen.send_signal(signal.SIGINT)
    assert cluster.exit_code() == exits.INTERRUPTED
    asked = cluster.output.index("SIGINT: ending the cluster")
    said = [line for line in cluster.output[asked:].splitlines() if line.startswith("worker-")]
    assert sorted(line.split()[0] for line in said) == ["worker-0", "worker-1"], said
    assert all("KeyboardInterrupt in " in line for line in said)
