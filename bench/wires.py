"""Hosts that are network namespaces on one machine, joined by wires of a chosen speed; made and ended here, as root."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

#: Seconds for a command that sets something up.
PATIENCE = 20.0
CLONE_NEWNET = 0x40000000
NETWORK = "10.77.0"


class WiresError(RuntimeError):
    """This machine cannot make them; says what is missing."""


def enter_network(pid: int) -> None:
    """Move the calling thread, and all that it starts, into the network of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as network:
        if libc.setns(network.fileno(), CLONE_NEWNET):
            raise WiresError(f"cannot enter the network of process {pid}: {os.strerror(ctypes.get_errno())}")


class Wires:
    """Hosts on one switch.

    Parameters
    ----------
    names
        Of the hosts.
    rate
        Of each host's wire, either way, as ``tc`` takes it: ``1gbit``.
    """

    def __init__(self, names: Sequence[str], rate: str) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        missing = [tool for tool in ("ip", "tc", "unshare", "nsenter") if not shutil.which(tool)]
        if os.geteuid() or missing:
            raise WiresError(f"networks of their own need root and iproute2; {', '.join(missing) or 'this is no root'}")
        try:
            self._make(names, rate)
        except BaseException:
            self.close()
            raise

    def _make(self, names: Sequence[str], rate: str) -> None:
        switch = self._namespace("switch")
        self._call("switch", "ip", "link", "add", "sw0", "type", "bridge", "forward_delay", "0")
        self._call("switch", "ip", "link", "set", "sw0", "up")
        for number, name in enumerate(names):
            pid = self._namespace(name)
            port = f"port{number}"
            self._call("switch", "ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
            self._call("switch", "ip", "link", "set", port, "master", "sw0", "up")
            self._call(name, "ip", "link", "set", "lo", "up")
            self._call(name, "ip", "address", "add", f"{NETWORK}.{number + 1}/24", "dev", "eth0")
            self._call(name, "ip", "link", "set", "eth0", "up")
            for where, interface in (("switch", port), (name, "eth0")):  # to the host, and from it
                shaped = ("tbf", "rate", rate, "burst", "256kb", "latency", "20ms")
                self._call(where, "tc", "qdisc", "add", "dev", interface, "root", *shaped)
        assert switch

    def _namespace(self, name: str) -> int:
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._processes[name] = process
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise WiresError("cannot make a network of its own: is this a container without the right to?")
        return process.pid

    def _call(self, name: str, *command: str) -> None:
        done = subprocess.run([*self.inside(name), *command], capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise WiresError(f"{' '.join(command)}: {done.stderr.strip()}")

    def pid(self, name: str) -> int:
        """Return a process whose network is that of a host."""
        return self._processes[name].pid

    def inside(self, name: str) -> list[str]:
        """Return what to put before a command that is to run on a host."""
        return ["nsenter", "--target", str(self.pid(name)), "--net"]

    @staticmethod
    def address(number: int) -> str:
        """Return the address of a host, by its place among the names."""
        return f"{NETWORK}.{number + 1}"

    def nbytes(self, name: str) -> int:
        """Return the bytes that have gone over a host's wire, both ways, headers included."""
        for line in Path(f"/proc/{self.pid(name)}/net/dev").read_text().splitlines():
            interface, _, rest = line.partition(":")
            if interface.strip() == "eth0":
                fields = rest.split()
                return int(fields[0]) + int(fields[8])
        raise WiresError(f"{name} has no wire")

    def close(self) -> None:
        """End the hosts; their wires go with them."""
        for process in self._processes.values():
            process.kill()
            process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
