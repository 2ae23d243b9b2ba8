"""A host on a LAN of namespaces: its files, its sshd, and the processes on it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.imports import ROOT
from tests.lan.namespaces import PATIENCE, LanError, Namespaces
from tests.pace import allow

#: What a host does not share with this machine: directories of its own, on disk, and such in memory.
ON_DISK = ("tmp", "var/tmp")
IN_MEMORY = ("dev/shm", "run")
#: The beginning of the command lines of sshd: who serves a host that has vanished waits for it as long as TCP does.
SSHD = "sshd:"
#: What tells hosts apart although they have one kernel.
BOOT_ID = "proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Traffic:
    """Bytes that have gone through a host's interfaces since it was made, frames' headers included."""

    received: int
    sent: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.received - earlier.received, self.sent - earlier.sent)


class Process(subprocess.Popen[str]):
    """A process on a host: signals reach it, and what it says, errors included, is kept by line.

    Its exit code is a shell's: one that a signal has ended has that number below zero.
    """

    def __init__(self, namespaces: Namespaces, command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        self._spoken = threading.Condition()
        #: What it has said: when, as `time.monotonic` counts, and a line.
        self.lines: list[tuple[float, str]] = []
        self.inside: int | None = None
        super().__init__(
            [*namespaces.enter(), "env", "-C", str(cwd), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.stdout is not None
        for line in self.stdout:
            with self._spoken:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self._spoken.notify_all()
        with self._spoken:
            self._spoken.notify_all()

    @property
    def output(self) -> str:
        """All that it has said until now."""
        with self._spoken:
            return "\n".join(line for _, line in self.lines)

    def said(self, pattern: str, timeout: float = allow(30.0)) -> re.Match[str]:
        """Wait until it says a line in which a regular expression is found.

        Raises
        ------
        LanError
            It ended, or the time is over; the text has what it has said.
        """
        ends_at = time.monotonic() + timeout
        with self._spoken:
            seen = 0
            while True:
                for _, line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                left = ends_at - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    why = "in time" if left <= 0 else "before its end"
                    raise LanError(f"{self.args!r} has not said {pattern!r} {why}:\n{self.output}")
                self._spoken.wait(min(left, 1.0))

    def finish(self, timeout: float = allow(60.0)) -> int:
        """Wait for its end and for all that it had to say; return its exit code."""
        try:
            code = self.wait(timeout)
        except subprocess.TimeoutExpired:
            raise LanError(f"{self.args!r} has not ended after {timeout:g} s:\n{self.output}") from None
        self._reader.join(PATIENCE)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal to the process on the host, not to what entered there for it."""
        if self.poll() is None:
            os.kill(youngest_but(self.pid), sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it still runs, and give back what this process has of it."""
        super().send_signal(signal.SIGKILL)
        self.wait(PATIENCE)
        self._reader.join(PATIENCE)
        if self.stdout is not None and not self._reader.is_alive():
            self.stdout.close()


def youngest_but(pid: int) -> int:
    """Return the only child of ``nsenter``: the process that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


class Host:
    """One host of a `Lan`, which makes it."""

    def __init__(self, name: str, directory: Path, lan: Namespaces, home: Path | None, seconds: int) -> None:
        self.name, self.directory = name, directory
        #: Addresses by interface: ``eth0`` and perhaps ``eth1``.
        self.ipv4: dict[str, str] = {}
        self.ipv6: dict[str, str] = {}
        #: What the root user of this host calls home; the host's ``/tmp``, seen from outside.
        self.home = home or directory / "home"
        self.tmp = directory / "tmp"
        self.namespaces = Namespaces(["--net", "--uts", "--ipc"], inside=lan, seconds=seconds)
        self._processes: list[Process] = []

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    @property
    def address(self) -> str:
        """The IPv4 address of its first interface."""
        return self.ipv4["eth0"]

    @property
    def address6(self) -> str:
        """The IPv6 address of its first interface, without brackets."""
        return self.ipv6["eth0"]

    # --- files, made once -----------------------------------------------------------------------

    def furnish(self, hosts_file: str) -> None:
        """Give it a name, files of its own and an account of root whose home is `home`."""
        etc = self.directory / "etc"
        etc.mkdir()
        account = f"root:x:0:0:root:{self.home}:/bin/bash"
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        files = {
            "etc/passwd": "\n".join([account, *others]) + "\n",
            "etc/shadow": "".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in [account, *others]),
            "etc/hosts": hosts_file,
            "etc/hostname": f"{self.name}\n",
            "etc/resolv.conf": "",
            "etc/machine-id": f"{abs(hash(self.directory)):032x}\n",
            BOOT_ID: f"{os.urandom(4).hex()}-0000-4000-8000-{os.urandom(6).hex()}\n",
        }
        script = ["set -e"]
        for path, text in files.items():
            source = etc / path.rpartition("/")[2]
            source.write_text(text)
            source.chmod(0o600 if path.endswith("shadow") else 0o644)
            script.append(f"test ! -e /{path} || mount --bind {source} /{path}")
        keep = {str(ROOT), sys.prefix, sys.base_prefix, str(self.home), str(self.directory)}
        for path in ON_DISK:
            mine = self.directory / path
            mine.mkdir(parents=True, exist_ok=True)
            mine.chmod(0o1777)
            for kept in sorted(keep):  # shorter ones first: what lies in them comes along
                if Path(kept).is_relative_to(f"/{path}"):
                    below = mine / Path(kept).relative_to(f"/{path}")
                    script.append(f"mkdir -p {below}; mount --rbind {kept} {below}")
            script.append(f"mount --rbind {mine} /{path}")
        script += [f"mount -t tmpfs -o mode=1777 tmpfs /{path}" for path in IN_MEMORY]
        script += ["mkdir -p -m 755 /run/sshd", f"hostname {self.name}", "ip link set lo up"]
        # What one connection has learnt of a path is not to slow down the next, after the path has changed.
        script.append("echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save")
        self.home.mkdir(mode=0o700, exist_ok=True)
        self.namespaces.call(["sh", "-s"], text="\n".join(script) + "\n")

    def serve_ssh(self, key: Path, known_hosts: Path, config: Path) -> None:
        """Start sshd with a key of its own; whoever has ``key`` may come in, from here to all others too."""
        ssh = self.home / ".ssh"
        ssh.mkdir(mode=0o700, exist_ok=True)
        for source, name in ((key, key.name), (known_hosts, "known_hosts"), (config, "config")):
            shutil.copy(source, ssh / name)
        shutil.copy(f"{key}.pub", ssh / "authorized_keys")
        own = self.directory / "sshd_config"
        own.write_text(
            f"HostKey {self.directory / 'host_key'}\nPidFile none\nUsePAM no\nPermitRootLogin prohibit-password\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nSubsystem sftp internal-sftp\n"
            f"UseDNS no\nSetEnv PYTHONPATH={ROOT}\nMaxStartups 100\nMaxSessions 100\nPrintMotd no\nPrintLastLog no\n"
        )
        sshd = shutil.which("sshd") or "/usr/sbin/sshd"
        self.popen([sshd, "-D", "-e", "-f", str(own)]).said("Server listening on ::|Server listening on 0.0.0.0")

    # --- processes ------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of the processes that are started here: this repository's package and Python."""
        own = {name: value for name, value in os.environ.items() if not name.startswith(("ZMQPS_", "PYTHON", "SSH_"))}
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        return {**own, "HOME": str(self.home), "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **more}

    def popen(
        self, command: Sequence[Any], *, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Process:
        """Start a process here; ``python`` is the Python that runs the tests.

        Parameters
        ----------
        command
            The program and its arguments.
        cwd
            Where it starts; by default at home.
        env
            What it has in its environment beside what all have.
        """
        words = [sys.executable if str(word) == "python" else str(word) for word in command[:1]]
        words += [str(word) for word in command[1:]]
        process = Process(self.namespaces, words, cwd or self.home, self.environment(**(env or {})))
        self._processes.append(process)
        return process

    def zmqps(self, *words: Any, **options: Any) -> Process:
        """Start a command of zmqps here."""
        return self.popen(["python", "-m", "zmqps", *words], **options)

    def run(
        self,
        command: Sequence[Any],
        *,
        timeout: float = allow(30.0),
        check: bool = True,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command here until it ends; return what it has said, errors included.

        Raises
        ------
        LanError
            It failed, and ``check`` is set, or has not ended in time.
        """
        process = self.popen(command, cwd=cwd, env=env)
        try:
            if (code := process.finish(timeout)) and check:
                raise LanError(f"{command!r} on {self.name} ended with {code}:\n{process.output}")
            return process.output
        finally:
            process.close()
            self._processes.remove(process)

    def left(self) -> list[str]:
        """Return the command lines of all that runs here, beside sshd."""
        return [line for _, line in self.namespaces.processes() if not line.startswith(SSHD)]

    def emptied(self, timeout: float = allow(15.0)) -> list[str]:
        """Wait until nothing of `left` runs here any more; return what does when the time is over."""
        ends_at = time.monotonic() + timeout
        while time.monotonic() < ends_at:
            running = [pid for pid, line in self.namespaces.processes() if not line.startswith(SSHD)]
            if not running:
                return []
            with contextlib.suppress(ProcessLookupError):
                end = os.pidfd_open(running[0])
                try:
                    select.select([end], [], [], max(0.0, ends_at - time.monotonic()))
                finally:
                    os.close(end)
        return self.left()

    def traffic(self, interface: str = "") -> Traffic:
        """Return what has gone through its interfaces, loopback left out, or through one of them."""
        received = sent = 0
        for line in Path(f"/proc/{self.namespaces.pid}/net/dev").read_text().splitlines()[2:]:
            name, _, figures = line.strip().partition(":")
            if name == interface or (not interface and name != "lo"):
                received, sent = received + int(figures.split()[0]), sent + int(figures.split()[8])
        return Traffic(received, sent)

    def end(self) -> None:
        """End all that runs here, and the host with it."""
        self.namespaces.end()
        for process in self._processes:
            process.close()
        self._processes.clear()
