"""A cluster started by hand, node by node, on the hosts of a LAN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.imports import ROOT
from tests.lan.host import Host, Process
from tests.pace import allow

TRAINER = ROOT / "tests/lan/trainer.py"
DIGITS = ROOT / "examples/digits.py"
PORT = 5570
#: A name, and values as they lie in memory, that a recording of the traffic would show.
NAME = "the-name-of-a-parameter"
VALUES = b"\x00\x00\x80\xbf" * 16  # -1.0, again and again


@dataclass
class Cluster:
    """Where the coordinator is reached, and the nodes."""

    address: str
    coordinator: Process
    servers: list[Process] = field(default_factory=list)

    def worker(self, host: Host, *words: Any) -> Process:
        """Start a worker that pushes and pulls as `tests/lan/trainer.py` is told to, and wait until it has begun."""
        process = self.start_worker(host, *words)
        process.said("begins", 60)
        return process

    def start_worker(self, host: Host, *words: Any) -> Process:
        """Start a worker and do not wait."""
        return host.popen(["python", TRAINER, "--coordinator", self.address, *words])

    @property
    def nodes(self) -> list[Process]:
        """The coordinator and the servers."""
        return [self.coordinator, *self.servers]

    @property
    def log(self) -> str:
        """What all nodes have said."""
        return "\n".join(node.output for node in self.nodes)


def join(host: str, port: int) -> str:
    """Return an endpoint; an IPv6 address gets its brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def start(
    coordinator: Host,
    servers: Sequence[Host],
    *options: str,
    server_options: Sequence[str] = (),
    trust: Sequence[str] = ("--insecure",),
    ipv6: bool = False,
    wait: bool = True,
) -> Cluster:
    """Start a coordinator and a server on each of some hosts; return when all servers have joined.

    Parameters
    ----------
    coordinator, servers
        The hosts; one may be there several times.
    options
        Of the coordinator.
    server_options
        Of each server; by default what it binds is the host's first address.
    trust
        Options of all nodes: by default nothing is encrypted.
    ipv6
        Whether addresses are IPv6's.
    wait
        Whether to wait until the servers have joined.
    """
    address = join(coordinator.address6 if ipv6 else coordinator.address, PORT)
    words = [
        "coordinator",
        "--address",
        address,
        "--servers",
        len(servers) or 1,
        "--name",
        "coordinator",
        *trust,
        *options,
    ]
    cluster = Cluster(address, coordinator.zmqps(*words))
    cluster.coordinator.said("coordinator at")
    for index, host in enumerate(servers):
        bind = ["--address", join(host.address6 if ipv6 else host.address, 0)]
        words = ["--coordinator", address, "--name", f"server-{index}", "--kernels=numpy", *trust]
        cluster.servers.append(host.zmqps("server", *words, *(server_options or bind)))
    if wait:
        for server in cluster.servers:
            server.said("joined|as server", 60)
    return cluster


def make_keys(host: Host) -> None:
    """Make keys on a host."""
    host.run(["python", "-m", "zmqps", "keys", "create", "keys"])


def hand_out(host: Host, *others: Host) -> None:
    """Copy the keys to other hosts that run nodes, as an operator does after each change."""
    for other in others:
        host.run(["ssh", other.name, "mkdir -p -m 700 keys"])
        host.run(["scp", "-rpq", "keys/.", f"{other.name}:keys"])


def check_recording(frames: Path, *, readable: bool) -> None:
    """A recording of a run of `TRAINER` with a parameter called `NAME` holds names and values, or neither."""
    recorded = frames.read_bytes()
    assert len(recorded) > 3e6
    assert (NAME.encode() in recorded) == (VALUES in recorded) == readable


def check_emptied(hosts: Sequence[Host], timeout: float = allow(30.0)) -> None:
    """Nothing runs any more on hosts."""
    assert {host.name: host.emptied(timeout) for host in hosts} == {host.name: [] for host in hosts}
