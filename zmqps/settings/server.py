"""The settings of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from zmqps import checks
from zmqps.settings.fields import Settings, setting
from zmqps.settings.kinds import Choice, File, Seconds, Size, Switch, Text, Whole
from zmqps.settings.node import LISTEN, NodeSettings

KERNELS = ("numba", "numpy")
MAX_SERVERS = 4096


@dataclass(frozen=True, kw_only=True)  # without slots: `ServerSettings` has two bases
class ServerOptions(Settings):
    """The settings that all servers of a cluster share, besides those that its coordinator has, too."""

    device: str = setting(
        "cpu", Text(), "Device that holds and updates shards; auto: a GPU if one works.",
        metavar="cpu|cuda|cuda:N|auto", see="gpu.md",
    )  # fmt: skip
    memory: int | None = setting(
        None, Size(),
        "Memory for the shards of all jobs on a server, such as 8GB; by default, what is free on its host.",
        metavar="SIZE", example="8GB", see="jobs.md#memory",
    )  # fmt: skip
    kernels: str = setting("numba", Choice(KERNELS), "The kernels that servers compute with.")
    apply_threads: int = setting(
        1, Whole(1, 64), "Threads that update one slice on a server.", see="operations.md#apply-threads"
    )
    # One connection full of large messages keeps a thread of ZeroMQ busy for milliseconds at a time. With a second one
    # a small message of another job does not wait for that: its step takes 1.3 times as long during a flood, not 7.
    io_threads: int = setting(
        2, Whole(1, 64), "Threads of a server that read and write sockets and, with keys, encrypt."
    )
    ports: str = setting(
        "", Text(),
        "Servers take the first free port of these, such as 5571-5580; by default any. For firewalls.",
        metavar="FIRST-LAST", example="5571-5580",
    )  # fmt: skip


@checks.options_of("Servers")
@dataclass(frozen=True, kw_only=True)
class Servers(ServerOptions):
    """How many servers a cluster has, and what they compute with; an option of `zmqps.LocalCluster` and `zmqps.run`.

    Parameters
    ----------
    number : int
        How many.
    device : str
        Where they hold and update their shards: ``cpu``, ``cuda``, ``cuda:1``, or ``auto``, a GPU if one works.
    servers_per_gpu : int, optional
        Number of servers on each GPU of this host, in place of `number` and `device`; with ``device="auto"`` as many on
        the processor if there is no GPU.
    memory : int or str, optional
        The most that the shards of all jobs may take on a server, in bytes or such as ``"8GB"``; by default what is
        free on its host.
    kernels : {"numba", "numpy"}
        What they compute with.
    apply_threads : int
        How many threads update one slice on each server; docs/operations.md says when more than one pays.
    io_threads : int
        How many threads of each server read and write sockets, and encrypt where there are keys.
    ports : str
        They listen on the first free of these, such as ``"5571-5580"``; by default on any.
    """

    number: int = field(default=1, kw_only=False)
    servers_per_gpu: int | None = setting(
        None, Whole(1, 65535), "Number of servers on each GPU of this host, in place of --servers and --device.",
        example=1, see="gpu.md#layouts",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DialSettings(NodeSettings):
    """The settings of a node that connects to a coordinator."""

    coordinator: str = setting(
        "tcp://127.0.0.1:5570", Text(), "The coordinator's endpoint.", see="operations.md#addresses"
    )
    address: str = setting(
        "", Text(), LISTEN, shared=False, shown="the address by which it reaches the coordinator",
        example="tcp://0.0.0.0:0", see="operations.md#addresses",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings(DialSettings, ServerOptions):
    """The settings of a server."""

    role: ClassVar[str] = "server"

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
