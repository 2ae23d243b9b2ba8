"""Runs a command that must not outlive the process which started it: ``leash.py PARENT COMMAND…``.

A separate file, run by its path, because it executes in the child: setting the parent-death
signal between fork and exec (``preexec_fn``) would run Python in a forked copy of a process with
threads. The command then replaces this program, so it is what `ps` shows and signals reach.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127  # as shells have it
PROCESS = "ZMQPS_PROCESS"  # as in `zmqps.net.identity`, which cannot be imported here


def put_on(parent: int) -> None:
    """End this process with its parent, which has this process id."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the leash was on
            sys.exit(NOT_FOUND)


def main() -> None:
    """Replace this process by the command, on the leash."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    put_on(parent)
    if PROCESS in os.environ:  # this process group ends with it
        os.environ[PROCESS] += f":{os.getpid()}"
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_FOUND)


if __name__ == "__main__":
    main()
