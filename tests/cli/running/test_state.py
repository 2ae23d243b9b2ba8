"""The file that says what runs here: what another has planted is not believed, and leads to nobody's end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.test_folder import NOBODY, as_root, plant_link, plant_name, plant_pipe
from zmqps.cli.running.state import Claim, State, read_state, state_path
from zmqps.core.protocol import exits
from zmqps.errors import UnsafeFileError
from zmqps.launch.processes import start_of

pytestmark = pytest.mark.processes

UP = ("up", "--address", "tcp://127.0.0.1:0", "--kernels", "numpy", "--", "true")


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process that has nothing to do with any cluster."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process
        process.kill()


def test_down_ends_nobody_that_has_been_given_the_number_of_a_supervisor(zmqps, tmp_path, innocent) -> None:
    with Claim(tmp_path) as claim:
        for start in (0, start_of(innocent.pid) + 1):
            claim.write(State(pid=innocent.pid, name="n", address="", logs="", started="", start=start))
            result = zmqps("down", "--timeout", "0.1")
            assert result.returncode == exits.USAGE
            assert f"process {innocent.pid}, which it names, is not the supervisor" in result.stderr
            assert result.stderr.count("\n") == 1
            assert innocent.poll() is None


def test_down_ends_nothing_of_another_session_than_that_of_the_supervisor(zmqps, tmp_path, innocent) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as ended:
        start = start_of(innocent.pid)
        ended.kill()
    with Claim(tmp_path) as claim:
        claim.write(State(pid=ended.pid, name="n", address="", logs="", started="", start=start))
        text = state_path(tmp_path).read_text()
    path = state_path(tmp_path)
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    assert zmqps("down", "--timeout", "0.1").returncode == exits.OK
    assert innocent.poll() is None


def test_down_ends_nobody_in_another_session_that_has_been_given_the_same_number(zmqps, tmp_path) -> None:
    before = start_of(os.getpid())
    script = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'input()']).pid)"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as leader:
        assert leader.stdout is not None
        innocent = psutil.Process(int(leader.stdout.readline()))
        leader.wait()  # its number was a supervisor's once, which started before all this
        with Claim(tmp_path) as claim:
            claim.write(State(pid=leader.pid, name="n", address="", logs="", started="", start=before))
            text = state_path(tmp_path).read_text()
        state_path(tmp_path).parent.mkdir(mode=0o700)
        state_path(tmp_path).write_text(text)
        assert zmqps("down", "--timeout", "0.1").returncode == exits.OK
        assert start_of(innocent.pid) > 0, "it lives"
        innocent.kill()


@pytest.mark.parametrize("plant", [plant_link, plant_name, plant_pipe])
@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_logs_shows_nothing_that_was_planted(zmqps, tmp_path, plant, follow) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    logs = tmp_path / "runs/cluster/logs"
    logs.mkdir(parents=True)
    (logs / "coordinator.log").write_text("mine\n")
    plant(logs / "server-0.log", precious)
    result = zmqps("logs", *follow)
    assert (result.returncode, result.stdout) == (exits.USAGE, "")
    assert "server-0.log is not safe to use" in result.stderr
    assert zmqps("logs", "coordinator").stdout.endswith(" mine\n")


@pytest.mark.parametrize("place", ["runs", "runs/cluster", "runs/cluster/logs"])
def test_logs_are_not_read_through_a_link(zmqps, tmp_path, place) -> None:
    precious = tmp_path / "var"
    for name in ("cluster/logs", "logs", "."):
        (precious / name).mkdir(parents=True, exist_ok=True)
        (precious / name / "old.log").write_text("precious")
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).symlink_to(precious)
    result = zmqps("logs")
    assert (result.returncode, result.stdout) == (exits.USAGE, "")
    assert "it is a link" in result.stderr


TRACE = """{"traceEvents": [
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "worker 0"}},
{"name": "send", "cat": "worker", "ph": "X", "ts": 1, "dur": 1, "tid": 1, "pid": 1, "args": {}}
]}"""


@pytest.mark.parametrize("plant", [plant_link, plant_name, plant_pipe])
def test_trace_reads_and_writes_nothing_that_was_planted(zmqps, tmp_path, plant) -> None:
    recorded, precious, output = tmp_path / "trace.json", tmp_path / "precious", tmp_path / "out"
    recorded.write_text(TRACE)
    precious.write_text(TRACE)
    plant(output, precious)
    result = zmqps("trace", "trace.json", "--output", "out")
    assert result.returncode == exits.USAGE
    assert "out is not safe to use" in result.stderr
    output.unlink()
    assert zmqps("trace", "trace.json", "--output", "out").returncode == exits.OK
    assert output.stat().st_size > 0
    recorded.unlink()
    plant(recorded, precious)
    result = zmqps("trace", "trace.json")
    assert result.returncode == exits.USAGE
    assert "trace.json is not safe to use" in result.stderr
    assert precious.read_text() == TRACE


def test_a_directory_is_no_trace(zmqps, tmp_path) -> None:
    result = zmqps("trace", ".")
    assert result.returncode == exits.USAGE
    assert "'.' is a directory" in result.stderr


@as_root
@pytest.mark.parametrize("command", [("down",), ("status",), ("logs",), UP])
def test_a_planted_state_is_refused(zmqps, tmp_path, innocent, command) -> None:
    path = state_path(tmp_path)
    path.parent.mkdir()
    facts = {"pid": innocent.pid, "name": "n", "address": "tcp://127.0.0.1:1", "logs": "/", "started": ""}
    path.write_text(json.dumps({**facts, "start": start_of(innocent.pid)}))
    os.chown(path, NOBODY, NOBODY)
    result = zmqps(*command)
    assert result.returncode == exits.USAGE
    assert f"it belongs to user {NOBODY}" in result.stderr
    assert innocent.poll() is None
    assert path.exists()


def test_a_state_that_is_a_link_is_neither_written_nor_removed(zmqps, tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("{}")
    state_path(tmp_path).parent.mkdir()
    state_path(tmp_path).symlink_to(precious)
    for command in (UP, ("down",)):
        result = zmqps(*command)
        assert result.returncode == exits.USAGE
        assert "it is a link" in result.stderr
        assert precious.read_text() == "{}"


@pytest.mark.parametrize("place", ["runs", "runs/cluster", "runs/cluster/logs"])
def test_up_removes_no_logs_through_a_link(zmqps, tmp_path, place) -> None:
    precious = tmp_path / "var" / "logs"
    (precious / "cluster" / "logs").mkdir(parents=True)
    (precious / "logs").mkdir()
    files = [precious / name for name in ("old.log", "cluster/logs/old.log", "logs/old.log")]
    for file in files:
        file.write_text("precious")
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).symlink_to(precious)
    result = zmqps(*UP)
    assert result.returncode == exits.USAGE
    assert "it is a link" in result.stderr
    assert [file.read_text() for file in files] == ["precious"] * 3
    assert not state_path(tmp_path).exists()


def test_up_writes_no_log_through_a_link(zmqps, tmp_path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    logs = tmp_path / "runs/cluster/logs"
    logs.mkdir(parents=True)
    (logs / "supervisor.log").symlink_to(precious)
    (logs / "coordinator.log").hardlink_to(precious)
    assert zmqps(*UP).returncode == exits.OK
    assert precious.read_text() == "precious"
    assert "cluster at" in (logs / "supervisor.log").read_text()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "1", "{}", '{"pid": "1"}', '{"pid": 1, "name": 5}', "[" * 60000, '{"pid": 1e400}', "\\ud800", "nan"],
)
def test_a_state_of_other_contents_names_nobody(tmp_path: Path, text: str) -> None:
    state_path(tmp_path).parent.mkdir()
    state_path(tmp_path).write_text(text)
    state = read_state(tmp_path)
    assert state is not None
    assert (state.pid, state.running) == (0, False)


def test_a_state_in_a_directory_that_all_may_write_to_is_not_believed(tmp_path: Path) -> None:
    state_path(tmp_path).parent.mkdir()
    state_path(tmp_path).parent.chmod(0o777)
    with pytest.raises(UnsafeFileError, match="all users may exchange"):
        read_state(tmp_path)


def test_the_start_of_a_process_tells_it_from_others(innocent) -> None:
    assert start_of(innocent.pid) == start_of(innocent.pid) > 0
    assert start_of(os.getpid()) < start_of(innocent.pid)
    innocent.kill()
    innocent.wait()
    assert start_of(innocent.pid) == 0


@pytest.fixture
def shared_with(tmp_path: Path) -> Iterator[Claim]:
    """Yield the claim of a cluster on another host that shares the directory, and a process of the same number here."""
    with Claim(tmp_path) as claim:
        state = State(
            pid=os.getpid(), name="n", address="tcp://127.0.0.1:1", logs="", started="", start=start_of(os.getpid()),
            host="another", host_name="node7",
        )  # fmt: skip
        claim.write(state)
        yield claim


@pytest.mark.parametrize("command", [("down",), ("status",), ("jobs",), UP])
def test_a_cluster_of_another_host_that_shares_the_directory_is_left_alone(
    zmqps, tmp_path, shared_with, command
) -> None:
    """Down would otherwise end this very process, whose number and start are the same as the supervisor's there."""
    refused = zmqps(*command)
    assert refused.returncode == exits.USAGE
    assert "on node7" in refused.stderr
    state = read_state(tmp_path)
    assert state is not None
    assert state.elsewhere == "node7"


def test_what_a_cluster_has_left_on_another_host_is_not_removed_from_here(zmqps, tmp_path) -> None:
    path = state_path(tmp_path)
    with Claim(tmp_path) as claim:
        claim.write(State(pid=1, name="n", address="", logs="", started="", host="another", host_name="node7"))
        text = path.read_text()
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    assert zmqps("down").returncode == exits.USAGE
    assert path.read_text() == text


def test_what_a_cluster_has_left_before_its_host_started_anew_is_removed(zmqps, tmp_path) -> None:
    path = state_path(tmp_path)
    with Claim(tmp_path) as claim:
        claim.write(State(pid=1, name="n", address="", logs="", started="", host="the boot before"))
        text = path.read_text()
    path.parent.mkdir(mode=0o700)
    path.write_text(text)
    assert zmqps("down").returncode == exits.OK
    assert not path.exists()
