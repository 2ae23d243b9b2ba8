"""Processes that are no children of ours, by their numbers."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.launch import processes
from zmqps.launch.processes import (
    MAX_SETTINGS_NBYTES,
    Process,
    describe_exit,
    gone,
    hand_over,
    has_mark,
    mark_of,
    marked,
    received,
    signal_if,
)
from zmqps.launch.supervision import failed

pytestmark = pytest.mark.processes

PATIENCE = allow(20.0)
SOMEBODY = mark_of(7, 8)
#: Starts a child that waits, says its number, and waits as well. The child runs by then: in the midst of its `exec` it
#: has no environment that others can read.
FAMILY = """if True:
    import subprocess, sys
    waits = "import signal; print(flush=True); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE)  # which outlives this one
    child.stdout.readline()
    print(child.pid, flush=True)
    input()"""


@pytest.fixture
def family() -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Yield the leader of a session and its child."""
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, **SOMEBODY},
    ) as leader:  # fmt: skip
        assert leader.stdout is not None
        child = psutil.Process(int(leader.stdout.readline()))
        yield leader, child
        for process in (leader, child):
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        child.wait(PATIENCE)


def test_what_a_leader_leaves_is_found_by_its_session_and_its_mark(family) -> None:
    leader, child = family
    assert sorted(marked(leader.pid, SOMEBODY)) == sorted([leader.pid, child.pid])
    leader.kill()
    leader.wait(PATIENCE)
    assert marked(leader.pid, SOMEBODY) == [child.pid]
    assert marked(leader.pid, mark_of(7, 9)) == [], "the number of the session was given to another one"
    assert marked(leader.pid + 1, SOMEBODY) == [], "it has left for a session of its own"
    signal_if(child.pid, signal.SIGKILL, lambda: has_mark(child.pid, mark_of(7, 9)))
    assert has_mark(child.pid, SOMEBODY), "it lives"
    signal_if(child.pid, signal.SIGKILL, lambda: has_mark(child.pid, SOMEBODY))
    child.wait(PATIENCE)
    assert not has_mark(child.pid, SOMEBODY)
    signal_if(child.pid, signal.SIGKILL, lambda: pytest.fail("there is nobody"))


@pytest.mark.parametrize("events", [True, False])
def test_the_end_of_a_process_is_awaited_with_and_without_an_event(family, events, monkeypatch) -> None:
    leader, child = family

    def none(pid: int, flags: int = 0) -> int:
        raise OSError(errno.ENODEV, "an old system")

    if not events:
        monkeypatch.setattr(processes.os, "pidfd_open", none)

    async def main() -> None:
        ended = asyncio.ensure_future(gone(child.pid))
        await asyncio.sleep(0)
        assert not ended.done()
        os.kill(child.pid, signal.SIGKILL)
        leader.kill()
        await asyncio.wait_for(ended, PATIENCE)

    asyncio.run(main())
    asyncio.run(gone(child.pid))  # of one that has ended there is nothing to wait for


def test_a_worker_finds_a_secret_for_its_channels_unless_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZMQPS_CHANNEL_SECRET", raising=False)
    made = [processes.worker_environment("tcp://127.0.0.1:1", index)["ZMQPS_CHANNEL_SECRET"] for index in (0, 1)]
    assert made[0] == made[1]
    assert len(made[0]) == 32
    monkeypatch.setenv("ZMQPS_CHANNEL_SECRET", "what the user knows")
    assert processes.worker_environment("tcp://127.0.0.1:1", 0)["ZMQPS_CHANNEL_SECRET"] == "what the user knows"


FAILS = [sys.executable, "-c", "raise SystemExit(3)"]


def test_how_a_child_has_ended_is_not_made_up_where_the_script_has_taken_it(tmp_path: Path) -> None:
    child = Process("worker-0", FAILS, stdout=subprocess.DEVNULL, log=tmp_path / "log")
    os.waitid(os.P_PID, child.popen.pid, os.WEXITED)
    code = asyncio.run(asyncio.wait_for(child.exited(), PATIENCE))
    assert failed(code)
    assert "not known" in describe_exit(code)


def test_how_a_child_ends_is_known_although_the_ends_of_children_were_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        child = Process("worker-0", FAILS, stdout=subprocess.DEVNULL, log=tmp_path / "log")
        assert asyncio.run(asyncio.wait_for(child.exited(), PATIENCE)) == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_node_reads_its_settings_and_nothing_of_what_follows() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hand_over(ours, {"name": "server-0", "keys": None})
        ours.sendall(b"more")
        assert received(theirs.fileno()) == {"name": "server-0", "keys": None}
        assert theirs.recv(10) == b"more"


def test_the_largest_settings_fit_before_a_node_reads_them_and_larger_ones_are_refused() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        largest = {"name": "x" * (MAX_SETTINGS_NBYTES - len('{"name": ""}'))}
        hand_over(ours, largest)
        assert received(theirs.fileno()) == largest
        with pytest.raises(ConfigurationError, match="give fewer --restore-names"):
            hand_over(ours, {"name": "x" * MAX_SETTINGS_NBYTES})


@for_each("said", [b"", b"\0\0", b"\0\0\0\5{}", b"\0\0\0\2[}", b"\xff\xff\xff\xff{}", b"\0\0\0\0"])
def test_what_is_no_settings_is_refused(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(said)
        with pytest.raises(ConfigurationError, match="for launchers"):
            received(theirs.fileno())
