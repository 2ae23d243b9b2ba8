"""The script of deploy/dask on a Dask of this host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.imports import ROOT
from tests.pace import allow

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


class Training:
    """The script as a process, whose output is read line by line."""

    def __init__(self) -> None:
        self.said = ""
        self.popen = subprocess.Popen(
            [sys.executable, str(ROOT / "deploy/dask/digits.py")], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def until(self, pattern: str) -> re.Match[str]:
        """Return the next match in what the script has said, which may be on a line to come."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.said += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(self.said)

    def trains(self) -> None:
        """Wait for the end; every task must have learned the digits."""
        rest, _ = self.popen.communicate(timeout=allow(200))
        assert self.popen.returncode == 0, self.said + rest
        found = re.findall(r"^worker \d: test accuracy (\d\.\d+)", rest, re.MULTILINE)
        assert len(found) == 4, self.said + rest
        assert min(map(float, found)) > 0.9


@pytest.fixture
def training() -> Iterator[Training]:
    pytest.importorskip("distributed")
    found = Training()
    yield found
    found.popen.kill()
    found.popen.communicate()


def test_each_server_has_its_own_number_and_digits_are_learned(training: Training) -> None:
    training.until("uploads the initial values")
    joined = re.findall(r"coordinator \| \S+ \S+ server (\d) \((server-\d), .*\) joined", training.said)
    assert sorted(joined) == [("0", "server-0"), ("1", "server-1")], training.said
    training.trains()


@pytest.mark.parametrize("is_dasks", [False, True], ids=["a server", "a worker of Dask beside a server"])
def test_a_server_that_is_lost_comes_back_and_the_tasks_begin_again(is_dasks: bool, training: Training) -> None:
    server = psutil.Process(int(training.until(r"server 1 \(server-1, .* pid (\d+)\) joined")[1]))
    training.until("uploads the initial values")
    (server.parent() if is_dasks else server).kill()
    training.until(r"server 1 \(server-1, .*\) joined")
    training.trains()
