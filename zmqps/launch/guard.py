"""Ends what a killed process leaves: a program that outlives it for the moment that this takes.

The kernel kills the workers of a process that dies (`zmqps.launch.leash`), but not what these have started. The guard
knows their process groups and hears on a pipe when the process that it guards has ended. It needs the standard library
only and is run by its path, so that it takes little memory and starts quickly.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

APART = "apart"


class Guard:
    """This process's guard.

    Parameters
    ----------
    apart
        Detach from the parent: for a process whose children are killed when it ends, as Ray does.
    """

    def __init__(self, *, apart: bool = False) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *[APART] * apart], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if apart else subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        if apart:
            self._popen.wait()

    def watch(self, group: int) -> None:
        """Have a process group killed when this process has ended."""
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        """Leave a process group alone, which has ended."""
        self._say(f"-{group}")

    def remove(self, folder: Path) -> None:
        """Have a folder removed as well."""
        self._say(f"/{folder}")

    def _say(self, line: str) -> None:
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):  # it was killed already
            os.write(self._popen.stdin.fileno(), line.encode() + b"\n")

    def close(self) -> None:
        """Let it end, which it does at once."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()
        if self._popen.stdout is not None:
            with self._popen.stdout as end:
                end.read()  # of one apart this is all that tells its end


def main() -> None:
    """Wait for the end of standard input; kill and remove what it has named."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if APART in sys.argv and os.fork():
        os._exit(0)
    groups: set[int] = set()
    folders: set[str] = set()
    for line in sys.stdin:
        kind, what = line[0], line[1:].rstrip("\n")
        if kind == "+":
            groups.add(int(what))
        elif kind == "-":
            groups.discard(int(what))
        else:
            folders.add(what)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
