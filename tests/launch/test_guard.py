"""The guard ends what a killed process leaves."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from tests.pace import allow

pytestmark = pytest.mark.processes

#: Starts a group of two processes, has them guarded, says who they are, and waits.
GUARDED = """if True:
    import subprocess, sys, pathlib
    from zmqps.launch.guard import Guard
    apart = sys.argv[2] == "apart"
    guard = Guard(apart=apart)
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, process_group=0)
    guard.watch(child.pid)
    guard.remove(pathlib.Path(sys.argv[1]))
    print(child.pid, int(child.stdout.readline()), *[guard._popen.pid] * (not apart), flush=True)
    input()
    if sys.argv[2] == "forget":
        guard.forget(child.pid)
        guard.close()
        child.kill()"""
PATIENCE = allow(20.0)


def start(folder: Path, how: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    popen = subprocess.Popen(
        [sys.executable, "-c", GUARDED, str(folder), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert popen.stdout is not None
    return popen, [psutil.Process(int(word)) for word in popen.stdout.readline().split()]


@pytest.mark.parametrize("how", ["child", "apart"])
def test_a_group_and_a_folder_go_with_the_process_that_is_killed(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    popen, others = start(folder, how)
    with popen:
        popen.kill()
        assert psutil.wait_procs(others, PATIENCE)[1] == []
    if how == "apart":  # then its end is not known here
        patience = threading.Event()
        for _ in range(200):
            if folder.exists():
                patience.wait(PATIENCE / 200)
    assert not folder.exists()


def test_a_group_that_was_forgotten_is_left_alone(tmp_path: Path) -> None:
    popen, (child, grandchild, guard) = start(tmp_path / "nothing", "forget")
    with popen:
        popen.communicate("go\n", timeout=PATIENCE)
    assert psutil.wait_procs([child, guard], PATIENCE)[1] == []
    assert grandchild.is_running()
    grandchild.kill()
    grandchild.wait(PATIENCE)
