"""Namespaces that live as long as their process 1, and commands run inside them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

from tests.pace import allow

KEEPER = Path(__file__).with_name("keeper.py")
#: Seconds to wait for a namespace to be made and to vanish, and for a command that only sets something up.
PATIENCE = allow(15.0)


class LanError(Exception):
    """A LAN cannot be made or changed as asked; the text has what the tool said."""


class Namespaces:
    """Namespaces of their own, kept by a process 1 that ends with this process or after ``seconds``.

    Parameters
    ----------
    kinds
        Which are new, as flags of ``unshare``: ``--net``, ``--uts``, …; processes and mounts always are.
    inside
        Those to make them in: their end is the end of these, too.
    seconds
        The longest life.
    """

    def __init__(self, kinds: Sequence[str], *, inside: Namespaces | None = None, seconds: int) -> None:
        enter = inside.enter() if inside else []
        unshare = ["unshare", *kinds, "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        self._leash = subprocess.Popen(
            [*enter, *unshare, sys.executable, "-I", "-S", str(KEEPER), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._leash.stdout is not None
        if self._leash.stdout.readline() != b"ready\n":
            _, said = self._leash.communicate(timeout=PATIENCE)
            raise LanError(f"cannot make namespaces: {said.decode(errors='replace').strip()}")
        self.pid = youngest(self._leash.pid)
        held = os.open(f"/proc/{self.pid}/ns/pid", os.O_RDONLY)  # or its number is given to another one after its end
        weakref.finalize(self, os.close, held)
        self._processes = os.fstat(held).st_ino
        self._pidfd: int | None = os.pidfd_open(self.pid)

    def enter(self, *, only: str = "--net --uts --ipc --mount --pid") -> list[str]:
        """Return what to put before a command that is to run inside."""
        return ["nsenter", "--target", str(self.pid), *only.split()]

    def call(self, command: Sequence[str], *, text: str | None = None, only: str = "") -> str:
        """Run a command that sets something up inside, and return what it says.

        Raises
        ------
        LanError
            It failed.
        """
        enter = self.enter(only=only) if only else self.enter()
        done = subprocess.run([*enter, *command], input=text, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise LanError(f"{' '.join(command)}\n{text or ''}\n{done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def ip(self, *lines: str) -> None:
        """Run lines of ``ip``, such as ``link set lo up``; names of processes in them are those of outside."""
        self.call(["ip", "-batch", "-"], text="\n".join(lines) + "\n", only="--net")

    def processes(self) -> list[tuple[int, str]]:
        """Return the processes inside but for process 1: number outside, and command line."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # gone meanwhile
                if os.stat(directory / "ns/pid").st_ino != self._processes or int(directory.name) == self.pid:
                    continue
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                name, _, state = (directory / "stat").read_text().partition("(")[2].rpartition(")")
                if command or state.split()[0] != "Z":  # one that is about to become another program has no command
                    found.append((int(directory.name), command or f"[{name}]"))
        return found

    def end(self) -> None:
        """End everything inside, and wait until it has ended; once is enough."""
        if self._pidfd is None:
            return
        pidfd, self._pidfd = self._pidfd, None
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            ended = select.select([pidfd], [], [], PATIENCE)[0]
            self._leash.communicate(timeout=PATIENCE)
        finally:
            os.close(pidfd)
        if not ended:
            raise LanError(f"process {self.pid} was killed and has not ended")


def youngest(pid: int) -> int:
    """Return the last of a chain of processes that have one child each."""
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[-1])
    return pid
