"""``make observe`` as a process that tests start and end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.conftest import end, environment
from tests.deploy.commands import DEPLOY


class Observing:
    """``observe.py`` as a process, whose output is read line by line."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, str(DEPLOY / "observability" / "observe.py"), *arguments],
            env=environment() | variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.popen.pid).children(recursive=True)

    def close(self) -> None:
        end(self.popen)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


Observe = Callable[..., Observing]


@pytest.fixture
def observe(tmp_path: Path) -> Iterator[Observe]:
    started: list[Observing] = []

    def begin(*arguments: str, **variables: str) -> Observing:
        started.append(Observing("--directory", str(tmp_path / "observe"), *arguments, **variables))
        return started[-1]

    yield begin
    for one in started:
        one.close()
