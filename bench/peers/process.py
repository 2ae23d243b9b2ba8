"""A process that is compared, as the benchmark sees it: started, asked for steps, ended with all that it started."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from bench.results import REPOSITORY

#: Every descendant inherits it, so that processes that left our process tree are found as well.
TAG = "ZMQPS_BENCH_PEER"
#: Importing TensorFlow, or starting Ray, on a busy machine.
TIMEOUT = 180.0
ENDING = 15.0
#: What Python ends with where a script's imports fail.
NOT_INSTALLED = ("ModuleNotFoundError: ", "ImportError: ")


class PeerError(RuntimeError):
    """A peer did not do its work; holds its last words."""


class PeerMissing(PeerError):
    """What a peer needs is not installed; its text is the reason."""


class PeerProcess:
    """A script of the benchmark, running in an environment of its own.

    Parameters
    ----------
    python
        The interpreter of that environment.
    module
        The script, as ``bench.peers.gloo``.
    arguments
        Its command line.
    root
        Where it runs, and looks for packages before it does so in this checkout.
    """

    def __init__(self, python: Path, module: str, arguments: Sequence[str], root: Path = REPOSITORY) -> None:
        self._tag = uuid.uuid4().hex
        self._module = module
        self._log = tempfile.TemporaryFile()
        environment = {**os.environ, TAG: self._tag, "PYTHONPATH": f"{root}{os.pathsep}{REPOSITORY}"}
        self._popen = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=root,
            env=environment,
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Itself and all that it has started, as long as their parents live."""
        itself = psutil.Process(self._popen.pid)
        return [process.pid for process in (itself, *itself.children(recursive=True))]

    def steps(self, count: int) -> list[float]:
        """Return the seconds of so many steps of every worker."""
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: `_answer` says of what
            self._popen.stdin.write(b"%d\n" % count)
            self._popen.stdin.flush()
        seconds: list[float] = self._answer()
        return seconds

    def _answer(self) -> Any:
        assert self._popen.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._popen.stdout, selectors.EVENT_READ)
            line = self._popen.stdout.readline() if selector.select(TIMEOUT) else b""
        if not line:
            self._log.seek(0)
            words = self._log.read().decode(errors="replace").strip().splitlines()
            for line in words[-8:]:
                if line.startswith(NOT_INSTALLED):
                    raise PeerMissing(line.partition(": ")[2])
            raise PeerError(f"{self._module} did not answer within {TIMEOUT:.0f} s, or died:\n" + "\n".join(words[-8:]))
        return json.loads(line)

    def close(self) -> None:
        """Ask it to end, then end whatever is left of it."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(ENDING)
        for process in self._left():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._popen.wait()
        self._popen.stdout.close()
        self._log.close()

    def _left(self) -> list[psutil.Process]:
        left = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # gone meanwhile, or another user's
                if process.environ().get(TAG) == self._tag:
                    left.append(process)
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
