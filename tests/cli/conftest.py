"""Running ``zmqps`` as a user does: a process, its output, its exit code."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.pace import allow
from zmqps.cli import main

ROOT = Path(__file__).resolve().parents[2]
#: Seconds that anything here may take; a machine under load is slow, a hang is for ever.
PATIENCE = allow(30.0)
#: What the commands wait for a start by default, given the time that it takes here.
STARTS = {"ZMQPS_UP_TIMEOUT": str(allow(30.0)), "ZMQPS_LAUNCH_TIMEOUT": str(allow(60.0))}
#: Not passed on: asyncio's debug mode tells stderr of each step of more than 0.1 s, and that is the machine's doing.
LEFT_OUT = ("ZMQPS_", "PYTHONASYNCIODEBUG")


def environment() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    return {**env, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **STARTS}


class Running:
    """A ``zmqps`` process in the foreground; output is read as it comes."""

    def __init__(self, arguments: Sequence[str], directory: Path, *python: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *(python or ("-m", "zmqps")), *arguments], cwd=directory, env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert self.popen.stdout is not None
        self._pipe = self.popen.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self.output = ""

    @property
    def pid(self) -> int:
        return self.popen.pid

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read until the output matches."""
        deadline = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.output)):
            ready, _, _ = select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._pipe.fileno(), 65536) if ready else b""
            assert data, f"no {pattern!r} in:\n{self.output}"
            self.output += data.decode()
        return match

    def exit_code(self) -> int:
        """Wait for the end; read what is left to read."""
        os.set_blocking(self._pipe.fileno(), True)
        self.output += self._pipe.read().decode()
        return self.popen.wait(PATIENCE)

    def end(self) -> None:
        end(self.popen)
        self._pipe.close()


def end(popen: subprocess.Popen[Any]) -> None:
    """Kill a process and what it has started."""
    if popen.poll() is None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(popen.pid).children(recursive=True):
                child.kill()
        popen.send_signal(signal.SIGKILL)
        popen.wait(PATIENCE)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start ``zmqps`` with arguments, in the test's directory."""
    running: list[Running] = []

    def begin(*arguments: str, directory: Path = tmp_path) -> Running:
        running.append(Running(arguments, directory))
        return running[-1]

    yield begin
    for process in running:
        process.end()


@pytest.fixture
def zmqps(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``zmqps`` with arguments and variables, in the test's directory, to its end."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with subprocess.Popen(
            [sys.executable, "-m", "zmqps", *arguments], cwd=tmp_path, env=environment() | variables,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as popen:  # fmt: skip
            try:
                stdout, stderr = popen.communicate(timeout=PATIENCE)
            except BaseException:
                end(popen)  # what it has started, too: a node that is still starting would outlast the test
                raise
        return subprocess.CompletedProcess(popen.args, popen.returncode, stdout, stderr)

    return run


@pytest.fixture
def within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """As `zmqps`, in the process of the test: for a command that starts nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = main.run(arguments)
        said = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, said.out, said.err)

    return run
