"""The demo, as `make demo` runs it but smaller: what it leaves, what it says when a worker is killed, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pace import allow
from zmqps.nodes.inquiry import inquire, run_blocking

LONG = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
#: Seconds a test may take, and each of its waits: it starts four or five Pythons, which on a busy machine is slow.
LIMIT = 120.0
PATIENCE = allow(LIMIT - 10.0)
#: Over the data: enough for the accuracy asked for, with a hundredth to spare; and by one worker that lost the other.
PASSES, PASSES_ALONE = 10, 25

pytestmark = pytest.mark.timeout(LIMIT)


@contextmanager
def demo(output: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Start a demo with one server and two workers; whatever happens, it has ended afterwards."""
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--servers=1", "--workers=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    process = subprocess.Popen(
        [*command, f"--output={output}", *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def first_worker_that_pushed(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return what the status says of the first worker in it that has pushed."""
    assert process.stdout is not None
    address = process.stdout.readline().removeprefix("coordinator at ").strip()
    assert address.startswith("tcp://"), address + process.stdout.read()

    def pushed(status: dict[str, Any]) -> dict[str, Any] | None:
        workers = (member for member in status["members"] if member["role"] == "worker")
        return next((worker for worker in workers if worker["counters"].get("pushes")), None)

    status = run_blocking(inquire(address, timeout=PATIENCE, until=lambda status: pushed(status) is not None))
    worker = pushed(status)
    assert worker is not None
    return worker


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "staleness"),
    [("async", None), pytest.param("sync", None, marks=LONG), pytest.param("bounded", 2, marks=LONG)],
)
def test_the_demo_learns_the_digits_and_leaves_summary_and_plots(
    mode: str, staleness: int | None, tmp_path: Path
) -> None:
    with demo(tmp_path, f"--passes={PASSES}", f"--mode={mode}", "--staleness=2") as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["mode"], summary["staleness"], summary["servers"], summary["workers"]) == (mode, staleness, 1, 2)
    assert summary["test_accuracy"] >= 0.95
    assert summary["pushes"] == PASSES * 90  # passes × batches of 16 out of 1437 images
    assert summary["seconds"] > summary["training_seconds"] > 0
    assert summary["staleness_max"] >= summary["staleness_mean"] >= 0
    if mode == "sync":
        assert summary["staleness_max"] == 0
    assert [worker["pushes"] for worker in summary["per_worker"]] == [PASSES * 45, PASSES * 45]
    assert summary["lost"] == []
    for plot in ("loss.png", "staleness.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")
    assert f"test accuracy {summary['test_accuracy']:.3f}" in output


@LONG
@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.slow), "sync"])
def test_with_faults_a_server_and_the_coordinator_are_killed_and_nothing_is_lost(mode: str, tmp_path: Path) -> None:
    with demo(tmp_path, "--faults", "--servers=2", f"--passes={3 * PASSES}", f"--mode={mode}") as process:
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["test_accuracy"] >= 0.95
    server, coordinator = summary["faults"]
    assert (server["node"][:7], coordinator["node"], summary["lost_pushes"]) == ("server-", "coordinator", 0)
    log = (tmp_path / "runs" / "cluster" / "logs" / "supervisor.log").read_text()
    assert "failed with signal SIGKILL and is started again (1 of 3): it gets copies of shards that are missing" in log
    assert "acknowledged pushes lost: 0" in output


@LONG
@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.slow), "sync"])
def test_a_killed_worker_is_named_and_the_others_finish(mode: str, tmp_path: Path) -> None:
    with demo(tmp_path, f"--passes={PASSES_ALONE}", "--heartbeat-timeout=5", f"--mode={mode}") as process:
        victim = first_worker_that_pushed(process)
        os.kill(victim["pid"], signal.SIGKILL)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["test_accuracy"] >= 0.95
    (lost,) = summary["lost"]
    assert (lost["rank"], lost["name"], lost["pid"]) == (victim["rank"], victim["name"], victim["pid"])
    assert lost["how"] == "killed by SIGKILL"
    assert {worker["rank"]: worker["how"] for worker in summary["per_worker"]} == {
        victim["rank"]: "killed by SIGKILL",
        1 - victim["rank"]: "finished",
    }
    named = f"lost worker {lost['rank']} ({lost['name']}"
    last_words = f"last sign of life {lost['last_sign_of_life']}"
    log = (tmp_path / "demo.log").read_text()
    assert named in log
    assert last_words in log
    assert last_words in output
    assert f"{lost['name']}, " in next(
        line for line in (tmp_path / "coordinator.log").read_text().splitlines() if "lost worker" in line
    )


@pytest.mark.processes
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    with demo(tmp_path, "--passes=10000") as process:
        first_worker_that_pushed(process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    # that nothing runs any more is for the fixture `nothing_left_behind` to see
