"""Two hosts made of network namespaces of this machine, and the wire between them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

HERE, THERE = "10.78.0.1", "10.78.0.2"
WIRE = "wire0"
DELAY = Path(__file__).with_name("delay.py")
PROGRAMS = ("ip", "tc", "nsenter", "unshare")
#: Seconds for a command that sets something up.
PATIENCE = 15.0
#: Of linux/sched.h.
CLONE_NEWNET = 0x40000000
#: A token bucket holds what its wire carries in so many seconds, and no less than a frame of segmentation offload.
BURST_S, MIN_BURST_NBYTES = 1e-3, 128 << 10
#: The instructions of a filter that drops frames by chance: a random number, compared with a share of 2³²; 2: drop.
DROP = "4,32 0 0 4294963256,53 0 1 {least},6 0 0 2,6 0 0 4294967295"
#: Without offloads, frames are as they are on a wire, and one that is lost is one of TCP's segments.
SHORT = "gso_max_segs 1 gro_max_size 1500"


class NamespaceError(Exception):
    """Hosts or their wire cannot be made; the text says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """A wire.

    Attributes
    ----------
    mbit
        What it carries each way.
    delay_ms
        What it adds to a round trip.
    loss
        The share of frames that vanish, each way.
    """

    mbit: float
    delay_ms: float = 0.0
    loss: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """What it carries each way, headers included."""
        return self.mbit * 1e6 / 8

    def __str__(self) -> str:
        rate = f"{self.mbit / 1000:g} Gbit/s" if self.mbit >= 1000 else f"{self.mbit:g} Mbit/s"
        return f"{rate}, +{self.delay_ms:g} ms" + (f", {self.loss:.2%} lost" if self.loss else "")


class Hosts:
    """Two hosts and a wire, until the end of the ``with`` block or of this process.

    Delay and loss come from ``netem``. Where the kernel lacks it, a filter drops frames, and a program in the middle of
    the wire delays them (`bench.delay`); both at a time it cannot do, for that program hands on many frames as one.

    Parameters
    ----------
    wire
        What it is like.

    Raises
    ------
    NamespaceError
        This machine cannot do it, or may not.
    """

    def __init__(self, wire: WireOptions) -> None:
        self._wire = wire
        self._stack = ExitStack()
        self._pids: list[int] = []
        self.delayed_by_program = False

    def __enter__(self) -> Self:
        with self._stack:
            self._build()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()

    @property
    def here(self) -> str:
        """The namespace of the worker's host, as a path."""
        return f"/proc/{self._pids[0]}/ns/net"

    @property
    def there(self) -> str:
        """That of the servers' host."""
        return f"/proc/{self._pids[1]}/ns/net"

    def popen(self, path: str, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a program on a host; it ends with the block."""
        process = subprocess.Popen(["nsenter", f"--net={path}", *command], **options)
        self._stack.callback(_end, process)
        return process

    def _build(self) -> None:
        wire = self._wire
        netem = self._makes(f"netem delay {wire.delay_ms / 2:g}ms") if wire.delay_ms or wire.loss else False
        self.delayed_by_program = bool(wire.delay_ms) and not netem
        if wire.loss and self.delayed_by_program:
            raise NamespaceError("this kernel lacks netem: a wire can lose frames or delay them, not both")
        self._pids = [self._host() for _ in range(3 if self.delayed_by_program else 2)]
        here, there = self._pids[:2]
        if self.delayed_by_program:
            self._join_by_program(here, there, self._pids[2])
        else:
            _ip(here, f"link add {WIRE} type veth peer name {WIRE} netns {there}")
        for pid, address in ((here, HERE), (there, THERE)):
            _ip(pid, f"address add {address}/24 dev {WIRE}", "link set lo up", f"link set {WIRE} up")
            if wire.loss:
                _ip(pid, f"link set {WIRE} {SHORT}")
            burst = max(MIN_BURST_NBYTES, int(wire.bytes_per_s * BURST_S))
            parent = "root"
            if netem:
                what = f"netem delay {wire.delay_ms / 2:g}ms loss {100 * wire.loss:g}% limit 100000"
                _tc(pid, f"qdisc add dev {WIRE} root handle 1: {what}")
                parent = "parent 1:"
            elif wire.loss:
                _tc(pid, f"qdisc add dev {WIRE} clsact")
                drop = DROP.format(least=int((1 - wire.loss) * 2**32))
                _run(pid, ["tc", *f"filter add dev {WIRE} ingress bpf da bytecode".split(), drop])
            _tc(pid, f"qdisc add dev {WIRE} {parent} tbf rate {round(wire.mbit * 1000)}kbit burst {burst} latency 50ms")

    def _host(self) -> int:
        """Make a namespace that ends with this process; return the number of the process that holds it."""
        holder = ["unshare", "--net", "sh", "-c", "echo ready; exec cat"]
        process = subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._stack.callback(_end, process)
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != b"ready\n":
            raise NamespaceError(f"no network namespace: {process.stderr.read().decode(errors='replace').strip()}")
        return process.pid

    def _makes(self, qdisc: str) -> bool:
        """Whether the kernel has a discipline of queues."""
        try:
            _tc(self._host(), f"qdisc add dev lo root {qdisc}")
        except NamespaceError:
            return False
        return True

    def _join_by_program(self, here: int, there: int, middle: int) -> None:
        for pid, end in ((here, "left"), (there, "right")):
            _ip(middle, f"link add {end} type veth peer name {WIRE} netns {pid}", f"link set {end} up")
        command = [sys.executable, "-I", "-S", str(DELAY), "left", "right", f"{self._wire.delay_ms / 2000}"]
        self.popen(f"/proc/{middle}/ns/net", command)


def inside(path: str, make: Callable[..., T], *arguments: Any) -> T:
    """Move this thread, and those it starts from now on, into a network namespace, and call something there."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
    return make(*arguments)


def become_able(arguments: Sequence[str]) -> None:
    """Return if this process may make hosts; else run this program once more as one that may.

    Raises
    ------
    NamespaceError
        There is no way to.
    """
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if sys.platform != "linux":
        raise NamespaceError("hosts of network namespaces need Linux")
    if absent := [name for name in PROGRAMS if not shutil.which(name)]:
        raise NamespaceError(f"not installed: {', '.join(absent)} (packages iproute2 and util-linux)")
    if os.geteuid() == 0:
        return
    user = ["unshare", "--user", "--map-root-user"]
    tried = subprocess.run([*user, "--net", "true"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if tried.returncode:
        raise NamespaceError(f"needs root, or a kernel that lets users have namespaces: {tried.stderr.strip()}")
    os.execvp("unshare", [*user, sys.executable, "-m", "bench", *arguments])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate(timeout=PATIENCE)


def _run(pid: int, command: Sequence[str]) -> None:
    enter = ["nsenter", f"--net=/proc/{pid}/ns/net"]
    done = subprocess.run([*enter, *command], capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise NamespaceError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")


def _ip(pid: int, *lines: str) -> None:
    for line in lines:
        _run(pid, ["ip", *line.split()])


def _tc(pid: int, line: str) -> None:
    _run(pid, ["tc", *line.split()])
