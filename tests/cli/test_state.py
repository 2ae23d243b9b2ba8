"""The file that says what runs here: what another has planted is not believed, and leads to nobody's end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.test_files import NOBODY, as_root
from zmqps.cli.state import Claim, State, read_state, state_path
from zmqps.core.protocol import exits
from zmqps.errors import UnsafeFileError
from zmqps.launch.processes import start_of

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
