"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from zmqps.settings.fields import setting
from zmqps.settings.kinds import Choice, File, Seconds, Size, Switch, Text, Whole
from zmqps.settings.node import LISTEN, NodeSettings

KERNELS = ("numba", "numpy")
MAX_SERVERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(NodeSettings):
    """The settings of a server."""

    role: ClassVar[str] = "server"

    coordinator: str = setting(
        "tcp://127.0.0.1:5570", Text(), "The coordinator's endpoint.", see="operations.md#addresses"
    )
    address: str = setting(
        "", Text(), LISTEN, shared=False, shown="the address by which it reaches the coordinator",
        example="tcp://0.0.0.0:0", see="operations.md#addresses",
    )  # fmt: skip
    ports: str = setting(
        "", Text(),
        "Servers take the first free port of these, such as 5571-5580; by default any. For firewalls.",
        metavar="FIRST-LAST", example="5571-5580",
    )  # fmt: skip
    kernels: str = setting("numba", Choice(KERNELS), "The kernels that servers compute with.")
    apply_threads: int = setting(
        1, Whole(1, 64), "Threads that update one slice on a server.", see="operations.md#apply-threads"
    )
    device: str = setting(
        "cpu", Text(), "Device that holds and updates shards; auto: a GPU if one works.",
        metavar="cpu|cuda|cuda:N|auto", see="gpu.md",
    )  # fmt: skip
    memory: int | None = setting(
        None, Size(),
        "Memory for the shards of all jobs on a server, such as 8GB; by default, what is free on its host.",
        metavar="SIZE", example="8GB", see="jobs.md#memory",
    )  # fmt: skip
    # One connection full of large messages keeps a thread of ZeroMQ busy for milliseconds at a time. With a second one
    # a small message of another job does not wait for that: its step takes 1.3 times as long during a flood, not 7.
    io_threads: int = setting(
        2, Whole(1, 64), "Threads of a server that read and write sockets and, with keys, encrypt."
    )
    # A spot instance has a minute or two from its notice to its end.
    handover_timeout: float = setting(
        60.0, Seconds(at_least=0),
        "How long it may take after SIGTERM to hand its shards over to other servers; 0: it does not.",
        metavar="SECONDS", see="durability.md#draining-a-server",
    )  # fmt: skip
    spare: bool = setting(
        False, Switch(),
        "Start as a standby: take over from lost servers; get new jobs only as a last resort.",
        see="durability.md#replicas",
    )  # fmt: skip
    index: int | None = setting(
        None, Whole(0, MAX_SERVERS - 1),
        "The server's number; by default, the lowest free one that no launcher has assigned.",
        shared=False, example=0,
    )  # fmt: skip
    metrics: str = setting(
        "", Text(),
        "Serve Prometheus metrics at HOST:PORT, or at a PORT for this host only; 0 takes a free one.",
        shared=False, metavar="ADDRESS", example="9571", see="watching.md#prometheus-and-grafana",
    )  # fmt: skip
    metrics_token: Path | None = setting(
        None, File(),
        "File with the token that scrapers must send (Authorization: Bearer …); by default none, and loopback only.",
        metavar="FILE", example="metrics.token",
    )  # fmt: skip
